"""Gradients are summed over ranks in buckets, while the backward pass continues."""

import pytest
import torch

from cloze.model.training.distributed import gradient_buckets
from tests.model.training.training_fixtures import run_ranks


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "precision"), [(2, "bf16"), (2, "fp32"), (4, "bf16")])
def test_buckets_are_summed_beside_the_backward_pass_and_equal_a_plain_sum(
    ranks: int, precision: str
) -> None:
    for ended in run_ranks(ranks, precision, program="reduction_program.py"):
        assert ended.code == 0, ended.stderr
        (rank,) = ended.ends
        # Two numbers have only one sum; with more of them, rounding depends on their order.
        assert max(rank["differences"]) <= (0.0 if ranks == 2 else 1e-5)
        for trace in rank["traces"]:
            assert len(trace["launched"]) == rank["buckets"] > 10
            early = [start for start in trace["launched"] if start < trace["backward"]]
            assert len(early) > 0.9 * rank["buckets"]
        assert any(trace["ran"][0] < trace["backward"] for trace in rank["traces"])


def test_buckets_hold_every_parameter_once_from_the_last_to_the_first() -> None:
    sizes = (10, 70, 20, 30, 200, 5)
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    found = gradient_buckets(parameters, bucket_bytes=4 * 100)
    assert [[len(p) for p in bucket] for bucket in found] == [[5], [200], [30, 20], [70, 10]]
