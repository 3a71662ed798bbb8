"""Pre-training batches for custom training loops."""

import json
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader

from cloze.artifacts.store import Artifact
from cloze.model.config import PretrainConfig
from cloze.model.data.torch_dataset import IGNORED, PretrainingBatches
from tests.model.training.training_fixtures import TOKENIZER, examples_artifact


def recipe(steps: int) -> PretrainConfig:
    phase = {"max_seq_length": 32, "share": 1.0}
    return PretrainConfig.model_validate({"steps": steps, "batch_size": 8, "phases": [phase]})


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"))


def test_packed_and_padded_batches_hold_the_same_examples(artifact: Artifact) -> None:
    packed, padded = (
        PretrainingBatches(artifact.directory, recipe(3), padded=padded) for padded in (False, True)
    )
    assert len(packed) == len(list(packed)) == 3
    for one, other in zip(packed, padded, strict=True):
        there = other["attention_mask"].bool()
        assert torch.equal(other["input_ids"][there], one["input_ids"])
        assert torch.equal(other["token_type_ids"][there], one["token_type_ids"])
        assert torch.equal(there.sum(1), one["cu_seqlens"].diff().long())
        asked = other["labels"][there] != IGNORED
        assert torch.equal(asked.nonzero()[:, 0], one["masked_lm_positions"].sort().values)
        assert not (other["labels"][~there] != IGNORED).any()
        assert torch.equal(other["next_sentence_label"], one["next_sentence_label"])


def test_a_loop_of_transformers_trains_on_them(artifact: Artifact) -> None:
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {"vocab_size": TOKENIZER.size, "intermediate_size": 32, **small}
    model = BertForPreTraining(BertConfig(**sizes))
    batches = PretrainingBatches(artifact.directory, recipe(2), padded=True)
    losses = [model(**batch).loss for batch in DataLoader(batches, batch_size=None)]
    assert all(loss.isfinite() for loss in losses)


LOADED_BY_WORKERS = """
import json, sys
from torch.utils.data import DataLoader
from cloze.model.config import PretrainConfig
from cloze.model.data.torch_dataset import PretrainingBatches

batches = PretrainingBatches(sys.argv[1], PretrainConfig.model_validate_json(sys.argv[2]))
loaded = DataLoader(batches, batch_size=None, num_workers=2)
print(json.dumps(sorted(batch["input_ids"].tolist() for batch in loaded)))
"""


def test_workers_of_a_loader_share_the_steps(artifact: Artifact) -> None:
    # A separate program, like a user's loop: the loader forks, and pytest's process has threads.
    five = recipe(5)
    command = [sys.executable, "-c", LOADED_BY_WORKERS, artifact.directory, five.model_dump_json()]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    alone = [batch["input_ids"].tolist() for batch in PretrainingBatches(artifact.directory, five)]
    assert json.loads(loaded) == sorted(alone)


def test_ranks_share_every_batch(artifact: Artifact) -> None:
    whole, *parts = (
        [
            batch["cu_seqlens"].diff()
            for batch in PretrainingBatches(artifact.directory, recipe(3), rank=rank, ranks=ranks)
        ]
        for rank, ranks in ((0, 1), (0, 2), (1, 2))
    )
    for one, *shares in zip(whole, *parts, strict=True):
        assert torch.equal(torch.cat(shares).sort().values, one.sort().values)
