"""Expected durations of stages, from earlier runs or rates."""

import json
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.store import processor
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.expected import (
    START_SECONDS,
    Announced,
    ExpectedTime,
    Timed,
    Work,
    expected_times,
    matrix_rates,
    seconds_by_rates,
    training_seconds,
)
from cloze.flows.plan import Plan
from cloze.flows.workspace import read_record, workspace, write_record
from cloze.model.config import TaskConfig, TrainingMachine
from cloze.model.hardware import machine_precision
from tests.conftest import PROJECT


@dataclass(frozen=True)
class Measured:
    """Seconds that the stages of a configuration took on two otherwise idle cores."""

    config: str
    precision: str
    rates: dict[str, float]
    steps: int
    seconds: dict[str, float]


MEASURED = {
    "AMX": Measured(
        *("demo", "bf16", {"fp32": 370e9, "bf16": 2800e9}, 8000),
        {"pretrain": 386.0, "finetune": 69.0, "evaluate": 26.0},
    ),
    "AVX-512 BF16": Measured(
        *("demo", "bf16", {"fp32": 487e9, "bf16": 996e9}, 8000),
        {
            **{"tokens": 2.4, "examples": 1.5, "pretrain": 480.2, "finetune": 74.7},
            **{"evaluate": 17.4, "report": 2.0},
        },
    ),
    "AVX2": Measured(
        *("demo", "fp32", {"fp32": 252e9}, 2000),
        {
            **{"vocabulary": 5.5, "tokens": 2.2, "examples": 1.4, "pretrain": 316.0},
            **{"finetune": 189.7, "evaluate": 25.3, "report": 2.2},
        },
    ),
    "little": Measured(
        *("smoke", "bf16", {"fp32": 487e9, "bf16": 996e9}, 40),
        {"vocabulary": 1.2, "finetune": 6.6, "evaluate": 4.1, "report": 2.0},
    ),
}
"""With AVX-512 BF16 and AVX2, on a Zen 5 of 2026-11-27, in the second case limited to AVX2."""


TRAINED = ("pretrain", "finetune")
PRETRAIN = {"steps": 40, "batch_size": 16, "phases": [{"max_seq_length": 128, "share": 1.0}]}


@pytest.fixture
def small(run_table: dict[str, Any]) -> dict[str, Any]:
    return {**run_table, "encoder": {"preset": "tiny"}, "pretrain": PRETRAIN}


def on(machine: MachineConfig, device: str) -> MachineConfig:
    """The machine, with its models on this device, whatever this one has."""
    return machine.model_copy(update={"training": TrainingMachine(device=device)})


def expected(
    table: dict[str, Any], machine: MachineConfig, *stages: str, rate: float | None = None
) -> dict[str, ExpectedTime]:
    run, space = RunConfig.model_validate(table), workspace(machine.workspace)
    found = expected_times(run, machine, stages, space=space, rate=rate)
    return {one.stage: one for one in found}


def test_a_given_rate_is_reckoned_with_instead_of_a_measured_one(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    here = on(machine, "cpu")
    slow, slower = (
        expected(small, here, "pretrain", rate=rate)["pretrain"] for rate in (2e10, 1e10)
    )
    assert slow.seconds < slower.seconds
    assert slow.basis.startswith("no GPU; 20 GFLOP/s")


@pytest.fixture
def took_a_minute(
    inline: Callable[..., None], small: dict[str, Any], machine: MachineConfig
) -> None:
    """A finished run, whose pre-training took a minute."""
    execute(Plan(RunConfig.model_validate(small), machine))
    space = workspace(machine.workspace)
    record = read_record(space, "try")
    assert record.stages["pretrain"].load is not None
    minute = record.stages["pretrain"].model_copy(update={"seconds": 60.0, "load": 1.0})
    stages = {**record.stages, "pretrain": minute}
    write_record(record.model_copy(update={"stages": stages}), space)


@pytest.mark.usefixtures("took_a_minute")
def test_what_another_processor_took_is_no_measure(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    space = workspace(machine.workspace)
    record = read_record(space, "try")
    assert record.stages["pretrain"].processor == processor()
    stages = {
        name: stage.model_copy(update={"processor": "Another 9000"})
        for name, stage in record.stages.items()
    }
    write_record(record.model_copy(update={"stages": stages}), space)
    basis = expected(small, machine, "pretrain", rate=2e10)["pretrain"].basis
    assert basis.startswith("no GPU; 20 GFLOP/s")


@pytest.mark.usefixtures("took_a_minute")
@pytest.mark.parametrize(("load", "is_said"), [(1.1, False), (2.6, True), (None, False)])
def test_an_estimate_from_a_run_beside_other_programs_says_so(
    small: dict[str, Any], machine: MachineConfig, load: float | None, is_said: bool
) -> None:
    space = workspace(machine.workspace)
    record = read_record(space, "try")
    stages = {
        name: stage.model_copy(update={"load": load}) for name, stage in record.stages.items()
    }
    write_record(record.model_copy(update={"stages": stages}), space)
    basis = expected(small, machine, "pretrain")["pretrain"].basis
    assert basis == "as in run try" + (
        ", slowed down by other programs (2.6 processes per core)" if is_said else ""
    )


@pytest.mark.usefixtures("took_a_minute")
def test_the_same_run_takes_what_it_took_before(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    found = expected(small, machine, "pretrain", "report")
    assert found["pretrain"] == ExpectedTime("pretrain", 60.0, "as in run try")
    assert found["report"].seconds == 1.5


@pytest.mark.usefixtures("took_a_minute")
def test_a_run_in_another_precision_is_no_measure(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    (other,) = {"fp32", "bf16"} - {machine_precision()[0]}
    computed_so = {**small, "pretrain": {**PRETRAIN, "precision": other}}
    found = expected(computed_so, machine, "pretrain", rate=2e10)["pretrain"]
    assert found.basis.startswith("no GPU; 20 GFLOP/s")


@pytest.mark.usefixtures("took_a_minute")
def test_what_is_beyond_the_start_grows_with_the_work(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    longer = {**small, "pretrain": {**PRETRAIN, "steps": 400, "evaluate_every": 4000}}
    found = expected(longer, machine, "pretrain")["pretrain"]
    start = START_SECONDS["pretrain"]
    assert found.seconds == pytest.approx(start + 10 * (60.0 - start))
    assert found.basis == "scaled from run try"


@pytest.mark.usefixtures("took_a_minute")
def test_a_run_that_hardly_did_more_than_start_says_nothing_of_more_work(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    longer = {**small, "finetune": {**small["finetune"], "seeds": list(range(500))}}
    found = expected(longer, on(machine, "cpu"), "finetune", rate=5e10)["finetune"]
    assert found.basis.startswith("no GPU")
    assert found.seconds > 2 * START_SECONDS["finetune"]


def test_the_time_of_training_is_scaled_from_what_was_timed_whatever_starts_took(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    space, run = workspace(machine.workspace), RunConfig.model_validate(small)
    few = {**small, "pretrain": {**PRETRAIN, "steps": 4, "evaluate_every": 4000}}
    timed = Timed(RunConfig.model_validate(few), seconds=0.2)
    more = {**small, "pretrain": {**PRETRAIN, "steps": 400, "evaluate_every": 4000}}
    wanted = RunConfig.model_validate(more)
    found = training_seconds(wanted, machine, "pretrain", space=space, timed=timed)
    assert found == pytest.approx(20.0)
    assert training_seconds(run, machine, "pretrain", space=space) > 0.0


@pytest.mark.usefixtures("took_a_minute")
def test_training_that_took_no_longer_than_a_start_is_not_scaled_to_nothing(
    small: dict[str, Any], machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose programs start faster than those that START_SECONDS was measured on."""
    monkeypatch.setattr("cloze.flows.expected.matrix_rates", lambda: {"fp32": 5e10})
    space, here = workspace(machine.workspace), on(machine, "cpu")

    def seconds(steps: int) -> float:
        longer = {**small, "pretrain": {**PRETRAIN, "steps": steps, "evaluate_every": 4000}}
        run = RunConfig.model_validate(longer)
        return training_seconds(run, here, "pretrain", space=space)

    assert seconds(40) == pytest.approx(60.0 - START_SECONDS["pretrain"])
    monkeypatch.setitem(START_SECONDS, "pretrain", 59.0)
    assert 0 < seconds(40) != pytest.approx(1.0)
    assert seconds(80) == pytest.approx(2 * seconds(40))


@pytest.mark.parametrize("measured", MEASURED.values(), ids=MEASURED)
def test_every_stage_takes_what_it_took_within_a_factor_of_one_and_a_half(
    measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    megabytes = {"fsspec": 0.8, "networkx": 6.47, "joblib": 0.86, "numpy": 9.12, "scipy": 20.76}
    megabytes |= {"pandas": 24.54, "scikit-learn": 13.44, "statsmodels": 15.34, "xarray": 6.94}
    others = 172.4 / 15  # the demo's other packages have 268.6 together
    monkeypatch.setattr(
        "cloze.flows.expected._source_bytes", lambda p: 1e6 * megabytes.get(p, others)
    )
    monkeypatch.setattr("cloze.flows.expected.cores", lambda: 2)
    monkeypatch.setattr("cloze.flows.expected.matrix_rates", lambda: measured.rates)
    monkeypatch.setattr("cloze.flows.expected.parsed_distributions", lambda: 1000)
    machine = MachineConfig.model_validate(
        {
            "pipeline": {"workers": 2},
            "workspace": str(tmp_path),
            "training": {"device": "cpu"},
        }
    )
    table = tomllib.loads((PROJECT / "configs" / f"{measured.config}.toml").read_text())
    for part in TRAINED:  # as `auto` was decided on that machine
        table[part]["precision"] = measured.precision
    table["pretrain"]["steps"] = measured.steps
    table.pop("processors", None)  # all were measured with the demo's whole width
    for stage, found in expected(table, machine, *measured.seconds).items():
        assert 1 / 1.5 < found.seconds / measured.seconds[stage] < 1.5, found


def test_without_a_gpu_and_an_earlier_run_this_machines_rate_is_measured(
    small: dict[str, Any], machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.flows.expected.matrix_rates", lambda: {"fp32": 5e10, "bf16": 1e11})
    machine = on(machine, "cpu")
    small = {**small, **{part: {**small[part], "precision": "bf16"} for part in TRAINED}}
    found = expected(small, machine, "vocabulary", "pretrain", "finetune", "evaluate")
    assert found["pretrain"].basis == "no GPU; 100 GFLOP/s measured on this machine"
    assert all(one.seconds > START_SECONDS[one.stage] for one in found.values())

    def working() -> float:
        return expected(small, machine, "pretrain")["pretrain"].seconds - START_SECONDS["pretrain"]

    once = working()
    small["pretrain"] = {**small["pretrain"], "steps": 80}  # of 40
    assert working() == pytest.approx(2 * once)
    # Products are faster, what is done to each of their elements is not.
    monkeypatch.setattr("cloze.flows.expected.matrix_rates", lambda: {"bf16": 2e11})
    assert once < working() < 2 * once


def test_without_torch_a_rate_is_assumed(
    small: dict[str, Any], machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.flows.expected.matrix_rates", dict)
    found = expected(small, on(machine, "cpu"), "pretrain")["pretrain"]
    assert found.basis == "no GPU; 200 GFLOP/s assumed, since torch could not be run"


def test_the_work_of_fine_tuning_a_given_encoder_is_that_of_its_shape(tmp_path: Path) -> None:
    def flops(width: int) -> float:
        sizes = {"hidden_size": width, "intermediate_size": 4 * width}
        heads = {"num_hidden_layers": 2, "num_attention_heads": 2}
        (tmp_path / f"h{width}").mkdir(exist_ok=True)
        (tmp_path / f"h{width}" / "config.json").write_text(json.dumps({**sizes, **heads}))
        task = {"name": "t", "kind": "classification", "train": "t.csv"}
        table = {"encoder": str(tmp_path / f"h{width}"), "tasks": [task]}
        return Work(RunConfig.model_validate({"name": "r", "finetune": table})).of("finetune")

    assert 3.0 * flops(64) < flops(128) < 4.5 * flops(64)


def test_the_work_of_fine_tuning_grows_with_the_text_of_its_file(tmp_path: Path) -> None:
    def flops(name: str, content: str, kind: str = "classification") -> float:
        (tmp_path / name).write_text(content)
        task = {"name": "t", "kind": kind, "train": str(tmp_path / name)}
        table = {"encoder": str(tmp_path / "none"), "tasks": [task]}
        return Work(RunConfig.model_validate({"name": "r", "finetune": table})).of("finetune")

    short, long = (flops("t.tsv", f"good\t{'fine ' * words}\n" * 100) for words in (5, 50))
    assert 4 * short < long < 12 * short
    sentences = flops("t.conll", ("word O\n" * 10 + "\n") * 100, kind="tagging")
    assert sentences < 2 * long, "a line of a tagged file is a word, no example"


def test_a_reranker_reads_every_candidate_and_mining_every_text_once(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"query": "a b c", "passage": "d e f"}\n' * 40)

    def work(stage: str, **settings: Any) -> float:
        task = {"name": "r", "kind": "reranking", "train": str(path), "epochs": 1, **settings}
        finetune = {"encoder": "somewhere", "tasks": [task], "seeds": [0]}
        table = {"name": "r", "finetune": finetune, "negatives": {}}
        return Work(RunConfig.model_validate(table)).of(stage)

    lists = {count: work("finetune", reranking={"negatives": count}) for count in (1, 7)}
    assert lists[7] == pytest.approx(4 * lists[1])
    assert work("negatives") == pytest.approx(lists[1] / 2 / 3)  # without the backward pass


def test_a_collection_is_read_for_each_held_out_file_whatever_the_judgments_say(
    tmp_path: Path,
) -> None:
    judged, passages = tmp_path / "train.tsv", tmp_path / "corpus.jsonl"
    judged.write_text("query-id\tcorpus-id\tscore\n" + "q\td\t1\n" * 39)

    def work(length: int, *, count: int = 1000, **held_out: str) -> float:
        passages.write_text((json.dumps({"_id": "d", "text": "x" * length}) + "\n") * count)
        task = {"name": "r", "kind": "retrieval", "train": str(judged), "epochs": 1, **held_out}
        task["collection"] = {"passages": str(passages)}
        finetune = {"encoder": "somewhere", "tasks": [task], "seeds": [0]}
        return Work(RunConfig.model_validate({"name": "r", "finetune": finetune})).of("finetune")

    trained = work(200, dev="")
    assert work(400, dev="") > 1.5 * trained  # ids are short, their texts are not
    one = work(200, test="a.tsv") - trained
    assert one == pytest.approx(1000 / 40 / 3 * trained)  # forward passes, without the backward one
    assert work(200, dev="b.tsv", test="a.tsv") - trained == pytest.approx(2 * one)
    assert work(200, count=3000, test="a.tsv") - trained == pytest.approx(3 * one)


def test_without_a_corpus_the_evaluation_judges_no_held_out_text() -> None:
    task = {"name": "t", "kind": "classification", "train": "t.csv"}
    table = {"name": "r", "finetune": {"encoder": "given", "tasks": [task]}}
    assert Work(RunConfig.model_validate(table)).of("evaluate") == 0.0


def test_word_vectors_of_ninety_million_tokens_take_half_a_minute(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    with text.open("wb") as file:
        file.truncate(415_000_000)  # 90 million word-pieces; only its size is asked for
    table = {
        "name": "r",
        "corpus": {"sources": [{"reader": "text", "path": str(text)}]},
        "vocabulary": {"size": 8192},
        "encoder": {"preset": "tiny"},
    }
    work = Work(RunConfig.model_validate({**table, "word_vectors": {}}))
    seconds, _ = seconds_by_rates("word_vectors", work, MachineConfig())
    assert 28 < seconds < 45  # measured: 36
    assert Work(RunConfig.model_validate(table)).of("word_vectors") == 0.0


def test_a_gpu_is_reckoned_with_at_its_configured_rate(
    small: dict[str, Any], machine: MachineConfig
) -> None:
    found = expected(small, on(machine, "cuda"), "pretrain")["pretrain"]
    assert found.basis == "300 TFLOP/s (rates.gpu_tflops)"


def fine_tuning(small: dict[str, Any], **settings: object) -> float:
    """The work of fine-tuning with one seed, or other settings."""
    table = {**small, "finetune": {**small["finetune"], "seeds": [0], **settings}}
    return Work(RunConfig.model_validate(table)).of("finetune")


def test_seeds_and_initialisations_multiply_the_work_of_fine_tuning(small: dict[str, Any]) -> None:
    found = fine_tuning(small, seeds=[0, 1], initialisations=("pretrained", "random"))
    assert found == pytest.approx(4 * fine_tuning(small))


def test_a_grid_is_searched_for_each_initialisation_and_takes_the_place_of_a_seed(
    small: dict[str, Any],
) -> None:
    once, both = fine_tuning(small), ("pretrained", "random")
    # Two rates, two batches, and as many epochs as without a grid, or three times as many.
    epochs = TaskConfig(name="parts", kind="tagging").epochs
    grid = {"batch_sizes": [8, 16], "learning_rates": [1e-5, 2e-5], "epochs": [epochs, 3 * epochs]}
    searched = 2 * 2 * (1 + 3)
    assert fine_tuning(small, grid=grid) == pytest.approx(searched * once)
    more = fine_tuning(small, grid=grid, seeds=[0, 1], initialisations=both)
    assert more == pytest.approx(2 * (searched + 1) * once)


def test_the_measured_rates_are_some_that_a_processor_can_have() -> None:
    precision, _ = machine_precision()
    assert {"fp32", precision} == matrix_rates().keys()
    assert all(1e8 < rate < 1e14 for rate in matrix_rates().values())


def test_a_small_folder_has_fewer_pairs_than_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The lake is deep. " * 1_000)
    recipe = {
        "pairs": {"sources": [{"reader": "text", "path": str(tmp_path)}]},
        "distill": {"teacher": "nowhere"},
        "name": "small",
    }
    some = Work(RunConfig.model_validate(recipe)).of("lessons")
    (tmp_path / "b.txt").write_text("The lake is deep. " * 3_000)
    assert Work(RunConfig.model_validate(recipe)).of("lessons") == pytest.approx(4 * some)


def test_a_late_stage_corrects_what_is_left_and_gives_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def announced() -> Announced:
        return Announced([ExpectedTime("pretrain", 60.0, ""), ExpectedTime("finetune", 30.0, "")])

    monkeypatch.setattr("cloze.flows.expected.load_per_core", lambda: 2.0)
    assert announced().correction("pretrain", 120.0) == (
        "took 2:00, not 1:00: other programs take their share of this machine (2.0 processes per "
        "core); at this pace the rest takes 1:00, not 0:30"
    )
    monkeypatch.setattr("cloze.flows.expected.load_per_core", lambda: 1.0)
    assert "sustain" in announced().correction("pretrain", 120.0)
    assert not announced().correction("pretrain", 70.0)
    assert not announced().correction("never announced", 70.0)
    short = Announced([ExpectedTime("vocabulary", 7.0, ""), ExpectedTime("pretrain", 600.0, "")])
    assert not short.correction("vocabulary", 23.0)  # files read from a cold disk
    last = announced()
    last.correction("pretrain", 60.0)
    assert not last.correction("finetune", 90.0)  # nothing is left


def test_a_late_stage_is_noticed_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cloze.flows.expected.WORTH_CORRECTING", 0.0)
    announced = Announced([ExpectedTime("pretrain", 0.01, ""), ExpectedTime("finetune", 60.0, "")])
    with announced.watching("finetune"):
        pass
    said = ""
    with announced.watching("pretrain"):
        until = time.monotonic() + 30
        while not said and time.monotonic() < until:
            said += capsys.readouterr().err
            time.sleep(0.01)
    assert said.startswith("pretrain: longer than the 0:00 expected: ")
