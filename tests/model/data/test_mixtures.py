"""A mixture deals the tokens of a run to its sources, and every example of a source in turn."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.model.config import PretrainStage, shares_of
from cloze.model.data.micro_batches import BatchSource, Share
from cloze.model.data.order import Deal, LengthOrder, MixedOrder
from cloze.model.data.sources import mixed_epochs, training_source
from tests.model.training.training_fixtures import TOKENIZER, examples_artifact

SOURCES = {"wiki": 600, "guides": 40, "web": 200}
DECAY: list[dict[str, Any]] = [
    {"max_seq_length": 32, "share": 0.8, "mixture": {"wiki": 0.5, "guides": 0.1, "web": 0.4}},
    {"max_seq_length": 32, "share": 0.2, "mixture": {"wiki": 0.2, "guides": 0.8}},
]


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0.01),
    st.integers(0, 200_000),
)
def test_after_any_number_of_examples_each_source_has_given_its_share(
    shares: list[float], count: int
) -> None:
    given_ = Deal.of(shares).before(count)
    assert given_.sum() == count
    expected = count * np.array(shares) / sum(shares)
    assert np.abs(given_ - expected).max() <= len(shares) / 2 + count / 2**15
    assert all(found == 0 for found, share in zip(given_, shares, strict=True) if not share)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 5000))
def test_a_deal_never_takes_an_example_back(counts: list[int], ordinal: int) -> None:
    deal = Deal.of(counts)
    step = deal.before(ordinal + 1) - deal.before(ordinal)
    assert sorted(step.tolist()) == [0] * (len(counts) - 1) + [1]


def test_a_source_gives_each_of_its_rows_once_in_an_epoch_and_no_other_row() -> None:
    rows, begins = ((3, 0, 4), (2, 1, 4)), ((0, 5, 10), (20, 0, 1))
    source = LengthOrder(128, rows, 8, "d/1/wiki", begins=begins)
    places = source.consecutive(7, 7 + 7 + 7)  # copies 1, 0, 1 begin at 7, 14, 21
    found = list(zip(*(column.tolist() for column in places), strict=True))
    first, second = found[:7], found[7:]
    assert sorted(first) == [
        (1, 0, 20),
        (1, 0, 21),
        (1, 1, 0),
        *((1, 2, row) for row in range(1, 5)),
    ]
    assert sorted(second) == [
        *((0, 0, row) for row in range(3)),
        *((0, 2, row) for row in range(10, 14)),
    ]
    pieces = [source.consecutive(first, first + 1) for first in range(7, 21)]
    assert [tuple(int(column[0]) for column in piece) for piece in pieces] == found


def stage(**recipe: object) -> PretrainStage:
    pretrain = {"steps": 1000, "batch_size": 16, "phases": DECAY, **recipe}
    return PretrainStage.model_validate({"seed": 1, "encoder": {}, "pretrain": pretrain})


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    directory = tmp_path_factory.mktemp("mixed")
    return examples_artifact(directory, rows=((40, 30), (25, 25)), sources=SOURCES, heldout=0)


def source_of(
    examples: Artifact, *, rank: int = 0, ranks: int = 1, **recipe: object
) -> BatchSource:
    share = Share(rank, ranks, token_budget=4096)
    return training_source(examples, TOKENIZER, stage(**recipe), share=share)


def test_shares_are_realised_at_every_thousandth_of_the_run(examples: Artifact) -> None:
    source = source_of(examples, batch_size=256)
    order, files = source.curriculum.lengths[32], source.shards[32]
    assert isinstance(order, MixedOrder)
    tokens = []
    for batch in map(source.curriculum.batch, range(1000)):
        sizes = files.sizes(*order.locate(batch))
        tokens.append(np.bincount(np.repeat(range(3), order.counts(batch)), sizes.lengths, 3))
    for begin, stop, wanted in ((0, 800, DECAY[0]), (800, 1000, DECAY[1])):
        so_far = np.cumsum(tokens[begin:stop], axis=0)
        shares = so_far / so_far.sum(axis=1, keepdims=True)
        asked = np.array([wanted["mixture"].get(name, 0.0) for name in SOURCES])
        # The examples of a step have random lengths, of which a few steps are the mean.
        assert np.abs(shares[5:] - asked).max() < 0.01
        assert np.abs(shares[-1] - asked).max() < 0.002


def test_the_examples_are_those_of_the_named_source(examples: Artifact) -> None:
    source = source_of(
        examples, phases=[{"max_seq_length": 32, "share": 1.0, "mixture": {"web": 1}}]
    )
    files = source.shards[32]
    rows, begins = files.of_source("web")
    order = source.curriculum.lengths[32]
    assert isinstance(order, MixedOrder)
    seen: Counter[tuple[int, int, int]] = Counter()
    for step in range(100):
        places = order.locate(source.curriculum.batch(step))
        seen.update(zip(*(column.tolist() for column in places), strict=True))
    allowed = {
        (copy, shard, begins[copy][shard] + row)
        for copy in range(2)
        for shard in range(2)
        for row in range(rows[copy][shard])
    }
    assert set(seen) == allowed
    assert max(seen.values()) - min(seen.values()) <= 1


def test_every_number_of_ranks_reads_the_same_examples(examples: Artifact) -> None:
    alone = source_of(examples)(803)
    parts = [source_of(examples, rank=rank, ranks=3)(803) for rank in range(3)]
    ids = [m.input_ids for part in parts for m in part.micro_batches]
    together = np.sort(np.concatenate([i.numpy() for i in ids]))
    assert (
        together == np.sort(np.concatenate([m.input_ids.numpy() for m in alone.micro_batches]))
    ).all()
    assert {part.source_tokens for part in parts} == {alone.source_tokens}


def test_a_step_is_the_same_whichever_steps_were_made_before_it(examples: Artifact) -> None:
    one, other = source_of(examples), source_of(examples)
    for step in range(700, 850):
        one(step)
    (made,), (again,) = one(850).micro_batches, other(850).micro_batches
    assert (made.input_ids == again.input_ids).all()


def test_epochs_are_counted_over_phases(examples: Artifact) -> None:
    epochs = mixed_epochs(source_of(examples))
    # 16,000 examples of about equal length; guides: 0.1 of 12,800 and 0.8 of 3,200 from 40 rows.
    assert epochs["guides"] == pytest.approx((1280 + 2560) / 40, rel=0.1)
    assert epochs["wiki"] == pytest.approx((6400 + 640) / 600, rel=0.1)


def test_growing_batches_are_mixed_as_well(examples: Artifact) -> None:
    source = source_of(examples, first_batch_size=4, batch_growth_steps=100)
    sizes = [source(step).examples for step in range(120)]
    assert sizes == [4 + 12 * step // 100 for step in range(100)] + [16] * 20
    order = source.curriculum.lengths[32]
    assert isinstance(order, MixedOrder)
    first, second = (begin for begin, _ in order.deals)
    assert (first, second) == (0, source.curriculum.batch(800).first)


def test_dynamic_masks_differ_whenever_an_example_comes_again(examples: Artifact) -> None:
    guides = [{"max_seq_length": 32, "share": 1.0, "mixture": {"guides": 1}}]
    source = source_of(examples, phases=guides, masks="dynamic", batch_size=40)
    first, third = (source(step).micro_batches[0] for step in (0, 2))
    assert first.input_ids.sort().values.tolist() != third.input_ids.sort().values.tolist()


@pytest.mark.parametrize(
    ("mixture", "temperature", "expected"),
    [
        ({}, 1.0, {"a": 0.1, "b": 0.9, "c": 0.0}),
        ({}, 0.0, {"a": 0.5, "b": 0.5, "c": 0.0}),
        ({}, 0.5, {"a": 0.25, "b": 0.75, "c": 0.0}),
        ({"b": 0.2}, 1.0, {"a": 0.8, "b": 0.2, "c": 0.0}),
        ({"b": 1.0}, 1.0, {"a": 0.0, "b": 1.0, "c": 0.0}),
        ({"c": 0.0}, 1.0, {"a": 0.1, "b": 0.9, "c": 0.0}),
    ],
)
def test_what_has_no_share_divides_the_rest_by_size_and_temperature(
    mixture: dict[str, float], temperature: float, expected: dict[str, float]
) -> None:
    assert shares_of(mixture, temperature, {"a": 10, "b": 90, "c": 0}) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        ({"d": 0.5}, "names the source d; the sources are a, b, c"),
        ({"c": 0.5}, "takes 0.5 of the tokens from the source c, of which .* have left nothing"),
        ({"a": 0.2, "b": 0.5}, "sum to 0.7, and no other source is left for the rest"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused_with_the_source(
    mixture: dict[str, float], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        shares_of(mixture, 1.0, {"a": 10, "b": 90, "c": 0})


def test_examples_that_are_not_told_apart_cannot_be_mixed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not told apart by source; give every source"):
        source_of(examples_artifact(tmp_path))
