import math
from pathlib import Path
from typing import get_args

import pytest

from cloze.artifacts.results import (
    Baseline,
    EpochRecord,
    SeedScores,
    TaskRecord,
    TaskScore,
    Trial,
    Trials,
    standard_error,
)
from cloze.model.config import Benchmark, EncoderConfig, FinetuneConfig, TaskConfig
from cloze.model.evaluation.evaluate import glue_average, reference_scores, task_scores
from cloze.model.finetune.trials import TrialPlan, grid_points
from cloze.model.glue import GLUE, task_fields
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.problems import load_problem, load_tables
from cloze.paper.server_formats import submission, submission_name
from tests.model.task_builders import TINY, TOKENIZER


def test_a_summary_shows_every_value_and_its_error() -> None:
    summary = SeedScores.of([0.6, 0.7, 0.8])
    assert summary.values == (0.6, 0.7, 0.8)
    assert summary.mean == pytest.approx(0.7)
    assert summary.median == 0.7
    assert summary.standard_error == pytest.approx(0.1 / math.sqrt(3))
    assert standard_error([0.5]) == 0.0


def fits(pretrained: list[float], random: list[float], **changes: object) -> Trials:
    def record(system: str, seed: int, value: float) -> Trial:
        return Trial(
            task="t",
            kind="tagging",
            metric="accuracy",
            system=system,
            seed=seed,
            batch_size=16,
            learning_rate=1e-3,
            steps=10,
            epochs=(EpochRecord(epoch=1, train_loss=1.0, dev={"accuracy": value}),),
            chosen_epoch=1,
            dev={"accuracy": value},
            test={"accuracy": value},
        )

    task = TaskRecord.model_validate(
        {
            "name": "t",
            "kind": "tagging",
            "metrics": ("accuracy",),
            "examples": {"train": 10, "dev": 10, "test": 10},
            "truncated": 0,
            "baselines": (Baseline(name="lookup", dev={"accuracy": 0.6}, test={"accuracy": 0.6}),),
            **changes,
        }
    )
    runs = [record("random", seed, value) for seed, value in enumerate(random)]
    runs += [record("pretrained", seed, value) for seed, value in enumerate(pretrained)]
    return Trials(tasks=(task,), trials=tuple(runs))


def verdicts(pretrained: list[float], random: list[float]) -> TaskScore:
    return task_scores(fits(pretrained, random), TINY, published={})[0]


def test_a_win_needs_three_points_and_a_significant_difference() -> None:
    clear = verdicts([0.80, 0.81, 0.82], [0.70, 0.715, 0.72])
    wins = [("lookup", "win"), ("random", "win")]
    assert [(c.against, c.outcome) for c in clear.comparisons] == wins
    small = verdicts([0.71, 0.722, 0.73], [0.70, 0.71, 0.72]).comparisons[1]
    assert small.outcome == "gain"
    assert "by less than 3 points" in small.statement
    noisy = verdicts([0.60, 0.80, 1.00], [0.70, 0.70, 0.70]).comparisons[1]
    assert noisy.outcome == "none"
    assert noisy.statement.startswith("no clear difference")
    worse = verdicts([0.50, 0.512, 0.52], [0.70, 0.71, 0.72]).comparisons[1]
    assert worse.statement.startswith("pretrained loses to random: -19.9")


def test_three_seeds_four_standard_errors_apart_are_no_clear_difference() -> None:
    """With two degrees of freedom that happens by chance in one of fourteen comparisons."""
    (_, found) = verdicts([0.80, 0.82, 0.84], [0.71, 0.75, 0.81]).comparisons
    assert 3 < found.difference / found.standard_error < 4.3
    assert found.outcome == "none"
    assert found.p_value == pytest.approx(0.0696, abs=5e-4)


def test_one_seed_or_equal_seeds_give_no_verdict() -> None:
    assert {c.outcome for c in verdicts([0.9], [0.1]).comparisons} == {"undecided"}
    equal = verdicts([0.9, 0.9, 0.9], [0.1, 0.1, 0.1]).comparisons[1]
    assert equal.statement == (
        "no verdict on pretrained and random with equal differences for all seeds: +80.0 points, "
        "3 seeds"
    )


def test_a_p_value_is_corrected_for_the_tasks_beside_it() -> None:
    one = fits([0.80, 0.82, 0.84], [0.73, 0.75, 0.80])
    alone = task_scores(one, TINY, published={})[0].comparisons[1]
    noise = fits([0.60, 0.80, 1.00], [0.70, 0.70, 0.70])
    others = [
        (
            task.model_copy(update={"name": f"t{n}"}),
            [trial.model_copy(update={"task": f"t{n}"}) for trial in noise.trials],
        )
        for n in range(3)
        for task in noise.tasks
    ]
    among = Trials(
        tasks=(*one.tasks, *(task for task, _ in others)),
        trials=(*one.trials, *(trial for _, found in others for trial in found)),
    )
    beside = task_scores(among, TINY, published={})[0].comparisons[1]
    assert alone.outcome == "win"
    assert beside.p_value == alone.p_value
    assert beside.corrected == pytest.approx(4 * (alone.p_value or 0))
    assert beside.outcome == "none"


def test_systems_come_from_the_simplest_to_ours_with_their_curves() -> None:
    score = verdicts([0.8, 0.9], [0.7, 0.7])
    assert [system.name for system in score.systems] == ["lookup", "random", "pretrained"]
    assert [len(curve.points) for curve in score.curves] == [1] * 4


def test_grid_points_do_not_count_as_seeds() -> None:
    found = fits([0.8], [0.7])
    tried = found.trials[1].model_copy(update={"point": "b16-lr5e-05-e2", "dev": {"accuracy": 0.1}})
    every = found.model_copy(update={"trials": (*found.trials, tried)})
    (score,) = task_scores(every, TINY, published={})
    assert score.systems[-1].trials == 1


def test_the_glue_average_is_that_of_glue_tasks_without_wnli() -> None:
    sst = fits([0.8, 0.9], [0.5, 0.5], glue="SST-2")
    assert glue_average(sst, task_scores(sst, TINY, published={})) == pytest.approx(0.85)
    for name in ("", "WNLI"):
        other = fits([0.8], [0.5], glue=name)
        assert glue_average(other, task_scores(other, TINY, published={})) is None


def test_mnli_counts_twice_in_the_glue_average() -> None:
    """Table 1, base: the mean of nine columns is 79.6; of eight tasks it would be 79.1."""
    test = {"QQP": 71.2, "QNLI": 90.5, "SST-2": 93.5, "CoLA": 52.1, "STS-B": 85.8}
    test |= {"MRPC": 88.9, "RTE": 66.4, "MNLI": 84.6, "WNLI": 65.1}
    tasks, found = [], []
    for name, percent in test.items():
        one = fits([percent / 100], [0.5], name=name, glue=name)
        tasks += one.tasks
        more = {"dev_mismatched": {"accuracy": 0.834}} if name == "MNLI" else {}
        found += [trial.model_copy(update={"task": name, "more": more}) for trial in one.trials]
    trials = Trials(tasks=tuple(tasks), trials=tuple(found))
    average = glue_average(trials, task_scores(trials, TINY, published={}))
    assert average == pytest.approx(0.796, abs=5e-5)


def test_published_figures_stand_beside_the_same_size_only() -> None:
    (tiny,) = reference_scores("SST-2", EncoderConfig(preset="tiny"))
    assert (tiny.system, round(tiny.value, 4)) == ("BERT-Tiny", 0.832)
    (base,) = reference_scores("CoLA", EncoderConfig())
    assert base.value == pytest.approx(0.521)
    assert reference_scores("SST-2", TINY) == ()
    assert reference_scores("", EncoderConfig()) == ()


def test_figures_of_the_paper_stand_beside_the_task_that_is_called_so() -> None:
    found = fits([0.8], [0.5])
    called = task_scores(found, EncoderConfig(), published={"t": "CoNLL-2003"})[0].published
    assert [(p.split, p.metric, round(100 * p.value, 1)) for p in called] == [
        ("dev", "entity_f1", 96.4),
        ("test", "entity_f1", 92.4),
    ]
    assert task_scores(found, EncoderConfig(), published={"other": "SWAG"})[0].published == ()


@pytest.mark.parametrize("task", [*get_args(Benchmark), *sorted(set(GLUE) - {"WNLI"})])
def test_every_task_that_can_be_named_has_its_figures_for_the_large_encoder(task: str) -> None:
    large = reference_scores(task, EncoderConfig(preset="large"))
    assert {score.system for score in large} == {"BERT-large"}
    assert all(0.5 < score.value < 1.0 for score in large)


def test_every_glue_task_is_a_whole_task() -> None:
    for name in GLUE:
        task = TaskConfig.model_validate({"name": name, "glue": name, "folder": "glue"})
        assert task.train == "glue/train.tsv"
        assert task.metrics
    mnli = TaskConfig.model_validate({"name": "m", "glue": "MNLI", "folder": "f"})
    assert mnli.dev == "f/dev_matched.tsv"
    assert set(mnli.more) == {"dev_mismatched", "test_mismatched", "diagnostic"}
    assert task_fields("CoLA", "f")["columns"] == {"text_a": "3", "label": "1"}


def test_what_the_user_says_goes_before_the_table() -> None:
    task = TaskConfig.model_validate(
        {"name": "x", "glue": "MRPC", "folder": "f", "metrics": ["accuracy"], "test": ""}
    )
    assert task.metrics == ("accuracy",)
    assert task.test == ""


def submitted(config: dict[str, object], tables: dict[str, TaskTable], found: list) -> dict:
    task = TaskConfig.model_validate({"name": "x", "max_seq_length": 64, **config})
    return submission(load_problem(task, TOKENIZER, tables), "test", found)


def test_submissions_have_the_servers_form() -> None:
    test = TaskTable("test.tsv", {"text_a": ["a", "b", "c"], "text_b": ["d", "e", "f"]})
    rte = submitted(
        {"glue": "RTE", "folder": "f"}, {"test": test}, ["entailment", "not_entailment", "x"]
    )
    assert rte == {"RTE.tsv": b"index\tprediction\n0\tentailment\n1\tnot_entailment\n2\tx\n"}
    sts = submitted({"glue": "STS-B", "folder": "f"}, {"test": test}, [5.2, -0.1, 2.34567])
    assert sts["STS-B.tsv"].split()[2:] == [b"0", b"5.000", b"1", b"0.000", b"2", b"2.346"]
    asked = TaskTable("x.json", {"id": ["a"], "question": ["b"], "context": ["c"]})
    spans = submitted(
        {"kind": "span"}, {"test": asked}, [{"text": "Zürich", "best": "Zürich", "margin": -1.5}]
    )
    assert spans["test-predictions.json"].decode() == '{\n "a": "Zürich"\n}\n'
    assert spans["test-null_odds.json"] == b'{\n "a": -1.5\n}\n'
    names = [submission_name("MNLI", split) for split in ("test", "test_mismatched", "diagnostic")]
    assert names == ["MNLI-m", "MNLI-mm", "AX"]


def test_the_papers_grid_has_eighteen_points() -> None:
    config = FinetuneConfig.model_validate({"grid": {}})
    task = TaskConfig(name="t", kind="tagging")
    job = TrialPlan(None, task, "pretrained", 0)  # type: ignore[arg-type]  # the problem is not used
    assert config.grid is not None
    points = grid_points(job, config.grid)
    assert len({point.name for point in points}) == 18
    assert {p.task.learning_rate for p in points} == {5e-5, 3e-5, 2e-5}


def mnli_folder(folder: Path) -> None:
    """The official layout of MNLI, with two lines per file."""
    begin = "index\tpromptID\tpairID\tgenre\ts1bp\ts2bp\ts1p\ts2p\tsentence1\tsentence2"
    row = "\t".join(str(n) for n in range(8)) + "\tthe list\ta list"
    for name, labels, end in (
        ("train.tsv", "label1\tgold_label", "\tneutral\tentailment"),
        ("dev_matched.tsv", "label1\tgold_label", "\tneutral\tneutral"),
        ("dev_mismatched.tsv", "label1\tgold_label", "\tneutral\tcontradiction"),
        ("test_matched.tsv", "", ""),
    ):
        header = f"{begin}\t{labels}" if labels else begin
        (folder / name).write_text(f"{header}\n{row}{end}\n{row}{end}\n")


def test_mnli_is_read_in_its_official_layout(tmp_path: Path) -> None:
    mnli_folder(tmp_path)
    task = TaskConfig.model_validate({"name": "m", "glue": "MNLI", "folder": str(tmp_path)})
    tables = load_tables(task)
    assert set(tables) == {"train", "dev", "dev_mismatched", "test"}
    assert tables["dev_mismatched"].columns["label"] == ["contradiction"] * 2
    assert not tables["test"].has("label")
