"""Collecting the summary from artifacts."""

import json
import re
from pathlib import Path

import pytest

from cloze.artifacts.manifest import Manifest
from cloze.artifacts.results import MaskedSentences, Scores
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact, commit, put_json
from cloze.flows.config import ReportConfig, RunConfig
from cloze.flows.report import wording as words
from cloze.flows.report.__main__ import make_report
from cloze.flows.report.collect import (
    changed_settings,
    collect,
    collect_grid,
    collect_mixture,
    length_at,
    powers_of_two,
    rank_frequency,
    training_clock,
)
from cloze.flows.report.figures import figures, read_summary, terminal_lines
from cloze.flows.report.page import render
from cloze.flows.report.plots import companions, learning_curve, source_losses, story
from cloze.flows.report.summary import MixedSource, Summary
from cloze.flows.stages import chain
from cloze.flows.workspace import Workspace
from tests.flows.report.report_run import (
    LANGUAGE_MODEL,
    METRICS,
    RUN,
    SENTENCES,
    TASK,
    report_table,
)


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return collect(report_table(tmp_path_factory.mktemp("run")))


def test_the_made_up_scores_have_the_form_that_the_evaluation_writes() -> None:
    Scores.model_validate({"parameters": 1, "language_model": [LANGUAGE_MODEL], "tasks": [TASK]})
    MaskedSentences.model_validate(SENTENCES)


def test_an_encoder_that_came_finished_is_told_without_a_word_about_a_corpus(
    tmp_path: Path,
) -> None:
    table = report_table(tmp_path, present=("finetune", "evaluate"))
    config = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12}
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({**config, "intermediate_size": 3072, "vocab_size": 30522})
    )
    encoder = InputRef(digest="0" * 64, path=str(folder))
    inputs = {**table.inputs, "encoder": encoder}
    summary = collect(table.model_copy(update={"inputs": inputs}))
    assert summary.encoder is not None
    assert words.shape(summary.encoder) == (
        "BERT-base: 12 layers × 768, 12 heads, 30,522 word-pieces, 1,000 parameters"
    )
    assert words.lede(summary.model_copy(update={"language_model": ()})) == [
        "The encoder was trained elsewhere and fine-tuned here: 4 trials on 1 task."
    ]
    assert [step.stage for step in summary.steps] == ["finetune", "evaluate"]
    page = render(summary)
    assert "It was trained on" not in page
    assert "cloze export" not in page


def test_the_corpus_is_told_whole(summary: Summary) -> None:
    corpus = summary.corpus
    assert corpus is not None
    assert [split.name for split in corpus.splits] == ["train", "package"]
    assert corpus.dropped == {"duplicate": 4, "empty": 1}
    assert [(source.what, source.split) for source in corpus.sources] == [
        ("numpy, pandas", "train"),
        ("rich", "package"),
    ]
    assert [piece.text for piece in corpus.frequent] == ["the", "xylophone", "<b>", "a"]
    assert corpus.unigram_entropy == pytest.approx(1.2183, abs=1e-4)


def test_examples_are_told_with_masks_and_what_length_gives_away(summary: Summary) -> None:
    (examples,) = summary.examples
    assert (examples.copies, examples.examples, examples.masked) == (2, 80, 1000)
    assert (examples.as_mask, examples.as_random, examples.kept) == (800, 101, 99)
    assert (examples.random_next_share, examples.length_only_accuracy) == (0.575, 0.6125)
    lengths = examples.lengths
    assert lengths is not None
    assert sum(lengths.counts) == 80
    assert lengths.edges[-2:] == (128.0, 129.0)
    assert lengths.edges[0] == 1


def test_the_curve_has_times_and_held_out_looks(summary: Summary) -> None:
    training = summary.pretraining
    assert training is not None
    assert [point.step for point in training.curve] == [1, 2, 3, 4]
    assert [point.seconds for point in training.curve] == [30.0, 60.0, 75.0, 90.0]
    assert training.curve[-1].tokens == 120_000
    assert training.curve[1].heldout["heldout"].mlm_loss == 6.05
    assert training.curve[2].heldout == {}
    assert training.seconds == 90.0


def test_an_encoder_that_has_not_learnt_next_sentences_is_not_asked_about_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RUN, "pretrain", {**RUN["pretrain"], "next_sentence_loss": False})
    summary = collect(report_table(tmp_path))
    assert not any("nsp" in name for name in figures(summary))
    assert "ext sentence" not in render(summary)
    assert summary.pretraining is not None
    looks = [look for point in summary.pretraining.curve for look in point.heldout.values()]
    assert [(look.mlm_loss, look.nsp_accuracy) for look in looks] == [(6.05, None), (3.1, None)]


def test_the_encoder_knows_its_published_name(summary: Summary) -> None:
    encoder = summary.encoder
    assert encoder is not None
    assert (encoder.preset, encoder.layers, encoder.parameters) == ("tiny", 2, 1000)


def test_guesses_are_judged_by_the_configured_answers(summary: Summary) -> None:
    (filled,) = summary.sentences
    assert filled.answers == ("instrument", "thing")
    assert [guess.correct for guess in filled.guesses] == [None, 1, 0]


def test_fits_have_the_median_of_their_times(summary: Summary) -> None:
    assert summary.trial_seconds == {"tagging": {"random": 3.5, "pretrained": 5.0}}


def test_the_configuration_states_departures_alone(summary: Summary) -> None:
    tables = summary.configuration
    assert tables["encoder"] == {"preset": "tiny"}
    assert tables["vocabulary"] == {"size": 100}
    assert "examples" not in tables
    assert next(iter(tables)) == "name"


def test_steps_have_time_and_memory_from_the_record(summary: Summary) -> None:
    assert {step.seconds for step in summary.steps} == {10.0}
    assert {step.peak_memory for step in summary.steps} == {1 << 30}
    assert summary.steps[1].argv[2:4] == ("-m", "cloze.pipeline.tokens")


def finetuned(folder: Path, *, grid: bool) -> Artifact:
    """The artifact of a task with two rates, of which the second is better, and two seeds."""
    found = [("b16-lr0.0001-e2", 0, 1e-4, 0.7), ("b16-lr0.001-e2", 0, 1e-3, 0.8)]
    found += [("", 0, 1e-3, 0.8), ("", 1, 1e-3, 0.75)]
    trials = [
        {
            **{"task": "SST-2", "kind": "classification", "metric": "accuracy"},
            **{"system": "pretrained", "seed": seed, "point": point, "batch_size": 16},
            **{"learning_rate": rate, "steps": 100, "chosen_epoch": 2},
            **{"dev": {"accuracy": score}, "test": {}},
            "epochs": [{"epoch": epoch, "train_loss": 0.5, "dev": {}} for epoch in (1, 2)],
        }
        for point, seed, rate, score in found
    ]
    table = StageTable(
        stage="finetune",
        format_version=1,
        config={"finetune": {"grid": {"learning_rates": [1e-4, 1e-3]} if grid else None}},
        output=str(folder),
    )
    written = put_json(table.output, {"tasks": [], "trials": trials}, name="trials.json")
    return commit(table, [written])


def test_the_cells_of_a_grid_are_shown_with_the_one_that_the_seeds_were_trained_at(
    summary: Summary, tmp_path: Path
) -> None:
    cells = collect_grid(finetuned(tmp_path / "searched", grid=True))
    assert [(one.learning_rate, one.epochs, one.dev, one.chosen) for one in cells] == [
        (1e-4, 2, 0.7, False),
        (1e-3, 2, 0.8, True),
    ]
    page = render(summary.model_copy(update={"grid": cells}))
    row = re.search(r"<tr><td>SST-2</td><td>(.*?)</td></tr>", page)
    assert row
    assert re.sub(r"</?td[^>]*>", " ", row[1]).split() == [
        *("pre-trained", "2", "70.0", "75.0", "80.0", "16", "0.001", "2"),
    ]  # fmt: skip
    assert collect_grid(finetuned(tmp_path / "configured", grid=False)) == ()
    assert "The grid" not in render(summary)


def test_six_lines_say_the_most_important(summary: Summary) -> None:
    said = [line.replace("\u202f", " ") for line in terminal_lines(summary)]
    assert said == [
        "A small encoder",
        "  MLM accuracy    40.5 % on held-out package rich (n-gram baseline 31.0 %)",
        "  MLM loss        3.25 nats (n-gram baseline 4.50 nats, unigram entropy 6.06 nats)",
        "  tagging         F1 62.3 ± 0.3 on test. Pre-training wins: 5.3 ± 0.6 points over random "
        "initialisation (p = 0.013).",
        "  NSP accuracy    70.0 % (majority 57.5 %)",
        "  cost            1 min 10 s, peak 1.00 GiB",
    ]


def test_every_one_of_many_tasks_has_its_score_and_its_verdict(summary: Summary) -> None:
    (task,) = summary.tasks
    named = [task.model_copy(update={"name": name}) for name in ("SST-2", "MRPC")]
    lost = [one.model_copy(update={"outcome": "loss"}) for one in task.comparisons]
    last = task.model_copy(update={"name": "STS-B", "comparisons": tuple(lost)})
    said = terminal_lines(summary.model_copy(update={"tasks": (*named, last)}))
    assert said[3:5] == [
        "  3 tasks         SST-2 62.3, MRPC 62.3, STS-B 62.3 on test",
        "  verdicts        ahead of random initialisation: SST-2, MRPC; behind random "
        "initialisation: STS-B",
    ]
    assert len(said) == 7


def test_lines_are_read_from_the_summary_of_a_run(tmp_path: Path) -> None:
    make_report(report_table(tmp_path), [])
    (written,) = (tmp_path / "report").glob("summary.*.json")
    space = Workspace(str(tmp_path))
    for run, content in (("try", written.read_text()), ("other", '{"form": "another"}')):
        (tmp_path / run).mkdir()
        (tmp_path / run / "summary.json").write_text(content)
    found = read_summary(space, "try")
    assert found is not None
    assert terminal_lines(found)[0] == "A small encoder"
    assert read_summary(space, "nowhere") is None
    assert read_summary(space, "other") is None


def test_bins_without_counts_at_both_ends_are_left_out() -> None:
    found = powers_of_two([0, 0, 3, 0, 9, 0])
    assert found is not None
    assert found.edges == (4.0, 8.0, 16.0, 32.0)
    assert found.counts == (3, 0, 9)
    assert powers_of_two([0, 0]) is None


def test_ranks_are_told_from_first_to_last() -> None:
    counts = [1] * 1000 + [50, 0]
    found = list(rank_frequency(counts))
    assert found[0] == (1, 50)
    assert found[-1] == (1001, 1)
    assert len(found) < 70
    assert list(rank_frequency([])) == []


def test_the_clock_adds_up_windows() -> None:
    clock = training_clock(METRICS)
    assert [clock(step)["seconds"] for step in (0, 2, 3, 4)] == [0.0, 60.0, 75.0, 90.0]
    assert [clock(step)["tokens"] for step in (0, 2, 4)] == [0, 60_000, 120_000]
    assert clock(3)["tokens_per_second"] == 2000.0
    assert training_clock([])(3) == {}


def test_a_step_has_the_length_of_its_phase() -> None:
    phases = ((128, 0.9), (512, 0.1))
    assert [length_at(step, phases=phases, steps=100) for step in (1, 90, 91, 100)] == [
        128,
        128,
        512,
        512,
    ]


def test_the_curve_tells_its_story(summary: Summary) -> None:
    assert summary.pretraining is not None
    told = story(summary, summary.pretraining)
    assert told.endswith("it passes the n-gram baseline.")
    drawn = learning_curve(summary, summary.pretraining)
    assert "held-out package rich 3.25" in drawn
    assert "word frequencies 6.06" in drawn
    assert len(companions(summary, summary.pretraining)) == 4


def test_a_run_that_learnt_nothing_is_told_so(tmp_path: Path) -> None:
    summary = collect(report_table(tmp_path))
    model = summary.language_model[0].model_copy(update={"unigram_entropy": 3.0})
    assert summary.pretraining is not None
    told = story(summary.model_copy(update={"language_model": (model,)}), summary.pretraining)
    assert told.startswith("The loss has not fallen below")


def test_the_mixture_is_what_was_read_in_each_phase(summary: Summary) -> None:
    phases = [{"max_seq_length": 128, "share": share} for share in (0.5, 0.5)]
    manifest = Manifest(
        stage="pretrain",
        key="0" * 64,
        format_version=1,
        config={"pretrain": {"steps": 4, "phases": phases}},
        inputs={},
        files=(),
        statistics={"source_epochs": {"wiki": 1.5, "guides": 5.0}},
    )
    # Means over two steps each, then over one.
    losses = [
        {"step": 2, "source_tokens": {"wiki": 30.0, "guides": 10.0}},
        {"step": 3, "source_tokens": {"wiki": 10.0, "guides": 40.0}},
        {"step": 4, "source_tokens": {"wiki": 10.0, "guides": 40.0}},
    ]
    evaluations = [
        {"step": step, "sources": {"wiki": {"masked_lm_loss": loss}}}
        for step, loss in ((2, 5.0), (4, 3.0))
    ]
    wiki, guides = collect_mixture(manifest, losses, evaluations)
    assert wiki == MixedSource(
        name="wiki", shares=(0.75, 0.2), tokens=80, epochs=1.5, heldout=((2, 5.0), (4, 3.0))
    )
    assert (guides.shares, guides.tokens, guides.heldout) == ((0.25, 0.8), 100, ())
    assert summary.pretraining is not None
    assert summary.pretraining.mixture == ()
    training = summary.pretraining.model_copy(update={"mixture": (wiki, guides)})
    page = render(summary.model_copy(update={"pretraining": training}))
    assert "<h3>Mixture</h3>" in page
    assert "held-out loss of wiki over steps" in page
    assert len(source_losses(training)) == 1


def test_a_configuration_put_together_from_stages_has_the_names_that_it_mixes() -> None:
    sources = [{"reader": "text", "path": "a"}, {"reader": "text", "path": "b"}]
    run = RunConfig.model_validate(
        {
            "name": "mixed",
            "corpus": {
                "sources": [
                    {**sources[0], "name": "wiki", "share": 0.3},
                    {**sources[1], "name": "guides"},
                ]
            },
        }
    )
    manifests = {
        stage.name: Manifest(
            stage=stage.name,
            key="0" * 64,
            format_version=1,
            config=stage.config.model_dump(mode="json"),
            inputs={},
            files=(),
        )
        for stage in chain(run)
        if stage.name in ("tokens", "examples", "pretrain")
    }
    again = changed_settings(manifests, None, name="mixed", report=ReportConfig())
    assert chain(RunConfig.model_validate(again))[:4] == chain(run)[:4]
