"""One rank with the real engine in this process: results, and recovery from interruptions."""

import gc
import json
import resource
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save as save_arrays
from safetensors.torch import load, load_file, save_file
from transformers import BertConfig, BertForPreTraining

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.runtime.program import Terminated
from cloze.artifacts.stage import StageTable, read_stage_table, write_stage_table
from cloze.artifacts.store import Artifact, commit, open_artifact, put_bytes
from cloze.artifacts.tokenizer import SPECIAL_TOKENS
from cloze.model.config import PretrainStage, TrainingMachine
from cloze.model.data.word_vectors import NAME as WORD_VECTORS_FILE
from cloze.model.data.word_vectors import read_word_vectors
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.training.checkpoints import FaultHook, ParameterState
from cloze.model.training.health import Deadline
from cloze.model.training.pretrain import (
    GPU_MEMORY_SHARE,
    checkpoint_folder,
    gpu_token_budget,
    make_encoder,
)
from tests.model.training.rank_program import StruckDown, strike
from tests.model.training.training_fixtures import (
    TOKENIZER,
    WORDS,
    examples_artifact,
    losses,
    stage_table,
)

DRY = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"), lengths=(32, 64))


@pytest.fixture(scope="module")
def golden(examples: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    directory = tmp_path_factory.mktemp("golden")
    run(stage_table(directory, examples))
    return directory


def run(table: Path, **struck: Any) -> Artifact:
    wish = {"rank": 0, **struck} if struck else None
    return make_encoder(read_stage_table(table), [], fault=strike(wish))


def test_the_artifact_holds_the_encoder_its_tokenizer_and_its_curve(golden: Path) -> None:
    artifact = open_artifact(str(golden / "out"))
    assert [entry.name for entry in artifact.manifest.files] == [
        "config.json", "curve.jsonl", "model.safetensors", "tokenizer.json", "vocab.txt",
    ]  # fmt: skip
    assert artifact.manifest.statistics["updates"] == 20
    assert artifact.manifest.statistics["heldout"]["masked_lm_loss"] > 0
    assert len(losses(golden)) == 20
    assert not (golden / "out" / "checkpoints").exists()
    assert [entry.name for entry in artifact.manifest.records] == [
        "exp_avg.safetensors", "exp_avg_sq.safetensors", "metrics.jsonl", "state.json",
    ]  # fmt: skip
    lines = [json.loads(line) for line in artifact.read_bytes("metrics.jsonl").splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15, 20]
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)


def test_hugging_face_reads_it(golden: Path) -> None:
    artifact = open_artifact(str(golden / "out"))
    config = artifact.read_json("config.json")
    model = BertForPreTraining(BertConfig(**{k: v for k, v in config.items() if k != "cloze"}))
    missing, unexpected = model.load_state_dict(
        load(artifact.read_bytes("model.safetensors")), strict=False
    )
    assert not unexpected
    assert set(missing) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert model.config.hidden_act == "gelu_new"


@pytest.mark.parametrize("site", ["after_forward", "before_step", "after_step"])
def test_an_interrupted_run_ends_bit_for_bit_as_if_nothing_had_happened(
    examples: Artifact, golden: Path, tmp_path: Path, site: str
) -> None:
    table = stage_table(tmp_path, examples)
    for step in (3, 12, 17):  # before the first checkpoint, and twice after one
        with pytest.raises(StruckDown):
            run(table, site=site, step=step, do="raise")
    assert run(table).digest == open_artifact(str(golden / "out")).digest


def test_sigterm_saves_at_the_next_step_and_the_run_goes_on_from_there(
    examples: Artifact, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = stage_table(tmp_path, examples, machine={"checkpoint_every": 1000})
    with pytest.raises(Terminated):
        run(table, site="after_backward", step=11, do="terminate")
    assert run(table).digest == open_artifact(str(golden / "out")).digest
    assert "resuming from step 12" in capsys.readouterr().err


def test_a_warm_up_that_outlasts_the_run_is_said_in_its_log(
    examples: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(stage_table(tmp_path, examples, steps=2))
    said = "warning: pretrain: the learning rate never reaches 0.002: optimizer.warmup_steps = 5 of"
    assert capsys.readouterr().err.count(said) == 1


def test_intervals_of_the_machine_change_nothing(
    examples: Artifact, golden: Path, tmp_path: Path
) -> None:
    machine = {"checkpoint_every": 7, "log_every": 3, "keep_checkpoints": 1}
    found = run(stage_table(tmp_path, examples, machine=machine))
    assert found.digest == open_artifact(str(golden / "out")).digest


def word_vectors_artifact(
    directory: Path, *, width: int = 32, tokenizer_digest: str = TOKENIZER.digest
) -> Artifact:
    """Vectors of all word-pieces but the special ones, with a mean square of 1."""
    vectors = np.random.default_rng(3).choice([-1.0, 1.0], (WORDS, width)).astype(np.float32)
    vectors[: len(SPECIAL_TOKENS)] = 0.0
    out = str(directory)
    return commit(
        StageTable(stage="word_vectors", format_version=1, config={}, output=out),
        [put_bytes(out, save_arrays({"vectors": vectors}), name=WORD_VECTORS_FILE)],
        statistics={"tokenizer_digest": tokenizer_digest},
    )


def weights_after(steps: int, table: Path) -> dict[str, torch.Tensor]:
    """The parameters of a run when so many steps have been made, at a rate that is still 0."""
    with pytest.raises(StruckDown):
        run(table, site="before_step", step=steps, do="raise")
    (kept,) = (table.parent / "out" / "checkpoints").glob(f"step-{steps:08}")
    return load_file(kept / "master.safetensors")


def test_training_begins_with_word_vectors_of_the_usual_deviation(
    examples: Artifact, tmp_path: Path
) -> None:
    vectors = word_vectors_artifact(tmp_path / "vectors")
    found = []
    for name, given in (("plain", None), ("static", vectors)):
        directory = tmp_path / name
        directory.mkdir()
        # The rate of the first step is 0, so that it leaves the initial weights as they are.
        machine = {"checkpoint_every": 1}
        encoder = {"initializer_range": 0.05}
        table = stage_table(
            directory, examples, word_vectors=given, machine=machine, encoder=encoder
        )
        found.append(weights_after(1, table))
    plain, static = found
    words = "encoder.embeddings.word_embeddings.weight"
    # 0.8796: what truncation at two sigma leaves of a standard deviation
    expected = 0.05 * 0.8796 * torch.from_numpy(read_word_vectors(vectors))
    special = len(SPECIAL_TOKENS)
    torch.testing.assert_close(static[words][special:], expected[special:])
    assert torch.equal(static[words][:special], plain[words][:special])
    assert plain[words].std().item() == pytest.approx(static[words].std().item(), rel=0.05)
    for name in plain.keys() - {words}:
        assert torch.equal(plain[name], static[name]), name


def test_a_run_with_word_vectors_ends_bit_for_bit_as_if_nothing_had_happened(
    examples: Artifact, golden: Path, tmp_path: Path
) -> None:
    vectors = word_vectors_artifact(tmp_path / "vectors")
    tables = []
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        tables.append(stage_table(tmp_path / name, examples, word_vectors=vectors))
    whole = run(tables[0])
    with pytest.raises(StruckDown):
        run(tables[1], site="before_step", step=12, do="raise")
    assert run(tables[1]).digest == whole.digest
    assert whole.digest != open_artifact(str(golden / "out")).digest


def test_word_vectors_of_another_vocabulary_or_width_are_refused(
    examples: Artifact, tmp_path: Path
) -> None:
    narrow = word_vectors_artifact(tmp_path / "narrow", width=16)
    with pytest.raises(UsageError, match=r"narrow: 16 numbers in a vector.*width is 32"):
        run(stage_table(tmp_path, examples, word_vectors=narrow))
    other = word_vectors_artifact(tmp_path / "other", tokenizer_digest="f" * 64)
    with pytest.raises(UsageError, match=r"other: word vectors: its tokenizer is ffffffffffff"):
        run(stage_table(tmp_path, examples, word_vectors=other))


def test_milestones_are_the_encoders_of_their_steps_and_change_nothing(
    examples: Artifact, golden: Path, tmp_path: Path
) -> None:
    machine = {"milestones": str(tmp_path / "kept"), "checkpoint_every": 10}
    table = stage_table(tmp_path, examples, machine=machine)
    with pytest.raises(StruckDown):
        run(table, site="before_step", step=12, do="raise")
    masters = load_file(tmp_path / "out" / "checkpoints" / "step-00000010" / "master.safetensors")
    assert run(table).digest == open_artifact(str(golden / "out")).digest
    # of 20 steps, 5, 10, 20 and 50 % are steps 1, 2, 4 and 10; 1 and 2 % are none
    (folder,) = (tmp_path / "kept").iterdir()
    kept = sorted(path.name for path in folder.iterdir())
    assert kept == [f"step-{step:08}" for step in (1, 2, 4, 10)]
    # they outlive the run, and are models like any other
    halfway = read_encoder_files(folder / "step-00000010")
    assert halfway.has_pooler and halfway.fills_masks
    assert halfway.parameters.keys() == masters.keys()
    for name, values in halfway.parameters.items():
        assert torch.equal(values, masters[name]), name


def test_milestones_need_a_folder_that_can_be_written(examples: Artifact, tmp_path: Path) -> None:
    elsewhere = stage_table(tmp_path, examples, machine={"milestones": "memory://kept"})
    with pytest.raises(UsageError, match=r"memory://kept.*training\.milestones"):
        run(elsewhere)
    (tmp_path / "file").write_text("in the way")
    blocked = stage_table(tmp_path, examples, machine={"milestones": str(tmp_path / "file")})
    with pytest.raises(ClozeError, match=r"step-00000001.*training\.milestones"):
        run(blocked)


def test_token_budgets_change_the_loss_by_rounding_only(examples: Artifact, tmp_path: Path) -> None:
    curves = []
    for budget in (4096, 64):
        directory = tmp_path / str(budget)
        directory.mkdir()
        run(stage_table(directory, examples, encoder=DRY, machine={"token_budget": budget}))
        curves.append(losses(directory))
    assert max(abs(a - b) for a, b in zip(*curves, strict=True)) < 1e-5


def slow_machine(monkeypatch: pytest.MonkeyPatch) -> FaultHook:
    """Steps of a second by the clock of time limits, and of three seconds from the 17th on."""
    seconds = 0.0

    def step_made(site: str, step: int) -> None:
        nonlocal seconds
        if site == "after_step":
            seconds += 1.0 if step < 16 else 3.0

    limited = partial(Deadline, now=lambda: seconds)
    monkeypatch.setattr("cloze.model.training.pretrain.Deadline", limited)
    return step_made


LIMITED: dict[str, Any] = {"steps": 40, "minutes": 40 / 60, "evaluation_examples": 8}


def test_the_time_is_kept_on_a_machine_that_becomes_busy_and_the_record_repeats_it(
    examples: Artifact,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    busy = slow_machine(monkeypatch)
    (tmp_path / "limited").mkdir()
    (tmp_path / "again").mkdir()
    table = stage_table(tmp_path / "limited", examples, **LIMITED)
    limited = make_encoder(read_stage_table(table), [], fault=busy)
    # 16 s after step 16; four fifths of 40 s are over at 34 s, after step 22; 6 s are left for two
    # steps of 3 s less an evaluation, a third of a step: for one
    found = limited.manifest.statistics
    assert (found["shortened"], found["steps"], found["updates"]) == ([[22, 23]], 23, 23)
    assert "0:34 of 0:40 are over after 22 of 40 steps" in capsys.readouterr().err
    assert len(losses(tmp_path / "limited")) == 23
    recorded = {**LIMITED, "minutes": 0, "shortened": found["shortened"]}
    again = run(stage_table(tmp_path / "again", examples, **recorded))
    for name in ("model.safetensors", "curve.jsonl"):
        assert again.read_bytes(name) == limited.read_bytes(name)


def test_a_run_with_a_time_limit_is_resumed_with_the_time_and_the_end_that_it_had(
    examples: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = slow_machine(monkeypatch)
    table = stage_table(tmp_path, examples, machine={"checkpoint_every": 1}, **LIMITED)
    for last in (9, 21):

        def interrupted(site: str, step: int, last: int = last) -> None:
            busy(site, step)
            if (site, step) == ("before_step", last):
                raise StruckDown

        with pytest.raises(StruckDown):
            make_encoder(read_stage_table(table), [], fault=interrupted)
    found = make_encoder(read_stage_table(table), [], fault=busy).manifest.statistics
    assert (found["shortened"], found["steps"]) == ([[22, 23]], 23)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_zero_stages_change_the_loss_by_rounding_only_and_resume_bit_for_bit(
    examples: Artifact, tmp_path: Path, zero_stage: int
) -> None:
    for name, stage in (("whole", 0), ("sliced", zero_stage), ("struck", zero_stage)):
        (tmp_path / name).mkdir()
        machine = {"zero_stage": stage}
        table = stage_table(tmp_path / name, examples, encoder=DRY, steps=12, machine=machine)
        if name == "struck":
            with pytest.raises(StruckDown):
                run(table, site="after_step", step=8, do="raise")
        run(table)
    whole, sliced, struck = (losses(tmp_path / n) for n in ("whole", "sliced", "struck"))
    assert max(abs(a - b) for a, b in zip(whole, sliced, strict=True)) < 1e-5
    assert struck == sliced


def test_a_checkpoint_of_one_zero_stage_continues_in_another(
    examples: Artifact, tmp_path: Path
) -> None:
    curves = []
    for name, stages in (("one", (0, 0)), ("other", (2, 0))):
        (tmp_path / name).mkdir()
        for stage in stages:
            machine = {"zero_stage": stage}
            table = stage_table(tmp_path / name, examples, encoder=DRY, steps=12, machine=machine)
            if stage == stages[0] and not (tmp_path / name / "out").exists():
                with pytest.raises(StruckDown):
                    run(table, site="after_step", step=7, do="raise")
        run(table)
        curves.append(losses(tmp_path / name))
    assert max(abs(a - b) for a, b in zip(*curves, strict=True)) < 1e-5


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_bf16_trains_and_resumes_bit_for_bit(
    optimizer: str, examples: Artifact, tmp_path: Path
) -> None:
    recipe = {"optimizer": {"name": optimizer}, "precision": "bf16", "steps": 12}
    for name in ("whole", "struck"):
        (tmp_path / name).mkdir()
        table = stage_table(tmp_path / name, examples, **recipe)
        if name == "struck":
            with pytest.raises(StruckDown):
                run(table, site="after_step", step=8, do="raise")
        run(table)
    assert losses(tmp_path / "whole") == losses(tmp_path / "struck")


def test_a_gradient_that_is_not_finite_skips_its_step(examples: Artifact, tmp_path: Path) -> None:
    table = stage_table(tmp_path, examples, steps=8)
    artifact = run(table, site="after_forward", step=4, do="nan")
    assert artifact.manifest.statistics["updates"] == 7
    points = [json.loads(line) for line in artifact.read_bytes("curve.jsonl").splitlines()]
    assert [p["step"] for p in points if "loss" in p] == [1, 2, 3, 4, 6, 7, 8]
    weights = load(artifact.read_bytes("model.safetensors"))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())


def test_many_skipped_steps_in_a_row_end_the_run_and_name_the_rows(
    examples: Artifact, tmp_path: Path
) -> None:
    table = stage_table(tmp_path, examples, machine={"max_skipped_steps": 3})
    with pytest.raises(ClozeError, match=r"3 steps in a row.*step 9 with rows train-32-0000\d"):
        run(table, site="after_forward", step=6, last=99, do="nan")


def test_a_changed_configuration_is_refused_with_a_diff(examples: Artifact, tmp_path: Path) -> None:
    with pytest.raises(StruckDown):
        run(stage_table(tmp_path, examples), site="after_step", step=8, do="raise")
    changed = stage_table(tmp_path, examples, batch_size=4)
    with pytest.raises(UsageError, match=r"pretrain.batch_size: checkpoint 8, now 4"):
        run(changed)


def test_a_damaged_checkpoint_is_named_and_the_one_before_continues(
    examples: Artifact, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = stage_table(tmp_path, examples)
    with pytest.raises(StruckDown):
        run(table, site="after_step", step=13, do="raise")
    newest = max((tmp_path / "out" / "checkpoints").glob("step-*"))
    content = bytearray((newest / "exp_avg.safetensors").read_bytes())
    content[-3] ^= 4
    (newest / "exp_avg.safetensors").write_bytes(content)
    found = run(table)
    message = capsys.readouterr().err
    assert f"{newest} is damaged and not used: exp_avg.safetensors" in message
    assert "resuming from step 5" in message
    assert found.digest == open_artifact(str(golden / "out")).digest


def test_a_full_disk_ends_the_run_and_the_restart_is_bit_for_bit(
    examples: Artifact, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The log is a file too, and so is pytest's captured output, except with `capsys`, which keeps
    # it in memory: neither must be the first to fill the disk, however slow the machine is.
    table = stage_table(tmp_path, examples, machine={"log_every": 1000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(ClozeError, match=r"step-00000010: cannot write.*make room and start"):
            run(table, site="checkpoint.begin", step=10, do="fill")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    left = {path.name for path in (tmp_path / "out" / "checkpoints").iterdir()}
    assert left == {"step-00000005", "metrics.jsonl"}
    assert run(table).digest == open_artifact(str(golden / "out")).digest


def test_offloaded_optimizer_state_changes_nothing_and_resumes_bit_for_bit(
    examples: Artifact, tmp_path: Path
) -> None:
    for name, offloaded in (("here", False), ("offloaded", True)):
        (tmp_path / name).mkdir()
        machine = {"zero_stage": 2, "offload_optimizer": offloaded}
        table = stage_table(tmp_path / name, examples, encoder=DRY, steps=8, machine=machine)
        if offloaded:
            with pytest.raises(StruckDown):
                run(table, site="after_step", step=6, do="raise")
        run(table)
    here, offloaded_losses = losses(tmp_path / "here"), losses(tmp_path / "offloaded")
    assert max(abs(a - b) for a, b in zip(here, offloaded_losses, strict=True)) < 1e-5


def test_two_lengths_are_one_run(examples: Artifact, tmp_path: Path) -> None:
    phases = [{"max_seq_length": 32, "share": 0.75}, {"max_seq_length": 64, "share": 0.25}]
    artifact = run(stage_table(tmp_path, examples, phases=phases, steps=8))
    assert artifact.manifest.statistics["updates"] == 8


def test_without_the_second_objective_the_loss_is_the_first_alone(
    examples: Artifact, tmp_path: Path
) -> None:
    artifact = run(stage_table(tmp_path, examples, steps=3, next_sentence_loss=False))
    lines = [json.loads(line) for line in artifact.read_bytes("curve.jsonl").splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 3
    assert all(line["loss"] == line["masked_lm_loss"] for line in steps)
    assert all(line["next_sentence_loss"] > 0 for line in steps)  # shown nevertheless


def test_lamb_and_dynamic_masks_train(examples: Artifact, tmp_path: Path) -> None:
    recipe = {"optimizer": {"name": "lamb"}, "masks": "dynamic", "steps": 6}
    assert run(stage_table(tmp_path, examples, **recipe)).manifest.statistics["updates"] == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phases": [{"max_seq_length": 128, "share": 1.0}]}, "asks for 128 tokens.*64 positions"),
        ({"optimizer": {"name": "muon"}, "machine": {"zero_stage": 1}}, "zero_stage = 0"),
        (
            {
                "optimizer": {"name": "lamb"},
                "machine": {"zero_stage": 1, "offload_optimizer": True},
            },
            "remove offload_optimizer",
        ),
        ({"machine": {"offload_optimizer": True}}, "set zero_stage = 1, 2 or 3"),
        ({"machine": {"deepspeed": {"seed": 1}}}, "training.deepspeed .* 1, 2 or 3, or leave dee"),
        ({"machine": {"token_budget": 8}}, "token_budget = 8, but pretrain.phases"),
        ({"machine": {"cuda_graphs": True}}, "graphs are for GPUs; leave it out"),
        ({"machine": {"checkpoints": "memory://x"}}, "local or shared file system"),
        ({"machine": {"device": "cpu"}, "precision": "fp8"}, "compute capability 8.9 or higher"),
    ],
)
def test_a_contradiction_is_refused_before_anything_is_trained(
    examples: Artifact, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(stage_table(tmp_path, examples, **changes))
    assert not list(tmp_path.glob("out/checkpoints/step-*"))


def test_a_tokenizer_that_is_not_the_examples_own_is_refused(
    examples: Artifact, tmp_path: Path
) -> None:
    table = read_stage_table(stage_table(tmp_path, examples))
    other = tmp_path / "examples"
    other.mkdir()
    for path in Path(examples.directory).glob("*.*"):
        (other / path.name).write_bytes(path.read_bytes())
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["statistics"]["tokenizer_digest"] = "0" * 64
    (other / "manifest.json").write_text(json.dumps(manifest))
    reference = table.inputs["examples"].model_copy(update={"path": str(other)})
    write_stage_table(
        table.model_copy(update={"inputs": {"examples": reference}}), tmp_path / "table.json"
    )
    with pytest.raises(ClozeError, match="the examples were made with 000000000000"):
        run(tmp_path / "table.json")


def test_training_begins_from_an_existing_encoder_of_the_same_tokenizer_and_shape(
    examples: Artifact, golden: Path, tmp_path: Path
) -> None:
    begin = str(golden / "out")
    optimizer = {"learning_rate": 1e-12, "warmup_steps": 0}
    table = stage_table(tmp_path, examples, init=begin, optimizer=optimizer, steps=2)
    artifacts = run(table), open_artifact(begin)
    found, given = (load(one.read_bytes("model.safetensors")) for one in artifacts)
    assert all(torch.allclose(found[name], given[name], atol=1e-9) for name in given)


def test_the_heads_that_an_initial_encoder_lacks_are_named(
    examples: Artifact, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, bare = open_artifact(str(golden / "out")), tmp_path / "bare"
    run(stage_table(tmp_path, examples, init=trained.directory, steps=1))
    assert "has no " not in capsys.readouterr().err
    bare.mkdir()
    for name in ("config.json", "vocab.txt"):
        (bare / name).write_bytes(trained.read_bytes(name))
    weights = load(trained.read_bytes("model.safetensors"))
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.")}
    save_file(kept, bare / "model.safetensors")
    (tmp_path / "again").mkdir()
    run(stage_table(tmp_path / "again", examples, init=str(bare), steps=1))
    said = f"warning: {bare}: has no masked_lm head and no next_sentence head; random ones begin"
    assert said in capsys.readouterr().err


def test_an_encoder_of_another_shape_is_refused(
    examples: Artifact, golden: Path, tmp_path: Path
) -> None:
    table = stage_table(
        tmp_path, examples, init=str(golden / "out"), encoder={"intermediate_size": 128}
    )
    with pytest.raises(UsageError, match="intermediate_size: it has 64, wanted 128"):
        run(table)


def test_an_encoder_of_another_tokenizer_is_refused(
    examples: Artifact, golden: Path, tmp_path: Path
) -> None:
    trained, other = open_artifact(str(golden / "out")), tmp_path / "other"
    other.mkdir()
    for name in ("config.json", "model.safetensors"):
        (other / name).write_bytes(trained.read_bytes(name))
    *words, one, two = trained.read_bytes("vocab.txt").decode().splitlines()
    (other / "vocab.txt").write_text("\n".join([*words, two, one]))
    with pytest.raises(UsageError, match="its tokenizer is .*, the run's is"):
        run(stage_table(tmp_path, examples, init=str(other)))


def test_activations_computed_again_change_nothing(examples: Artifact, tmp_path: Path) -> None:
    curves = []
    for name, again in (("kept", False), ("again", True)):
        (tmp_path / name).mkdir()
        machine = {"checkpoint_activations": again}
        run(stage_table(tmp_path / name, examples, steps=4, precision="bf16", machine=machine))
        curves.append(losses(tmp_path / name))
    assert curves[0] == curves[1]


def test_a_resumed_run_does_not_keep_what_it_read(examples: Artifact, tmp_path: Path) -> None:
    table = stage_table(tmp_path, examples, steps=8, machine={"checkpoint_every": 3})
    with pytest.raises(StruckDown):
        run(table, site="after_step", step=5, do="raise")
    gc.collect()  # still referenced by exceptions of other tests
    kept: list[int] = []

    def look(site: str, step: int) -> None:
        if site == "before_step":
            kept.append(sum(type(found) is ParameterState for found in gc.get_objects()))

    table = stage_table(tmp_path, examples, steps=8, machine={"checkpoint_every": 100})
    make_encoder(read_stage_table(table), [], fault=look)
    assert kept[0] == 0
    assert len(kept) < 8, "it has gone on from a checkpoint"


def test_a_folder_of_checkpoints_that_two_runs_name_has_one_for_each(
    examples: Artifact, tmp_path: Path
) -> None:
    shared = {"checkpoints": str(tmp_path / "shared")}
    machine = TrainingMachine.model_validate(shared)
    tables = [
        read_stage_table(stage_table(tmp_path / name, examples, machine=shared, steps=steps))
        for name, steps in (("one", 8), ("two", 12))
    ]
    folders = {checkpoint_folder(table, machine) for table in tables}
    assert len(folders) == 2
    assert {folder.parent.parent for folder in folders} == {tmp_path / "shared"}


@pytest.mark.parametrize(
    ("precision", "free", "tokens"),
    [
        # 2 layers of 4 * 64 * 64 + 2 * 64 * 256 weights and (1000 + 64) * 64 embeddings are 166,400
        # parameters: 3,328,000 bytes with 20 each. A token has 2 * 2 * (12 * 64 + 2 * 256) values,
        # 2 * 2 * 64 masks and 2 * 2 * 1000 / 6 logits, 6,043 bytes: 2,048 take 12,375,381.
        ("bf16", 15_704_000, 2048),
        ("bf16", 15_703_000, 1024),
        # In fp32 there are no second weights and gradients, 2,662,400 bytes; a token has 11,829:
        # 1,024 take 12,113,237.
        ("fp32", 14_776_000, 1024),
        ("fp32", 14_775_000, 32),  # one sequence
    ],
)
def test_the_model_takes_what_is_kept_for_each_parameter(
    precision: str, free: int, tokens: int
) -> None:
    shape = {"preset": None, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    shape |= {"intermediate_size": 256, "max_position_embeddings": 64}
    recipe = {"phases": [{"max_seq_length": 32, "share": 1.0}], "precision": precision}
    stage = PretrainStage.model_validate({"seed": 1, "encoder": shape, "pretrain": recipe})
    free_bytes = round(free / GPU_MEMORY_SHARE)
    found = gpu_token_budget(stage, TrainingMachine(), vocabulary_size=1000, free_bytes=free_bytes)
    assert found == tokens


def test_a_mixture_is_recorded_and_interrupted_training_ends_in_the_same_bytes(
    tmp_path: Path,
) -> None:
    examples = examples_artifact(
        tmp_path / "examples", sources={"wiki": 120, "guides": 20}, heldout=20
    )
    phases = [
        {"max_seq_length": 32, "share": 0.5, "mixture": {"guides": 0.1}},
        {"max_seq_length": 32, "share": 0.5, "mixture": {"guides": 0.75}},
    ]
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = run(stage_table(tmp_path / "whole", examples, phases=phases, batch_size=64))
    table = stage_table(tmp_path / "parts", examples, phases=phases, batch_size=64)
    for step in (7, 13):
        with pytest.raises(StruckDown):
            run(table, site="after_step", step=step, do="raise")
    again = run(table)
    assert again.digest == whole.digest
    points = [json.loads(line) for line in whole.read_bytes("curve.jsonl").splitlines()]
    tokens = [point["source_tokens"] for point in points if "source_tokens" in point]
    for half, share in ((tokens[:10], 0.1), (tokens[10:], 0.75)):
        guides = sum(one["guides"] for one in half)
        assert guides / (guides + sum(one["wiki"] for one in half)) == pytest.approx(
            share, abs=0.02
        )
    evaluations = [point["sources"] for point in points if "sources" in point]
    assert [sorted(one) for one in evaluations] == [["guides", "wiki"]] * 2
    assert evaluations[1]["wiki"]["masked_lm_loss"] != evaluations[1]["guides"]["masked_lm_loss"]
    assert whole.manifest.statistics["source_epochs"]["guides"] > 20
