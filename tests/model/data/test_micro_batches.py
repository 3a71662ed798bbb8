"""Micro-batches: the same work however it is split, within the token budget, made in order."""

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import Replacement
from cloze.artifacts.store import Artifact
from cloze.model.config import EncoderConfig, PhaseConfig
from cloze.model.data.batch import empty_micro_batch
from cloze.model.data.micro_batches import (
    BatchSource,
    CostModel,
    Share,
    StepBatch,
    plan_micro_batches,
    prefetch,
)
from cloze.model.data.order import Curriculum, LengthOrder
from cloze.model.data.shards import ExampleShards, Sizes
from cloze.model.data.targets import DynamicMasking
from tests.model.training.training_fixtures import TOKENIZER, examples_artifact

MASKING = DynamicMasking(Replacement(TOKENIZER.mask_id, TOKENIZER.size, 0.8, 0.1))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"), rows=((20, 20), (13, 15)))


def _source(
    artifact: Artifact, rank: int = 0, ranks: int = 1, budget: int = 4096, dynamic: bool = False
) -> BatchSource:
    shards = ExampleShards(artifact, split="train", max_seq_length=32)
    order = LengthOrder(32, shards.rows, 8, "digest/1")
    return BatchSource(
        curriculum=Curriculum(12, (PhaseConfig(max_seq_length=32, share=1.0),), {32: order}),
        shards={32: shards},
        share=Share(rank, ranks, budget),
        cost=CostModel.of(EncoderConfig(preset="tiny"), TOKENIZER.size),
        cls_sep=(TOKENIZER.cls_id, TOKENIZER.sep_id),
        masking=MASKING if dynamic else None,
        purpose="digest/1",
    )


def _sequences(batch: StepBatch) -> list[tuple[int, ...]]:
    """Every sequence of every micro-batch with its targets, sorted."""
    found = []
    for packed in batch.micro_batches:
        ends = packed.cu_seqlens.tolist()
        if not packed.masked_lm_ids.numel():
            continue  # an empty micro-batch
        for i, (start, stop) in enumerate(itertools.pairwise(ends)):
            inside = (packed.masked_lm_positions >= start) & (packed.masked_lm_positions < stop)
            found.append(
                (
                    *packed.input_ids[start:stop].tolist(),
                    -1,
                    *packed.token_type_ids[start:stop].tolist(),
                    -1,
                    *(packed.masked_lm_positions[inside] - start).tolist(),
                    -1,
                    *packed.masked_lm_ids[inside].tolist(),
                    int(packed.next_sentence_label[i]),
                )
            )
    return sorted(found)


@pytest.mark.parametrize("dynamic", [False, True])
def test_ranks_and_budgets_only_divide_the_work(artifact: Artifact, dynamic: bool) -> None:
    for step in (0, 4, 5, 9):
        whole = _source(artifact, dynamic=dynamic)(step)
        for ranks, budget in ((1, 64), (2, 4096), (3, 50)):
            parts = [_source(artifact, r, ranks, budget, dynamic)(step) for r in range(ranks)]
            together = sorted(itertools.chain.from_iterable(map(_sequences, parts)))
            assert together == _sequences(whole)
            for part in parts:
                assert part.masked == whole.masked == sum(m.masked_lm_ids.numel() for m in
                                                          whole.micro_batches)  # fmt: skip
                assert (part.examples, part.tokens) == (whole.examples, whole.tokens)
                assert len(part.micro_batches) == len(parts[0].micro_batches)


def test_an_epoch_reads_every_row_of_its_copy_once(artifact: Artifact) -> None:
    source = _source(artifact)
    steps = -(-33 // 8)
    rows = [row for step in range(steps) for row in source.rows_of(source(step))]
    assert sorted(rows) == sorted(
        [f"train-32-00000.arrow:{r}" for r in range(20)]
        + [f"train-32-00001.arrow:{r}" for r in range(13)]
    )


def test_a_rank_without_examples_computes_an_empty_micro_batch(artifact: Artifact) -> None:
    last_of_epoch = 4  # one example for three ranks
    batches = [_source(artifact, rank, 3)(last_of_epoch) for rank in range(3)]
    assert [b.examples for b in batches] == [1, 1, 1]
    assert sorted(b.micro_batches[0].masked_lm_ids.numel() > 0 for b in batches) == [0, 0, 1]


def test_an_empty_micro_batch_asks_nothing() -> None:
    empty = empty_micro_batch(2, 3)
    assert empty.input_ids.tolist() == [2, 3]
    assert empty.masked_lm_ids.numel() == 0
    assert empty.next_sentence_label.tolist() == [-1]


def test_positions_begin_anew_in_every_sequence(artifact: Artifact) -> None:
    packed = _source(artifact)(0).micro_batches[0]
    starts = packed.cu_seqlens[:-1].long()
    assert packed.position_ids[starts].eq(0).all()
    assert packed.max_seqlen == int(packed.position_ids.max()) + 1
    np.testing.assert_array_equal(packed.lengths.sum(), packed.tokens)


def test_an_artifact_is_not_copied_to_be_read(artifact: Artifact, tmp_path: Path) -> None:
    _source(artifact)(0)
    assert not list(tmp_path.iterdir())


LENGTHS = st.lists(st.integers(2, 128), min_size=0, max_size=60)


@given(LENGTHS, st.integers(1, 5), st.integers(128, 600))
def test_every_example_is_computed_once_and_every_rank_does_as_many_micro_batches(
    lengths: list[int], ranks: int, budget: int
) -> None:
    sizes = np.array(lengths, np.int64)
    plan = plan_micro_batches(sizes, sizes.astype(float), ranks=ranks, token_budget=budget)
    assert len(plan) == ranks
    assert len({len(rank) for rank in plan}) == 1
    together = np.concatenate([share for rank in plan for share in rank])
    assert sorted(together.tolist()) == list(range(len(lengths)))
    assert all(sizes[share].sum() <= budget for rank in plan for share in rank)


def test_ranks_get_equal_work() -> None:
    lengths = np.random.default_rng(0).integers(8, 129, 256)
    one = np.ones_like(lengths)
    sizes = Sizes(lengths, lengths // 7, -one, one, lengths)
    costs = CostModel.of(EncoderConfig(preset="tiny"), 8192)(sizes)
    plan = plan_micro_batches(lengths, costs, ranks=3, token_budget=4096)
    work = np.array([costs[np.concatenate(rank)].sum() for rank in plan])
    assert work.max() / work.mean() < 1.01


def test_examples_are_dealt_back_and_forth_to_ranks_and_to_their_micro_batches() -> None:
    lengths, costs = np.full(8, 10), np.array([3.0, 8.0, 1.0, 6.0, 5.0, 4.0, 7.0, 2.0])
    plan = plan_micro_batches(lengths, costs, ranks=2, token_budget=20)
    dealt = [[costs[examples].tolist() for examples in rank] for rank in plan]
    # To the ranks: 8 and 7, back 6 and 5, forth 4 and 3, back 2 and 1; likewise within each rank.
    assert dealt == [[[8.0, 1.0], [5.0, 4.0]], [[7.0, 2.0], [6.0, 3.0]]]


def test_attention_costs_what_documents_cost_by_themselves() -> None:
    cost = CostModel.of(EncoderConfig(preset="tiny"), 8192)
    count = np.array
    together = cost(Sizes(count([96]), count([9]), count([-1]), count([2]), count([64, 32])))
    apart = Sizes(count([64, 32]), count([6, 3]), count([-1, -1]), count([1, 1]), count([64, 32]))
    assert together.sum() == pytest.approx(cost(apart).sum())


def test_more_ranks_than_examples_leave_empty_micro_batches() -> None:
    plan = plan_micro_batches(np.array([9, 9]), np.array([9.0, 9.0]), ranks=3, token_budget=64)
    assert [[len(share) for share in rank] for rank in plan] == [[1], [1], [0]]


def test_a_budget_below_one_example_is_refused() -> None:
    with pytest.raises(UsageError, match=r"token_budget is 64, but an example has 128"):
        plan_micro_batches(np.array([128]), np.array([1.0]), ranks=1, token_budget=64)


def test_attention_counts_more_in_narrow_models() -> None:
    tiny, base = (CostModel.of(EncoderConfig(preset=p), 30522) for p in ("tiny", "base"))
    assert tiny.attention > base.attention
    assert tiny.masked > base.masked


def test_values_come_in_order() -> None:
    assert list(prefetch(lambda i: i * i, 3, 8)) == [9, 16, 25, 36, 49]


def test_nothing_to_make_is_fine() -> None:
    assert list(prefetch(lambda i: i, 5, 5)) == []


def test_no_more_than_depth_values_are_made_ahead() -> None:
    made: list[int] = []
    values = iter(prefetch(lambda i: made.append(i) or i, 0, 100, depth=3))
    assert next(values) == 0
    assert len(made) <= 5


def test_an_error_is_raised_at_its_place() -> None:
    def make(index: int) -> int:
        if index == 2:
            raise ValueError("shard gone")
        return index

    values = iter(prefetch(make, 0, 9))
    assert [next(values), next(values)] == [0, 1]
    with pytest.raises(ValueError, match="shard gone"):
        next(values)


def test_closing_ends_the_thread() -> None:
    before = set(threading.enumerate())
    prefetcher = prefetch(lambda i: i, 0, 10**6)
    next(iter(prefetcher))
    assert set(threading.enumerate()) - before
    prefetcher.close()
    assert not set(threading.enumerate()) - before
