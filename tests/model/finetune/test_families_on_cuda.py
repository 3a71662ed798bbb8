"""Fine-tuning of every family on a simulated GPU (tests/model/strict_cuda.py)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.model.config import FinetuneConfig, OptimizerConfig, TaskConfig
from cloze.model.encoder.models import Encoder, SentenceModel, TaskModel
from cloze.model.finetune.approaches import FineTuning, split_logits
from cloze.model.finetune.trainer import Recipe, TrialTrainer
from cloze.model.tasks.base import Problem
from cloze.model.tasks.problems import load_problem, load_tables
from tests.model.strict_cuda import CUDA, strict_cuda
from tests.model.task_builders import TINY, TOKENIZER, write_lines

STILL = TINY.model_copy(update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})

ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [
        {"text_a": "the list of names given", "label": "a"},
        {"text_a": "shape", "label": "b"},
    ],
    "pair_classification": [
        {"text_a": "the list", "text_b": "of names", "label": "same"},
        {"text_a": "a new array of given shape", "text_b": "int", "label": "other"},
    ],
    "multi_label_classification": [
        {"text_a": "the list of names given", "label": ["a", "b"]},
        {"text_a": "shape", "label": []},
    ],
    "retrieval": [
        {"query": "the list", "passage": "of names"},
        {"query": "a new array", "passage": "of given shape"},
    ],
    "reranking": [
        {"query": "the list", "passage": "of names", "negatives": ["int", "value of name"]},
        {"query": "a new array", "passage": "of given shape"},
    ],
    "regression": [{"text_a": "the list", "label": 0.5}, {"text_a": "a new array", "label": 2.0}],
    "tagging": [
        {"words": ["list", "of", "name"], "tags": ["O", "O", "B-X"]},
        {"words": ["name", "error"], "tags": ["B-X", "O"]},
    ],
    "span": [
        {
            "question": "a name",
            "context": "list of int value",
            "answers": {"text": ["list"], "answer_start": [0]},
        },
        {
            "question": "the shape",
            "context": "array",
            "answers": {"text": ["array"], "answer_start": [0]},
        },
    ],
    "multiple_choice": [
        {"context": "the", "endings": ["list", "of", "int value"], "label": 2},
        {"context": "given", "endings": ["shape", "name"], "label": 0},
    ],
}


def _problem(folder: Path, kind: str) -> Problem:
    path = write_lines(folder / "rows.jsonl", ROWS[kind] * 6)
    fields = {"name": "t", "train": path, "dev": path, "max_seq_length": 32, "batch_size": 4}
    task = TaskConfig.model_validate({"kind": kind, "learning_rate": 1e-3, **fields})
    return load_problem(task, TOKENIZER, load_tables(task))


def _trainer(problem: Problem, where: torch.device, **changes: Any) -> TrialTrainer:
    torch.manual_seed(0)
    config = changes.pop("config", STILL)
    precision = changes.pop("precision", "bf16")
    encoder = Encoder(config, TOKENIZER.size)
    model = (
        SentenceModel(encoder)
        if problem.reads == "vectors"
        else TaskModel(encoder, outputs=problem.outputs, head_dropout=config is not STILL)
    )
    shared = FinetuneConfig(precision="fp32", optimizer=OptimizerConfig(**changes))
    recipe = Recipe(config=shared, task=problem.config, seed=3)
    return TrialTrainer(problem, FineTuning(problem, model.to(where), precision=precision), recipe)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ROWS)
def test_every_family_trains_and_predicts_on_a_gpu_as_on_a_cpu(
    kind: str, precision: str, tmp_path: Path
) -> None:
    problem = _problem(tmp_path, kind)
    losses, logits = [], []
    with strict_cuda() as device:
        for where in (torch.device("cpu"), CUDA):
            trainer = _trainer(problem, where, precision=precision)
            first = trainer.train_epoch(1, lambda _: None)
            device.reset()
            losses.append([first, trainer.train_epoch(2, lambda _: None)])
            assert len(device.reads) == (where == CUDA), "the epoch's loss"
            device.reset()
            logits.append(torch.from_numpy(split_logits(problem, trainer.approach, "dev")))
            assert len(device.reads) == (where == CUDA), "one batch"
            assert device.pageable == []
    bound = 1e-4 if precision == "fp32" else 3e-2
    assert losses[1] == pytest.approx(losses[0], rel=bound)
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=3 * bound)


def test_fine_tuning_with_dropout_and_bias_correction_does_not_wait_in_an_epoch(
    tmp_path: Path,
) -> None:
    problem = _problem(tmp_path, "classification")
    with strict_cuda() as device:
        trainer = _trainer(problem, CUDA, config=TINY, bias_correction=True)
        trainer.train_epoch(1, lambda _: None)
        device.reset()
        trainer.train_epoch(2, lambda _: None)
        assert len(device.reads) == 1
