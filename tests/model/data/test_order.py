"""The order of the examples is a pure function of a few numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.artifacts.errors import UsageError
from cloze.model.config import PhaseConfig
from cloze.model.data import order as order_module
from cloze.model.data.order import BatchAddress, Curriculum, LengthOrder

ROWS = ((5, 0, 8), (4, 3, 9))


def _pairs(order: LengthOrder, first: int, stop: int, *, epoch: int = 0) -> list[tuple[int, int]]:
    _, shards, rows = order.locate(BatchAddress(order.max_seq_length, epoch, first, stop))
    return list(zip(shards.tolist(), rows.tolist(), strict=True))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any), st.integers(1, 16))
def test_an_epoch_holds_every_row_once_however_it_is_cut(rows: list[int], piece: int) -> None:
    order = LengthOrder(128, (tuple(rows),), batch_size=4, purpose="d/7")
    total = sum(rows)
    found = [
        pair for first in range(0, total, piece)
        for pair in _pairs(order, first, min(first + piece, total))
    ]  # fmt: skip
    assert sorted(found) == [(s, r) for s, count in enumerate(rows) for r in range(count)]


def test_windows_bound_the_memory_and_still_hold_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "WINDOW_ROWS", 7)
    order = LengthOrder(128, ((11, 20),), batch_size=4, purpose="d/3")
    whole = _pairs(order, 0, 31)
    assert sorted(whole) == [(s, r) for s, n in ((0, 11), (1, 20)) for r in range(n)]
    assert _pairs(order, 10, 25) == whole[10:25]
    shards = [shard for shard, _ in whole]
    assert sum(a != b for a, b in pairwise(shards)) < 15, "a window touches few shards"


def test_every_epoch_has_its_own_order_and_its_copy() -> None:
    length = LengthOrder(128, ROWS, batch_size=4, purpose="d/1")
    first, second, third = (
        _pairs(length, 0, sum(ROWS[epoch % 2]), epoch=epoch) for epoch in range(3)
    )
    assert first != third
    for found, rows in ((first, ROWS[0]), (second, ROWS[1]), (third, ROWS[0])):
        assert sorted(found) == [(s, r) for s, count in enumerate(rows) for r in range(count)]


def test_the_last_batch_of_an_epoch_is_smaller_and_used() -> None:
    length = LengthOrder(128, ROWS, batch_size=6, purpose="d/1")
    batches = [length.batch(ordinal) for ordinal in range(8)]
    assert [(b.epoch, b.first, b.stop) for b in batches] == [
        (0, 0, 6), (0, 6, 12), (0, 12, 13),
        (1, 0, 6), (1, 6, 12), (1, 12, 16),
        (2, 0, 6), (2, 6, 12),
    ]  # fmt: skip


def test_seeking_takes_no_longer_far_out() -> None:
    length = LengthOrder(128, ((10**9,),), batch_size=256, purpose="d/1")
    far = length.batch(10**12)
    _, shards, rows = length.locate(far)
    assert len(rows) == far.stop - far.first == 256
    assert shards.max() == 0
    assert 0 <= rows.min() <= rows.max() < 10**9


def test_each_length_has_epochs_of_its_own_across_phases() -> None:
    phases = tuple(
        PhaseConfig(max_seq_length=length, share=share)
        for length, share in ((128, 0.5), (512, 0.2), (128, 0.3))
    )
    orders = {length: LengthOrder(length, ((30,),), 10, "d/1") for length in (128, 512)}
    curriculum = Curriculum(10, phases, orders)
    found = [curriculum.batch(step) for step in range(10)]
    assert [b.max_seq_length for b in found] == [128] * 5 + [512] * 2 + [128] * 3
    assert [(b.epoch, b.first) for b in found if b.max_seq_length == 128] == [
        (0, 0), (0, 10), (0, 20), (1, 0), (1, 10), (1, 20), (2, 0), (2, 10),
    ]  # fmt: skip


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=3).filter(any),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_growing_batches_read_every_example_once_and_go_on_evenly(
    totals: list[int], sizes: list[int]
) -> None:
    rows = tuple((total,) for total in totals)
    length = LengthOrder(128, rows, 9, "d/1", tuple(sizes))
    batches = [length.batch(ordinal) for ordinal in range(len(sizes) + 20)]
    assert all(b.stop - b.first <= size for b, size in zip(batches, sizes, strict=False))
    assert all(b.stop > b.first for b in batches)
    epoch = begun = 0
    for batch in batches:
        while begun == totals[epoch % len(totals)]:
            epoch, begun = epoch + 1, 0
        assert (batch.epoch, batch.first) == (epoch, begun)
        begun = batch.stop
    full = [b.stop - b.first for b in batches[len(sizes) :]]
    ends = [b.stop == totals[b.epoch % len(totals)] for b in batches[len(sizes) :]]
    assert all(size == 9 or end for size, end in zip(full, ends, strict=True))


def test_a_length_without_rows_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="no training rows of length 512.*max_seq_lengths"):
        LengthOrder(512, ((0, 0),), 8, "d/1")
