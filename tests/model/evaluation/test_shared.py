"""Ranks that share an evaluation, and one that fails beside others."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cloze.artifacts.errors import ClozeError
from cloze.model.data.shards import ExampleShards
from cloze.model.evaluation import language_model
from cloze.model.evaluation.language_model import evaluate_encoder
from cloze.model.finetune.finetune import in_all_ranks
from cloze.model.inference.load import load_model
from cloze.model.training.distributed import Value, World
from tests.model.task_builders import encoder_artifact, examples_artifact, masked_examples

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Rank(World):
    """A rank whose peers have left their parts of a sum in a list."""

    parts: list[Tensor]

    def sum_tensor(self, tensor: Tensor) -> Tensor:
        self.parts.append(tensor.clone())
        return torch.stack(self.parts).sum(0)


@dataclass(frozen=True)
class Beside(World):
    """A rank beside one that has this to say."""

    other: str

    def gather(self, value: Value) -> list[Value | str]:  # type: ignore[override]
        return [value, self.other]


def test_ranks_that_share_the_batches_get_the_figures_of_one_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_model, "tokens_at_once", lambda device: 50)
    artifact = examples_artifact(tmp_path / "examples", {"heldout": masked_examples(30, 0)})
    shards = ExampleShards(artifact, split="heldout", max_seq_length=64)
    examples = shards.gather(0, np.zeros(30, np.int64), np.arange(30))
    module = load_model(encoder_artifact(tmp_path / "encoder").directory, device="cpu").module
    alone = evaluate_encoder(module, examples, World(0, 1, CPU))
    parts: list[Tensor] = []
    for rank in range(3):
        found = evaluate_encoder(module, examples, Rank(rank, 3, CPU, parts))
    assert found == alone
    assert all(part.any() for part in parts), "each rank has computed some"
    assert not (torch.stack(parts).bool().sum(0) > 1).any(), "and no batch twice"


def test_a_rank_returns_once_all_have_ended_and_raises_if_one_has_failed() -> None:
    assert in_all_ranks(World(0, 1, CPU), lambda: 5) == 5
    assert in_all_ranks(Beside(0, 2, CPU, ""), lambda: 5) == 5
    with pytest.raises(ClozeError, match="rank 1 failed: see its message above"):
        in_all_ranks(Beside(0, 2, CPU, "it broke"), lambda: 5)

    def fails() -> int:
        raise ClozeError("this one broke")

    with pytest.raises(ClozeError, match="this one broke"):
        in_all_ranks(Beside(0, 2, CPU, ""), fails)
