"""A global batch is cut the same way by every rank, evenly, within the token budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import UsageError
from model.config import EncoderConfig
from model.data.micro_batches import CostModel, cut

LENGTHS = st.lists(st.integers(2, 128), min_size=0, max_size=60)


@given(LENGTHS, st.integers(1, 5), st.integers(128, 600))
def test_every_example_is_computed_once_and_every_rank_does_as_many_micro_batches(
    lengths: list[int], ranks: int, budget: int
) -> None:
    sizes = np.array(lengths, np.int64)
    plan = cut(sizes, sizes.astype(float), ranks=ranks, token_budget=budget)
    shares = [[plan.share(r, m) for m in range(plan.micro_batches)] for r in range(ranks)]
    together = np.concatenate([share for rank in shares for share in rank])
    assert sorted(together.tolist()) == list(range(len(lengths)))
    assert all(sizes[share].sum() <= budget for rank in shares for share in rank)


def test_ranks_get_equal_work() -> None:
    lengths = np.random.default_rng(0).integers(8, 129, 256)
    costs = CostModel.of(EncoderConfig(preset="tiny"), 8192)(lengths, lengths // 7)
    plan = cut(lengths, costs, ranks=3, token_budget=4096)
    work = np.bincount(plan.rank, weights=costs)
    assert work.max() / work.mean() < 1.01


def test_more_ranks_than_examples_leave_empty_micro_batches() -> None:
    plan = cut(np.array([9, 9]), np.array([9.0, 9.0]), ranks=3, token_budget=64)
    assert plan.micro_batches == 1
    assert [len(plan.share(rank, 0)) for rank in range(3)] == [1, 1, 0]


def test_a_budget_below_one_example_is_refused() -> None:
    with pytest.raises(UsageError, match=r"token_budget is 64, an example has 128"):
        cut(np.array([128]), np.array([1.0]), ranks=1, token_budget=64)


def test_attention_counts_more_in_narrow_models() -> None:
    tiny, base = (CostModel.of(EncoderConfig(preset=p), 30522) for p in ("tiny", "base"))
    assert tiny.attention > base.attention
    assert tiny.masked > base.masked
