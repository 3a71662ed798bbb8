import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.results import Trials
from cloze.artifacts.stage import write_stage_table
from cloze.artifacts.store import Artifact, open_artifact
from cloze.model.config import (
    EncoderConfig,
    FeatureConfig,
    FinetuneConfig,
    OptimizerConfig,
    TaskConfig,
)
from cloze.model.encoder.models import Encoder, SentenceModel, TaskModel
from cloze.model.finetune.approaches import FineTuning, split_logits
from cloze.model.finetune.feature_based import LAYERS, FeatureCache, FeatureHead
from cloze.model.finetune.finetune import make_trials
from cloze.model.finetune.trainer import Recipe, TrialResult, TrialTrainer
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.tasks.base import Problem
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.model.training.distributed import World
from cloze.model.training.engine import Replicated, StepOutcome
from cloze.model.training.health import Deadline
from cloze.model.training.optimizer import Schedule
from tests.model.task_builders import (
    TINY,
    TOKENIZER,
    encoder_artifact,
    finetune_table,
    inputs,
    stage_table,
    write_lines,
)
from tests.waiting import PATIENCE, free_port

STILL = TINY.model_copy(update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})


def texts(count: int) -> list[dict]:
    words = ["the", "list", "of", "names", "arrays", "given", "shape"]
    rng = np.random.default_rng(5)
    return [
        {"text_a": " ".join(rng.choice(words, rng.integers(1, 12))), "label": str(n % 2)}
        for n in range(count)
    ]


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    path = write_lines(tmp_path / "a.jsonl", texts(24))
    task = TaskConfig(
        name="t",
        kind="classification",
        train=path,
        dev=path,
        max_seq_length=32,
        batch_size=8,
        epochs=2,
        learning_rate=1e-3,
    )
    return load_problem(task, TOKENIZER, load_tables(task))


def recipe(
    problem: Problem, *, select: str = "last", evaluations: int = 0, **changes: object
) -> Recipe:
    config = FinetuneConfig(precision="fp32", select=select, evaluations=evaluations)
    return replace(Recipe(config=config, task=problem.config, seed=3), **changes)


def run(
    problem: Problem,
    *,
    config: EncoderConfig = STILL,
    size: int = TOKENIZER.size,
    **changes: object,
) -> tuple[TrialResult, TaskModel]:
    torch.manual_seed(0)
    model = TaskModel(Encoder(config, size), outputs=problem.outputs, head_dropout=False)
    precision = str(changes.pop("precision", "fp32"))
    fit = TrialTrainer(
        problem, FineTuning(problem, model, precision=precision), recipe(problem, **changes)
    )
    return fit.run(lambda steps: None), model


def test_cutting_a_batch_does_not_change_what_is_learnt(problem: Problem) -> None:
    whole, first = run(problem)
    cut, second = run(problem, token_budget=20)
    for ours, theirs in zip(whole.epochs, cut.epochs, strict=True):
        assert ours.train_loss == pytest.approx(theirs.train_loss, abs=1e-5)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


def test_seed_and_nothing_else_decides_a_fit(problem: Problem) -> None:
    (first, a), (again, b), (other, c) = run(problem), run(problem), run(problem, seed=4)
    assert first.epochs == again.epochs != other.epochs
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(a.parameters(), c.parameters(), strict=True))


def test_bf16_keeps_fp32_parameters_and_learns_the_same(problem: Problem) -> None:
    exact, _ = run(problem)
    rounded, model = run(problem, precision="bf16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert rounded.epochs[-1].train_loss == pytest.approx(exact.epochs[-1].train_loss, abs=0.01)


def test_leaving_out_unused_word_pieces_changes_no_prediction(
    problem: Problem, tmp_path: Path
) -> None:
    beginning = read_encoder_files(encoder_artifact(tmp_path / "encoder", config=STILL).directory)
    results = []
    for small in (False, True):
        if small:
            problem.prune_vocabulary()
        encoder = beginning.encoder(pretrained=True, seed=0, used_ids=problem.used_ids)
        torch.manual_seed(1)
        model = TaskModel(encoder, outputs=problem.outputs)
        results.append(
            TrialTrainer(problem, FineTuning(problem, model), recipe(problem)).run(lambda _: None)
        )
    assert len(problem.used_ids if problem.used_ids is not None else []) < TOKENIZER.size
    assert results[0].predictions == results[1].predictions
    assert results[0].epochs[-1].train_loss == pytest.approx(
        results[1].epochs[-1].train_loss, abs=1e-6
    )


def test_updates_are_those_of_torchs_adamw_with_clipping() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    theirs.load_state_dict(ours.state_dict())
    config = OptimizerConfig(
        learning_rate=0.1, warmup_steps=0, bias_correction=True, max_grad_norm=0.5, weight_decay=0.0
    )
    engine = Replicated(
        ours,
        world=World(0, 1, torch.device("cpu")),
        schedule=Schedule(config, 1000),
        skips_nonfinite=False,
    )
    reference = torch.optim.AdamW(theirs.parameters(), eps=1e-6, weight_decay=0.0)
    for step in range(3):
        for module in (ours, theirs):
            module(torch.ones(2, 4) * (step + 1)).pow(2).sum().backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        for group in reference.param_groups:
            group["lr"] = 0.1 * (1 - step / 1000)
        reference.step()
        reference.zero_grad()
        engine.step(step, torch.zeros(0))
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    assert all(parameter.grad is None for parameter in ours.parameters())


def test_only_the_best_epoch_on_dev_is_kept_where_that_is_wanted(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Accuracy on dev, as if the second of three epochs had been the best: an epoch that is better
    # than all before is scored once to find out, and once with the other splits.
    accuracy = iter([0.5, 0.5, 0.75, 0.75, 0.25])
    monkeypatch.setattr(problem, "score", lambda *_: {"accuracy": next(accuracy)})
    long = problem.config.model_copy(update={"epochs": 3})
    result, model = run(problem, select="best", task=long)
    assert result.chosen_epoch == 2
    assert result.scores["dev"] == {"accuracy": 0.75}
    # The module's weights are the ones that were scored, not those of the last epoch.
    logits = split_logits(problem, FineTuning(problem, model, precision="fp32"), "dev")
    assert np.array_equal(logits, result.logits["dev"])


def test_evaluations_are_spread_over_the_epochs_and_end_with_the_last(problem: Problem) -> None:
    long = problem.config.model_copy(update={"epochs": 7})
    for evaluations, judged in ((0, [1, 2, 3, 4, 5, 6, 7]), (2, [4, 7]), (1, [7])):
        result, _ = run(problem, task=long, evaluations=evaluations)
        assert [epoch.epoch for epoch in result.epochs] == judged


def test_a_trial_ends_in_time_is_evaluated_there_and_repeated_by_its_record(
    problem: Problem,
) -> None:
    # Seven epochs of three steps in 21 s, but a step takes 2 s: at 18 s, after step 9, there is
    # time for one more.
    long = problem.config.model_copy(update={"epochs": 7})
    seconds = iter(range(0, 100, 2))
    limit = Deadline(21, now=lambda: float(next(seconds)))
    result, model = run(problem, task=long, deadline=limit)
    assert (result.shortened, result.steps, result.chosen_epoch) == (((9, 10),), 10, 4)
    assert [epoch.epoch for epoch in result.epochs] == [1, 2, 3, 4]
    again, repeated = run(problem, task=long, shortened=result.shortened)
    assert again.scores == result.scores
    for a, b in zip(model.parameters(), repeated.parameters(), strict=True):
        assert torch.equal(a, b)


def test_logits_come_in_the_files_order(problem: Problem) -> None:
    torch.manual_seed(0)
    model = TaskModel(Encoder(STILL, TOKENIZER.size), outputs=2)
    reader = FineTuning(problem, model)
    together = split_logits(problem, reader, "dev")
    with torch.inference_mode():
        alone = [reader.logits("dev", np.array([row]), None)[0].numpy() for row in range(24)]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-5)


def test_left_to_right_the_last_token_speaks_for_the_sequence(problem: Problem) -> None:
    config = STILL.model_copy(update={"attention_direction": "left_to_right"})
    torch.manual_seed(0)
    model = TaskModel(Encoder(config, TOKENIZER.size), outputs=2).eval()
    logits = split_logits(problem, FineTuning(problem, model), "dev")
    assert len(np.unique(logits[:, 0].round(6))) > 12  # from [CLS] alone, all would be equal


def test_the_layers_of_table_7() -> None:
    states = [torch.full((3, 4), float(layer)) for layer in range(7)]
    shapes = {name: tuple(pick(states).shape) for name, pick in LAYERS.items()}
    assert shapes == {
        "embeddings": (3, 1, 4),
        "second_to_last": (3, 1, 4),
        "last": (3, 1, 4),
        "sum_last_four": (3, 4, 4),
        "concat_last_four": (3, 1, 16),
        "sum_all": (3, 6, 4),
    }
    assert LAYERS["embeddings"](states)[0, 0, 0] == 0.0
    assert LAYERS["second_to_last"](states)[0, 0, 0] == 5.0
    assert LAYERS["sum_all"](states)[0, :, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_the_bilstm_reads_each_sequence_for_itself() -> None:
    torch.manual_seed(0)
    head = FeatureHead(FeatureConfig(hidden_size=8), depth=2, width=4, outputs=3)
    values = torch.randn(5, 2, 4)
    together = head(values, [2, 3], pool=False, seed=None)
    apart = torch.cat(
        [
            head(values[:2], [2], pool=False, seed=None),
            head(values[2:], [3], pool=False, seed=None),
        ]
    )
    torch.testing.assert_close(together, apart)
    assert head(values, [2, 3], pool=True, seed=None).shape == (2, 3)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_reach_a_bilstm_before_the_head_and_through_it_the_encoder(
    problem: Problem, precision: str
) -> None:
    torch.manual_seed(0)
    model = TaskModel(Encoder(STILL, TOKENIZER.size), outputs=2, bilstm=True)
    batch = problem.sequences["train"].batch(np.arange(8))
    reader = FineTuning(problem, model, precision=precision)
    reader.computed(batch, torch.arange(batch.tokens), None).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    met = {name for name, gradient in gradients.items() if gradient is not None and gradient.any()}
    assert gradients.keys() - met == {"encoder.pooler.dense.weight", "encoder.pooler.dense.bias"}


def test_features_of_two_encoders_stand_side_by_side(problem: Problem) -> None:
    torch.manual_seed(0)
    encoders = [Encoder(STILL, TOKENIZER.size) for _ in range(2)]
    both = FeatureCache(problem, encoders, LAYERS["last"], precision="fp32")
    one = FeatureCache(problem, encoders[1:], LAYERS["last"], precision="fp32")
    rows = np.array([3, 0])
    values, sizes = both.take("dev", rows)
    assert (both.width, both.depth) == (2 * STILL.hidden_size, 1)
    assert sizes == problem.sequences["dev"].lengths[rows].tolist()
    torch.testing.assert_close(values[..., STILL.hidden_size :], one.take("dev", rows)[0])


def test_features_in_bf16_are_those_in_fp32_but_for_rounding(problem: Problem) -> None:
    torch.manual_seed(0)
    encoder = Encoder(STILL, TOKENIZER.size)
    exact, rounded = (
        FeatureCache(problem, [encoder], LAYERS["last"], precision=precision)
        for precision in ("fp32", "bf16")
    )
    rows = np.arange(4)
    found, wanted = rounded.take("dev", rows)[0], exact.take("dev", rows)[0]
    assert not torch.equal(found, wanted)
    torch.testing.assert_close(found, wanted, atol=0.1, rtol=0.0)
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.float32}


def test_sequences_beyond_the_position_table_are_refused_before_anything_runs(
    tmp_path: Path,
) -> None:
    path = write_lines(tmp_path / "a.jsonl", texts(4))
    task = {"name": "t", "kind": "classification", "train": path, "dev": path}
    table = stage_table(
        "finetune",
        tmp_path / "out",
        config={"finetune": {"tasks": [task]}},
        inputs=inputs(encoder=encoder_artifact(tmp_path / "encoder")),
    )
    with pytest.raises(UsageError, match="max_seq_length 128, but the encoder has 64 positions"):
        make_trials(table, [])


def test_an_early_failure_is_started_again_and_said_so(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", texts(8))
    task = {"name": "t", "kind": "classification", "train": path, "dev": path}
    task |= {"max_seq_length": 32, "epochs": 1, "learning_rate": 1e-9}
    table = stage_table(
        "finetune",
        tmp_path / "out",
        config={"finetune": {"tasks": [task], "seeds": [0], "restarts": 2, "precision": "fp32"}},
        inputs=inputs(encoder=encoder_artifact(tmp_path / "encoder", config=STILL)),
    )
    (fit,) = Trials.model_validate(make_trials(table, []).read_json("trials.json")).trials
    assert fit.dev["accuracy"] == 0.5
    assert fit.restarts == 2


def pairs(count: int) -> list[dict]:
    words = ["the", "list", "of", "names", "arrays", "given", "shape"]
    rng = np.random.default_rng(6)

    def text() -> str:
        return " ".join(rng.choice(words, rng.integers(2, 12)))

    return [{"query": text(), "passage": text(), "negatives": [text()]} for _ in range(count)]


def test_cached_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    """Every text is compared with all others of its batch, divided into micro-batches or not."""
    path = write_lines(tmp_path / "a.jsonl", pairs(16))
    fields = {"name": "r", "kind": "retrieval", "train": path, "dev": path, "batch_size": 16}
    task = TaskConfig.model_validate({**fields, "max_seq_length": 32})
    found = load_problem(task, TOKENIZER, load_tables(task))
    gradients = []

    def outcome_of(number: int, sums: torch.Tensor) -> StepOutcome:
        return StepOutcome(False, 0.0, torch.zeros(()), sums)

    for budget in (1 << 20, 40):
        torch.manual_seed(0)
        model = SentenceModel(Encoder(STILL, TOKENIZER.size))
        model.train()
        fit = TrialTrainer(found, FineTuning(found, model), recipe(found, token_budget=budget))
        fit.engine.step = outcome_of  # type: ignore[method-assign]
        outcome, count = fit.train_step(0, np.arange(16))
        assert count == 16
        gradients.append(
            [outcome.sums, *(p.grad for p in model.parameters() if p.grad is not None)]
        )
    assert len(gradients[0]) > 10
    for whole, cached in zip(*gradients, strict=True):
        torch.testing.assert_close(cached, whole, atol=1e-6, rtol=1e-5)


def test_cached_gradients_know_the_dropout_of_the_vectors(tmp_path: Path) -> None:
    """Both passes over a micro-batch use the same dropout."""
    path = write_lines(tmp_path / "a.jsonl", pairs(8))
    task = TaskConfig(name="r", kind="retrieval", train=path, dev=path, max_seq_length=32)
    found = load_problem(task, TOKENIZER, load_tables(task))
    torch.manual_seed(0)
    model = SentenceModel(Encoder(TINY, TOKENIZER.size)).train()
    fit = TrialTrainer(found, FineTuning(found, model), recipe(found, token_budget=40))
    first, again, other = (fit._computed(np.arange(4), step=0, micro=m) for m in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


STAGE = ("-m", "cloze.model.finetune.finetune")


def on_two_ranks(table: Path, program: Sequence[str] = STAGE) -> None:
    """Run the stage as two ranks on one machine."""
    port = free_port()
    command = [sys.executable, *program, "--config", str(table)]
    ranks = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
                **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            },
        )
        for rank in range(2)
    ]
    assert [process.wait(2 * PATIENCE) for process in ranks] == [0, 0]


BRIEF = {"epochs": 3, "max_seq_length": 32, "batch_size": 4, "learning_rate": 1e-3}


def alone_and_on_two_ranks(folder: Path, **config: Any) -> tuple[Artifact, Artifact]:
    """The same fine-tuning in this process, and by two ranks."""
    encoder = encoder_artifact(folder / "encoder", config=STILL)
    alone = make_trials(finetune_table(folder / "alone", encoder, **config), [])
    write_stage_table(finetune_table(folder / "shared", encoder, **config), folder / "table.json")
    on_two_ranks(folder / "table.json")
    return alone, open_artifact(str(folder / "shared"))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [[0, 1, 2], [0]])
def test_two_ranks_share_the_fits_or_the_batches(tmp_path: Path, seeds: list[int]) -> None:
    path = write_lines(tmp_path / "a.jsonl", texts(9))
    task = {"name": "t", "kind": "classification", "train": path, "dev": path, **BRIEF}
    alone, shared = alone_and_on_two_ranks(tmp_path, tasks=[task], seeds=seeds)
    if len(seeds) > 1:
        assert shared.digest == alone.digest
    for ours, theirs in zip(*map(losses, (alone, shared)), strict=True):
        assert ours == pytest.approx(theirs, abs=2e-3)  # the head's dropout is divided differently


ANOTHER_CLOCK = """
import os, runpy
from cloze.model.training.health import Deadline
if os.environ["RANK"] == "1":
    Deadline.end = lambda self, step, end: end
runpy.run_module("cloze.model.finetune.finetune", run_name="__main__")
"""
"""The stage, but to its second rank no time is ever over."""


@pytest.mark.slow
def test_two_ranks_that_share_the_batches_end_by_the_clock_of_the_first(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", texts(9))
    task = {"name": "t", "kind": "classification", "train": path, "dev": path, **BRIEF}
    encoder = encoder_artifact(tmp_path / "encoder", config=STILL)

    def fit(name: str, program: Sequence[str], **limit: object) -> Artifact:
        config = {"tasks": [task], "seeds": [0], "initialisations": ["pretrained"], **limit}
        table = finetune_table(tmp_path / name, encoder, **config)
        write_stage_table(table, tmp_path / f"{name}.json")
        on_two_ranks(tmp_path / f"{name}.json", program)
        return open_artifact(str(tmp_path / name))

    limited = fit("limited", ("-c", ANOTHER_CLOCK), minutes=1e-6)
    (trial,) = Trials.model_validate(limited.read_json("trials.json")).trials
    assert (trial.steps, trial.shortened) == (1, ((1, 1),))
    again = fit("again", STAGE, shortened={trial.label: trial.shortened})
    assert again.digest == limited.digest


@pytest.mark.slow
def test_two_ranks_compare_the_texts_of_both(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", pairs(9))
    task = {"name": "r", "kind": "retrieval", "train": path, "dev": path, **BRIEF}
    alone, shared = alone_and_on_two_ranks(tmp_path, tasks=[task], seeds=[0])
    assert losses(shared) == pytest.approx(losses(alone), abs=1e-4)


def losses(artifact: Artifact) -> list[float]:
    fits = Trials.model_validate(artifact.read_json("trials.json")).trials
    return [epoch.train_loss for fit in fits for epoch in fit.epochs]
