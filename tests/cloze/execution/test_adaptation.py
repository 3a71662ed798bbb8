"""Starting from an existing encoder: `cloze init --from`, `cloze adapt`, `plan`."""

import csv
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import cloze as api
from cloze.artifacts.config import read_toml
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.execution import adaptation
from cloze.flows.expected import START_SECONDS
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.hugging_face.term_vectors import TermVectors
from cloze.model.inference.export import export_encoder
from cloze.model.retrieval.candidates import TERM_WEIGHTS, with_terms
from tests.cloze.tiny_model import CONFIG, MODERN, write_model

Cloze = Callable[..., Any]

HEADLESS = "has no MLM head"


@pytest.fixture
def begun(folder: Path) -> Path:
    """A tiny encoder, and documents with words of its vocabulary."""
    write_model(folder / "encoder")
    (folder / "texts" / "one.txt").unlink()
    for number in range(30):
        words = " ".join(("a", "b", "names")[(number + i) % 3] for i in range(4 + number))
        (folder / "texts" / f"{number}.txt").write_text(f"The list of {words}.\n" * 20)
    return folder


def without_heads(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("cls.")}
    save_file(kept, model / "model.safetensors")


def test_init_from_an_encoder_copies_its_vocabulary_and_shape(cloze: Cloze, begun: Path) -> None:
    done = cloze("init", "texts", "--from", "encoder", "--output", "more.toml")
    assert done.returncode == 0, done.stderr
    assert "starts from encoder: 2 layers × 8, 11 tokens (uncased)" in done.stdout
    table = read_toml(begun / "more.toml")
    assert Path(table["vocabulary"]["path"]).samefile("encoder/vocab.txt")
    assert table["encoder"]["hidden_size"] == CONFIG.hidden_size
    assert table["encoder"]["max_position_embeddings"] == CONFIG.max_position_embeddings
    assert table["pretrain"]["init"] == str(begun / "encoder")
    planned = cloze("plan", "more.toml")
    assert planned.returncode == 0, planned.stderr


def test_init_from_an_encoder_copies_what_it_does_to_accents(cloze: Cloze, begun: Path) -> None:
    options = {"do_lower_case": True, "strip_accents": False}
    (begun / "encoder" / "tokenizer_config.json").write_text(json.dumps(options))
    done = cloze("init", "texts", "--from", "encoder", "--output", "kept.toml")
    assert done.returncode == 0, done.stderr
    assert read_toml(begun / "kept.toml")["vocabulary"]["strip_accents"] is False
    planned = cloze("plan", "kept.toml")
    assert planned.returncode == 0, planned.stderr


def test_init_from_an_encoder_fine_tunes_it_on_labelled_files(cloze: Cloze, begun: Path) -> None:
    rows = "".join(f"the list {n},{('yes', 'no')[n % 2]}\n" for n in range(20))
    (begun / "train.csv").write_text(f"text,label\n{rows}")
    done = cloze("init", "train.csv", "--from", "encoder", "--output", "task.toml")
    assert done.returncode == 0, done.stderr
    assert read_toml(begun / "task.toml")["finetune"]["encoder"] == str(begun / "encoder")


LABEL = "pos\nseed = 7\n#\x1b[2J\x7f\u2028"


def test_no_label_writes_a_setting(cloze: Cloze, begun: Path) -> None:
    with open(begun / "train.csv", "w", newline="") as file:
        rows = [(f"the list {n}", (LABEL, "no")[n % 2]) for n in range(20)]
        csv.writer(file).writerows([("text", "label"), *rows])
    done = cloze("init", "train.csv", "--from", "encoder", "--output", "task.toml")
    assert done.returncode == 0, done.stderr
    table = read_toml(begun / "task.toml")
    assert table["finetune"]["seeds"] == [0]
    assert list(table) == ["name", "finetune"]
    printed = cloze("init", "train.csv", "--from", "encoder").stdout
    assert tomllib.loads(printed) == table


def test_no_folder_name_writes_a_setting(
    cloze: Cloze, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same command is recognised, so it resumes."""
    folder = 'texts\nseed = 7\n[pretrain]\n"'
    (begun / "texts").rename(begun / folder)
    adapt = ("adapt", "encoder", folder, "--steps", "1", "--name", "mine")
    resumed = []

    def stop(config: Path, **_: object) -> None:
        resumed.append(config)
        raise UsageError("reached")

    monkeypatch.setattr(adaptation, "run", stop)
    for _ in range(2):
        assert "reached" in cloze(*adapt).stderr
    assert resumed == [Path("mine.toml")] * 2
    assert read_toml(begun / "mine.toml")["seed"] == 12345


@pytest.mark.parametrize("name", ["../evil", "a/b", "a\nb", "..", "artifacts"])
def test_nothing_is_written_under_a_name_that_no_run_may_have(
    cloze: Cloze, begun: Path, name: str
) -> None:
    (begun / "a").mkdir()
    before = sorted(begun.parent.rglob("*.toml"))
    done = cloze("adapt", "encoder", "texts", "--steps", "1", "--name", name)
    assert (done.returncode, "name" in done.stderr) == (2, True), done.stderr
    assert sorted(begun.parent.rglob("*.toml")) == before


@pytest.mark.parametrize("minutes", ["nan", "inf", "-inf", "0", "1e400"])
def test_no_length_of_training_that_is_no_number_is_accepted(
    cloze: Cloze, begun: Path, minutes: str
) -> None:
    done = cloze("adapt", "encoder", "texts", f"--minutes={minutes}")
    assert done.returncode == 2
    assert "expected a positive number" in done.stderr
    assert "--steps 0: expected" in cloze("adapt", "encoder", "texts", "--steps", "0").stderr


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("encoder.hidden_size=16", "another shape (hidden_size: it has 8, wanted 16)"),
        ("vocabulary.path=''", "the run would train its own; set vocabulary.path"),
        ("vocabulary.path=other.txt", "its tokenizer is "),
    ],
)
@pytest.mark.parametrize("command", ["plan", "pretrain"])
def test_an_incompatible_initial_encoder_is_rejected_before_anything_runs(
    cloze: Cloze, begun: Path, command: str, setting: str, message: str
) -> None:
    other = WordPieceTokenizer((*SPECIAL_TOKENS, "c"), lowercase=True)
    (begun / "other.txt").write_text(other.vocab_txt())
    assert cloze("init", "texts", "--from", "encoder", "--output", "more.toml").returncode == 0
    refused = cloze(command, "more.toml", "--set", setting)
    assert refused.returncode == 2
    assert f"pretrain.init = {begun / 'encoder'}: " in refused.stderr
    assert message in refused.stderr
    assert not (begun / "runs" / "artifacts").exists()


def test_an_encoder_without_an_mlm_head_is_reported(cloze: Cloze, begun: Path) -> None:
    without_heads(begun / "encoder")
    assert HEADLESS in cloze("init", "texts", "--from", "encoder").stdout


def test_adapt_rejects_invalid_input(cloze: Cloze, begun: Path) -> None:
    (begun / "nothing").mkdir()
    assert "nothing" in cloze("adapt", "encoder", "nothing").stderr
    assert "no run of this name" in cloze("adapt", "nobody", "texts").stderr
    write_model(begun / "doubled")
    words = (begun / "doubled" / "vocab.txt").read_text().splitlines()
    (begun / "doubled" / "vocab.txt").write_text("\n".join([*words[:-1], words[-2]]) + "\n")
    odd = cloze("adapt", "doubled", "texts")
    assert odd.returncode == 2
    assert f"vocabulary lists {words[-2]!r} twice" in odd.stderr
    (begun / "texts.toml").write_text("# mine\n")
    refused = cloze("adapt", "encoder", "texts")
    assert refused.returncode == 2
    assert "texts.toml: already exists, written by another command" in refused.stderr
    assert (begun / "texts.toml").read_text() == "# mine\n"


def test_general_text_is_held_out_and_replayed_text_is_a_quarter(cloze: Cloze, begun: Path) -> None:
    (begun / "general.txt").write_text("The names of a list.\n" * 30)
    (begun / "replay").mkdir()
    for number in range(3):
        (begun / "replay" / f"{number}.txt").write_text(f"A list of names {number}.\n" * 25)
    begin = ("init", "texts", "--from", "encoder", "--output", "more.toml")
    done = cloze(*begin, "--general", "general.txt", "--replay", "replay")
    assert done.returncode == 0, done.stderr
    own, general, replay = read_toml(begun / "more.toml")["corpus"]["sources"]
    assert general["heldout"] == "general"
    assert replay["heldout_documents"] == "general"
    of_own = sum(path.stat().st_size for path in (begun / "texts").iterdir())
    of_replay = sum(path.stat().st_size for path in (begun / "replay").iterdir())
    copies = (own.get("weight", 1) * of_own, replay.get("weight", 1) * of_replay)
    assert 0.2 < copies[1] / sum(copies) < 0.3
    assert cloze("plan", "more.toml").returncode == 0


def test_general_text_is_rejected_where_it_has_no_effect(cloze: Cloze, begun: Path) -> None:
    (begun / "few").mkdir()
    (begun / "few" / "one.txt").write_text("The list.\n" * 20)
    few = cloze("init", "few", "--from", "encoder", "--replay", "texts")
    assert few.returncode == 2
    assert "needs at least 20 documents to adapt to" in few.stderr
    alone = cloze("init", "texts", "--general", "few")
    assert "--general and --replay require an encoder; name it with --from" in alone.stderr
    with_sentence_modules(begun / "encoder")
    vectors = cloze("adapt", "encoder", "texts", "--general", "few")
    assert "--general and --replay are for encoders that predict masked tokens" in vectors.stderr


@pytest.mark.slow
def test_adapt_reports_the_loss_before_and_after_and_is_reused(cloze: Cloze, begun: Path) -> None:
    (begun / "texts" / "scan.pdf").write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 20)
    (begun / "general.txt").write_text("A list of a b of names.\n" * 40)
    command = ("adapt", "encoder", "texts", "--steps", "40", "--without-prefect")
    command += ("--general", "general.txt")
    done = cloze(*command)
    assert done.returncode == 0, done.stderr
    assert "beside the text: scan.pdf" in done.stderr
    lines = done.stdout.splitlines()
    encoder = str(begun / "encoder")
    assert lines[1].startswith(f"  started from    {encoder}; MLM loss ")
    summary = json.loads((begun / "runs" / "texts" / "summary.json").read_text())
    heldout, general = summary["language_model"]
    assert [one["split"] for one in (heldout, general)] == ["heldout", "general"]
    assert heldout["mlm_loss"] < heldout["initial_mlm_loss"]
    assert general["initial_mlm_loss"] != general["mlm_loss"]
    assert lines[2].startswith("  general text    MLM loss ")
    assert f"Training started from the encoder {encoder}, not from random weights: MLM loss" in (
        begun / "runs" / "texts" / "report.html"
    ).read_text().replace("\n", " ")
    again = cloze(*command)
    assert "0 stages made" in again.stdout


@pytest.mark.slow
def test_a_modern_encoder_is_adapted_like_any_other(cloze: Cloze, begun: Path) -> None:
    write_model(begun / "modern", encoder=MODERN)
    done = cloze("adapt", "modern", "texts", "--steps", "20", "--without-prefect")
    assert done.returncode == 0, done.stderr
    assert read_toml(begun / "texts.toml")["encoder"]["family"] == "modern"
    (heldout,) = json.loads((begun / "runs" / "texts" / "summary.json").read_text())[
        "language_model"
    ]
    assert heldout["mlm_loss"] < heldout["initial_mlm_loss"]


def with_sentence_modules(model: Path) -> None:
    """As sentence-transformers saves an encoder: no head, mean pooling, at most 12 tokens."""
    without_heads(model)
    (model / "README.md").write_text("---\nlicense: mit\n---\nAnother's card.\n")
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"path": f"{n}_{kind}" if n else "", "type": f"x.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12}))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))


def test_a_sentence_encoder_is_trained_further_on_pairs(cloze: Cloze, begun: Path) -> None:
    with_sentence_modules(begun / "encoder")
    done = cloze("init", "texts", "--from", "encoder", "--output", "more.toml")
    assert done.returncode == 0, done.stderr
    assert "is trained on made-up queries, not on masked tokens" in done.stdout
    assert "it has no MLM head and needs none here" in done.stdout
    table = read_toml(begun / "more.toml")
    assert table["finetune"]["tasks"][0]["kind"] == "retrieval"
    assert table["finetune"]["tasks"][0]["max_seq_length"] == 12
    assert "corpus" not in table
    planned = cloze("plan", "more.toml")
    assert planned.returncode == 0, planned.stderr


SMALL = (
    *("--set", "pairs.words=8", "--set", "finetune.tasks.0.learning_rate=0.01"),
    *("--set", "finetune.tasks.0.max_seq_length=8"),
)


def write_passages(begun: Path) -> None:
    """A sentence encoder, and texts of some hundred passages."""
    with_sentence_modules(begun / "encoder")
    words = np.array(["list", "names", "a", "b", "of", "the"])
    draw = np.random.default_rng(0)
    for number in range(8):
        lines = (f"The {' '.join(draw.choice(words, 6))} b.\n\n" for _ in range(90))
        (begun / "texts" / f"more{number}.txt").write_text("".join(lines))


@pytest.mark.slow
def test_adapt_keeps_sentence_vectors_and_evaluates_them_by_search(
    cloze: Cloze, begun: Path
) -> None:
    write_passages(begun)
    done = cloze(
        *("adapt", "encoder", "texts", "--steps", "2", "--without-prefect"),
        *SMALL,
    )
    assert done.returncode == 0, done.stderr
    scores = json.loads((begun / "runs" / "texts" / "summary.json").read_text())["tasks"][0]
    systems = [system["name"] for system in scores["systems"]]
    assert systems == ["bm25", "untouched_encoder", "pretrained"]
    (kept,) = (begun / "runs" / "artifacts" / "adapted").iterdir()
    statistics = json.loads((kept / "manifest.json").read_text())["statistics"]
    assert (statistics["low"] > statistics["margin"] > 0) == (statistics["kept_share"] > 0)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("  kept  "))
    name = line.removeprefix("  kept").strip()
    assert name.startswith("the original encoder") == (statistics["kept_share"] == 0)
    # Said once, and nowhere contradicted: the page was made again with it.
    assert done.stdout.count(name) == 1
    assert f"Kept: {name}." in (begun / "runs" / "texts" / "report.html").read_text()
    assert "no better" not in done.stdout
    truncated = [one for one in done.stderr.splitlines() if one.endswith("were truncated")]
    assert len(truncated) == len(set(truncated))
    record = json.loads((begun / "runs" / "texts" / "run.json").read_text())
    assert {stage["state"] for stage in record["stages"].values()} == {"made"}
    (report,) = (begun / "runs" / "artifacts" / "report").glob(record["stages"]["report"]["key"])
    assert json.loads((report / "manifest.json").read_text())["inputs"].keys() >= {"adapted"}
    found = cloze("search", "texts", "texts", "the list of names", "--json")
    assert found.returncode == 0, found.stderr
    assert "was not trained for retrieval" not in found.stderr
    used = next(api.load("texts").sentence_vectors(["a b"]))
    if statistics["kept_share"] == 0:
        assert np.array_equal(used, next(api.load("encoder").sentence_vectors(["a b"])))
    assert cloze("export", "texts", "kept").returncode == 0
    assert np.array_equal(used, next(api.load("kept").sentence_vectors(["a b"])))
    again = cloze("adapt", "encoder", "texts", "--steps", "2", "--without-prefect", *SMALL)
    assert "term vectors" not in done.stderr  # made-up queries are the passages' own words
    assert "of the change: ndcg@10" not in again.stderr  # nothing is chosen twice
    assert line in again.stdout
    assert "0 stages made" in again.stdout
    assert cloze("export", "texts", "vectors", "--task", "retrieval").returncode == 0
    assert (begun / "vectors" / "modules.json").exists()
    limits = json.loads((begun / "vectors" / "sentence_bert_config.json").read_text())
    assert limits["max_seq_length"] == 12  # that of the encoder, though training cut texts at 8
    card = (begun / "vectors" / "README.md").read_text()
    assert "license: mit\n" in card.split("---\n")[1]
    assert "Another's card" not in card
    trained = api.load("runs/artifacts/finetune/" + os.listdir("runs/artifacts/finetune")[0])
    vectors = (next(one.sentence_vectors(["a b"])) for one in (trained, api.load("vectors")))
    assert np.array_equal(*vectors)
    refused = cloze("predict", "texts", "a b")
    assert refused.returncode == 2
    assert "computes vectors to compare, not predictions" in refused.stderr


@pytest.mark.slow
def test_what_adapt_decided_of_an_encoder_holds_however_its_run_is_repeated(
    cloze: Cloze, begun: Path
) -> None:
    write_passages(begun)
    done = cloze("adapt", "encoder", "texts", "--steps", "2", "--without-prefect", *SMALL)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("  kept  "))
    folder = begun / "runs" / "texts"
    again = cloze("run", "texts.toml", "--without-prefect", *SMALL)
    assert line in again.stdout
    assert "report: reused" in again.stderr
    retitled = cloze("report", "texts.toml", *SMALL, "--set", "report.title=Mine")
    assert retitled.returncode == 0, retitled.stderr
    assert "<h1>Mine</h1>" in (folder / "report.html").read_text()
    assert f"Kept: {line.removeprefix('  kept').strip()}." in (folder / "report.html").read_text()
    assert "adapted" in json.loads((folder / "run.json").read_text())["stages"]
    # Of another encoder nothing was decided.
    other = ("--set", "finetune.tasks.0.learning_rate=0.02")
    trained = cloze("run", "texts.toml", "--without-prefect", *SMALL, *other)
    assert trained.returncode == 0, trained.stderr
    assert "Kept: " not in (folder / "report.html").read_text()
    assert "not evaluated   nobody has decided whether this encoder searches" in trained.stdout
    assert "adapted" not in json.loads((folder / "run.json").read_text())["stages"]


@pytest.mark.slow
def test_questions_decide_what_is_kept_where_there_are_some(cloze: Cloze, begun: Path) -> None:
    with_sentence_modules(begun / "encoder")
    draw = np.random.default_rng(0)
    for number in range(8):
        lines = (f"The {' '.join(draw.choice(['list', 'a', 'of'], 6))} b.\n\n" for _ in range(90))
        (begun / "texts" / f"more{number}.txt").write_text("".join(lines))
    rows = "".join(f'"the names {n}",{n}.txt\n' for n in range(24))
    (begun / "texts" / "questions.csv").write_text(f"question,file\n{rows}")
    command = ("adapt", "encoder", "texts", "--steps", "2", "--without-prefect", *SMALL)
    done = cloze(*command, "--evaluate", "texts/questions.csv")
    assert done.returncode == 0, done.stderr
    assert "on 12 questions" in done.stderr
    assert "made-up queries" not in done.stdout
    (kept,) = (line for line in done.stdout.splitlines() if line.startswith("  kept  "))
    assert "questions" in kept
    assert "term vectors × 0.25: ndcg@10" in done.stderr
    (decided,) = (begun / "runs" / "artifacts" / "adapted").iterdir()
    statistics = json.loads((decided / "manifest.json").read_text())["statistics"]
    assert len(statistics["term_candidates"]) == len(TERM_WEIGHTS)
    assert bool(statistics["kept_terms"]) == ("adapt again when many" in done.stdout)
    assert cloze("export", "texts", "kept").returncode == 0
    has_code = (begun / "kept" / "term_vectors.py").exists()
    assert has_code == bool(statistics["kept_terms"])
    of_pairs = cloze(*command)
    assert "2 stages made, 3 reused" in of_pairs.stdout  # the decision, and the report of it
    assert "made-up queries (test)" in of_pairs.stdout


def test_questions_that_cannot_decide_are_refused_before_training(
    cloze: Cloze, begun: Path
) -> None:
    rows = "".join(f"q{n},{n}.txt\n" for n in range(20))
    (begun / "q.csv").write_text(f"question,file\n{rows}")
    refused = cloze("adapt", "encoder", "texts", "--evaluate", "q.csv")
    assert refused.returncode == 2
    assert "encoder is no sentence encoder, so search does not decide" in refused.stderr
    (begun / "few.csv").write_text("question,file\na,1.txt\n")
    with_sentence_modules(begun / "encoder")
    refused = cloze("adapt", "encoder", "texts", "--evaluate", "few.csv")
    assert "few.csv: 1 questions, expected at least 20 to choose an encoder by" in refused.stderr
    assert not (begun / "texts.toml").exists()
    rows = "".join(f"q{n},elsewhere{n}.txt\n" for n in range(20))
    (begun / "q.csv").write_text(f"question,file\n{rows}")
    refused = cloze("adapt", "encoder", "texts", "--steps", "1", "--evaluate", "q.csv")
    assert refused.returncode == 2
    assert "(there is no file elsewhere0.txt)" in refused.stderr
    assert not list((begun / "runs" / "artifacts").glob("finetune/*"))


def test_an_encoder_with_term_vectors_is_not_adapted_again(cloze: Cloze, begun: Path) -> None:
    with_sentence_modules(begun / "encoder")
    terms = TermVectors(torch.tensor([6]), torch.ones(1, 8), torch.ones(1), 0.5, 1.0)
    export_encoder(with_terms(read_encoder_files(begun / "encoder"), terms), begun / "with")
    refused = cloze("adapt", "with", "texts", "--steps", "1")
    assert refused.returncode == 2
    assert "TermVectors module" in refused.stderr
    assert "start from the encoder that it was made from" in refused.stderr
    assert not (begun / "texts.toml").exists()


@pytest.fixture
def starts_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which programs start, and make a few steps, in less than the usual time."""
    for stage in ("pretrain", "finetune"):
        monkeypatch.setitem(START_SECONDS, stage, 300.0)


@pytest.mark.slow
@pytest.mark.usefixtures("starts_quickly")
def test_the_time_asked_for_is_converted_by_steps_that_were_timed(
    cloze: Cloze, begun: Path
) -> None:
    command = ("adapt", "encoder", "texts", "--minutes", "0.4", "--without-prefect")
    done = cloze(*command)
    assert done.returncode == 0, done.stderr
    assert "timing 3 steps, to find how many fit into 0.4 minutes" in done.stderr
    recipe = read_toml(begun / "texts.toml")["pretrain"]
    steps = recipe["steps"]
    assert 0 < recipe["minutes"] < 0.4
    assert f"{steps:,} updates of 32 × 16 tokens" in done.stderr
    assert "it adds no words to the vocabulary" in done.stderr
    assert "asked for: 0:24" in done.stderr
    record = json.loads((begun / "runs" / "texts" / "run.json").read_text())
    assert record["stages"]["pretrain"]["seconds"] < 5 * 24, "a start-up and 24 seconds"
    assert sorted(path.parent.name for path in begun.glob("runs/*/run.json")) == ["texts"]
    again = cloze(*command)
    assert "0 stages made" in again.stdout
    assert "timing" not in again.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("starts_quickly")
def test_the_time_of_pairs_is_converted_by_a_few_that_were_timed(cloze: Cloze, begun: Path) -> None:
    with_sentence_modules(begun / "encoder")
    draw = np.random.default_rng(0)
    for number in range(8):
        lines = (f"The {' '.join(draw.choice(['list', 'a', 'of'], 6))} b.\n\n" for _ in range(90))
        (begun / "texts" / f"more{number}.txt").write_text("".join(lines))
    done = cloze("adapt", "encoder", "texts", "--minutes", "0.2", "--without-prefect", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "timing 1 step, to find how many fit into 0.2 minutes" in done.stderr
    assert re.search(r"\d+ updates? per seed of 128 made-up queries", done.stderr)
    assert "they learn no answers and no new words" in done.stderr
    assert 0 < read_toml(begun / "texts.toml")["finetune"]["minutes"] < 0.2


@pytest.mark.slow
def test_a_run_without_enough_time_says_how_many_steps_it_made_and_how_to_repeat_them(
    cloze: Cloze, begun: Path
) -> None:
    begin = ("init", "texts", "--from", "encoder", "--output", "texts.toml")
    assert cloze(*begin).returncode == 0
    command = ("adapt", "encoder", "texts", "--minutes", "1", "--without-prefect")
    # As if this command had written it on a machine that is much slower since.
    text = (begun / "texts.toml").read_text()
    first_line = "# " + shlex.join(["cloze", *command[:-1]])
    limited = re.sub(r"(?m)^steps = .*", "steps = 100000\nminutes = 0.05", text)
    (begun / "texts.toml").write_text(f"{first_line}\n{limited}")
    done = cloze(*command)
    assert done.returncode == 0, done.stderr
    assert "of 100,000 steps: the rest of the schedule is shortened, to end at step " in done.stderr
    (manifest,) = begun.glob("runs/artifacts/pretrain/*/manifest.json")
    found = json.loads(manifest.read_text())["statistics"]
    assert f"pretrain.shortened = {found['shortened']}" in done.stderr
    summary = json.loads((begun / "runs" / "texts" / "summary.json").read_text())
    assert summary["pretraining"]["steps"] == found["steps"] < 100_000
