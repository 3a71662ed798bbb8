"""Scores of quality, by labelled documents, good text or a fine-tuned model; what they keep."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from cloze.artifacts.arrays import digest_bytes
from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import SCORES_NAME
from cloze.model.config import TaskConfig
from cloze.model.encoder.models import Encoder, TaskModel
from cloze.model.hugging_face.layout import hugging_face_config, to_hugging_face
from cloze.model.hugging_face.model_files import SavedTask
from cloze.pipeline import scores as stage_program
from cloze.pipeline.config.keep import Keep
from cloze.pipeline.config.settings import ScoresStage
from cloze.pipeline.quality.linear import area_under_curve
from cloze.pipeline.readers.score_table import read_scores
from cloze.pipeline.scores import make_scores
from cloze.pipeline.shuffle import merged_runs
from cloze.pipeline.tokens import make_tokens
from tests.cloze.tiny_model import CONFIG, TOKENIZER
from tests.pipeline.corpora import (
    INLINE,
    WORDS,
    documents,
    given_vocabulary,
    source,
    tokens_table,
    write_jsonl,
)

HEAD = ("weight", "bias")
MACHINE_WORDS = ("error", "warn", "info", "daemon", "thread", "socket", "timeout", "retry")


def junk(seed: int, count: int) -> list[str]:
    """Lines as programs log them."""
    rng = random.Random(seed)

    def line() -> str:
        said = " ".join(rng.choices(MACHINE_WORDS, k=4))
        return f"[{rng.randint(1, 99999)}] {said} = 0x{rng.randint(1, 1 << 30):x}"

    return ["\n".join(line() for _ in range(rng.randint(2, 6))) for _ in range(count)]


def write_labelled(path: Path, good: Sequence[str], bad: Sequence[str]) -> str:
    rows = [{"text": text, "label": 1} for text in good]
    rows += [{"text": text, "label": 0} for text in bad]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def scores_table(
    output: Path, sources: list[dict[str, Any]], quality: dict[str, Any], **options: Any
) -> StageTable:
    machine = options.pop("machine", INLINE)
    config = ScoresStage.model_validate(
        {
            "seed": 5,
            "corpus": {"sources": sources, "heldout_share": 0.05},
            "cleaning": {},
            "quality": quality,
            **options,
        }
    )
    return StageTable(
        stage="scores",
        format_version=1,
        config=config.model_dump(mode="json"),
        output=str(output),
        machine=machine,
    )


@pytest.fixture
def half(tmp_path: Path) -> list[dict[str, Any]]:
    """A source of which one half is good text and the other junk."""
    write_jsonl(tmp_path / "half.jsonl", [*documents(1, 100), *junk(1, 100)])
    return [source(tmp_path / "half.jsonl")]


@pytest.fixture
def by_labels(tmp_path: Path) -> dict[str, Any]:
    return {"labelled": write_labelled(tmp_path / "labelled.jsonl", documents(2, 30), junk(2, 30))}


def tokens_of(
    scores: Artifact, output: Path, sources: list[dict[str, Any]], *, keep: str
) -> Artifact:
    table = tokens_table(
        output,
        sources,
        vocabulary=given_vocabulary(output.with_name(f"{output.name}-vocabulary")),
        cleaning={"keep": keep},
        heldout_share=0.05,
    )
    inputs = {**table.inputs, "scores": InputRef(digest=scores.digest, path=scores.directory)}
    return make_tokens(table.model_copy(update={"inputs": inputs}), [])


def rows_of(artifact: Artifact) -> pa.Table:
    with pa.memory_map(artifact.path(SCORES_NAME)) as file:
        return pa.ipc.open_file(file).read_all()


def kept_of(artifact: Artifact) -> dict[str, int]:
    return {name: of["documents"] for name, of in artifact.manifest.statistics["splits"].items()}


def test_labelled_documents_make_a_model_whose_threshold_drops_junk_and_no_held_out_document(
    tmp_path: Path,
    half: list[dict[str, Any]],
    by_labels: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make_scores(scores_table(tmp_path / "scores", half, by_labels), [])
    assert made.manifest.statistics["labelled"] == {"documents": 60, "separation": 1.0}
    said = capsys.readouterr().err
    assert "a model of 60 labelled documents; area under the ROC curve" in said
    rows = rows_of(made)
    held_out = np.array(rows["is_held_out"].to_pylist())
    low = rows["score"].to_numpy() < 0.5
    assert low.sum() == 100 and held_out[low].any()
    kept = tokens_of(made, tmp_path / "tokens", half, keep=">= 0.5")
    lost = int((low & ~held_out).sum())
    assert kept.manifest.statistics["dropped"] == {"low_score": lost}
    assert kept_of(kept) == {"heldout": held_out.sum(), "train": 200 - held_out.sum() - lost}
    said = capsys.readouterr().err
    assert f"{lost} dropped as low_score, their score of quality is below cleaning.keep" in said


def test_the_best_share_is_that_of_each_source(tmp_path: Path, by_labels: dict[str, Any]) -> None:
    write_jsonl(tmp_path / "good.jsonl", documents(3, 120))
    write_jsonl(tmp_path / "junk.jsonl", junk(3, 80))
    sources = [source(tmp_path / "good.jsonl"), source(tmp_path / "junk.jsonl")]
    made = make_scores(scores_table(tmp_path / "scores", sources, by_labels), [])
    kept = tokens_of(made, tmp_path / "tokens", sources, keep="best 25%")
    rows = rows_of(made)
    trained = ~np.array(rows["is_held_out"].to_pylist())
    for number, share in ((0, 0.25), (1, 0.25)):
        of_source = rows["score"].to_numpy()[(rows["source"].to_numpy() == number) & trained]
        least = read_scores(made.directory).least(number, "best 25%")
        # equal scores stay together, so a few more may be kept
        assert (of_source > least).sum() <= round(share * len(of_source))
        assert (of_source >= least).sum() >= round(share * len(of_source))
    assert kept_of(kept)["train"] >= round(0.25 * trained.sum())


def test_good_text_and_all_text_make_a_likelihood_ratio_that_separates(
    tmp_path: Path, half: list[dict[str, Any]]
) -> None:
    write_jsonl(tmp_path / "good.jsonl", documents(4, 100))
    quality = {"good": [source(tmp_path / "good.jsonl")]}
    made = make_scores(scores_table(tmp_path / "scores", half, quality), [])
    labelled = make_scores(
        scores_table(
            tmp_path / "labelled",
            half,
            {"labelled": write_labelled(tmp_path / "j.jsonl", documents(2, 30), junk(2, 30))},
        ),
        [],
    )
    is_good = rows_of(labelled)["score"].to_numpy() > 0.5
    assert rows_of(made)["document_digest"] == rows_of(labelled)["document_digest"]
    assert area_under_curve(rows_of(made)["score"].to_numpy(), is_good) > 0.99


@pytest.mark.parametrize("way", ["labelled", "good"])
def test_scores_are_the_same_bytes_for_any_files_workers_and_ranges_of_the_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_labels: dict[str, Any], way: str
) -> None:
    texts = [*documents(1, 60), *junk(1, 60), *documents(1, 5)]  # five of them twice
    write_jsonl(tmp_path / "one" / "a.jsonl", texts)
    for part in range(5):
        write_jsonl(tmp_path / "many" / f"{part}.jsonl", texts[part::5])
    write_jsonl(tmp_path / "good.jsonl", documents(4, 50))
    quality = by_labels if way == "labelled" else {"good": [source(tmp_path / "good.jsonl")]}
    one = make_scores(scores_table(tmp_path / "s1", [source(tmp_path / "one")], quality), [])
    monkeypatch.setattr(merged_runs, "RANGE_ROWS", 7)
    machine = {"worker_mode": "processes", "workers": 2}
    table = scores_table(tmp_path / "s2", [source(tmp_path / "many")], quality, machine=machine)
    many = make_scores(table, [])
    assert one.digest == many.digest
    assert len(rows_of(one)) == 120


def test_an_interrupted_stage_does_not_score_again_what_it_has_scored(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    half: list[dict[str, Any]],
    by_labels: dict[str, Any],
) -> None:
    table = scores_table(tmp_path / "scores", half, by_labels)
    with monkeypatch.context() as patch:
        patch.setattr(stage_program, "commit", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_scores(table, [])
    monkeypatch.setattr(stage_program, "write_scores", _interrupted)  # must not be called
    again = make_scores(table, [])
    monkeypatch.undo()
    whole = make_scores(scores_table(tmp_path / "whole", half, by_labels), [])
    assert again.digest == whole.digest


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_source_in_another_language_than_the_labelled_documents_is_named(
    tmp_path: Path, by_labels: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_jsonl(tmp_path / "en.jsonl", documents(1, 30))
    rng, other = random.Random(1), {word: f"{word[::-1]}ø" for word in WORDS}
    foreign = [" ".join(rng.choices([*other.values()], k=20)) for _ in range(30)]
    write_jsonl(tmp_path / "no.jsonl", foreign)
    sources = [source(tmp_path / "en.jsonl"), source(tmp_path / "no.jsonl")]
    make_scores(scores_table(tmp_path / "scores", sources, by_labels), [])
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    assert (
        f"corpus.sources.1 ({tmp_path / 'no.jsonl'}): quality.labelled knows 0% of its" in warning
    )
    assert "label some documents of this source too" in warning


@pytest.mark.parametrize("heldout_share", [0.0, 0.05])
def test_a_threshold_that_drops_everything_is_an_error_with_source_and_remedy(
    tmp_path: Path,
    half: list[dict[str, Any]],
    by_labels: dict[str, Any],
    heldout_share: float,
) -> None:
    table = scores_table(tmp_path / "scores", half, by_labels)
    corpus = {**table.config["corpus"], "heldout_share": heldout_share}
    made = make_scores(table.model_copy(update={"config": {**table.config, "corpus": corpus}}), [])
    wanted = tokens_table(
        tmp_path / "tokens",
        half,
        vocabulary=given_vocabulary(tmp_path / "vocabulary"),
        cleaning={"keep": ">= 1.1", "scores": made.directory},
        heldout_share=heldout_share,
    )
    message = (
        r"cleaning\.keep = '>= 1\.1': no document has such a score; the best ones have "
        r"corpus\.sources\.0 (1|0\.99\d+): lower it, or keep a share"
    )
    with pytest.raises(UsageError, match=message):
        make_tokens(wanted, [])


def test_a_source_of_which_scores_drop_more_than_half_is_named(
    tmp_path: Path,
    half: list[dict[str, Any]],
    by_labels: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = make_scores(scores_table(tmp_path / "scores", half, by_labels), [])
    tokens_of(made, tmp_path / "tokens", half, keep="best 10%")
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if "warning" in line)
    assert "corpus.sources.0" in warning and "as low_score" in warning
    assert "below cleaning.keep: lower that" in warning


def test_scores_of_another_corpus_are_refused(
    tmp_path: Path, half: list[dict[str, Any]], by_labels: dict[str, Any]
) -> None:
    write_jsonl(tmp_path / "other.jsonl", documents(9, 30))
    other = [source(tmp_path / "other.jsonl")]
    made = make_scores(scores_table(tmp_path / "scores", other, by_labels), [])
    with pytest.raises(UsageError, match=r"no score for document .* of corpus\.sources\.0; it was"):
        tokens_of(made, tmp_path / "tokens", half, keep="best 50%")
    vocabulary = given_vocabulary(tmp_path / "vocabulary")
    with pytest.raises(UsageError, match="made by the stage vocabulary, expected scores"):
        tokens_of(vocabulary, tmp_path / "tokens2", half, keep="best 50%")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"text": "a", "label": 1}'], "1 distinct documents, expected 20 to 2,000"),
        (['{"text": "a"}'], "line 1: has text, but no label; set quality.text_field"),
        (['{"text": "a", "label": "good"}'], "expected text and a number as its label"),
        (
            ['{"text": "a", "label": 1}', '{"text": "a", "label": 0}'],
            "line 2: the text has another",
        ),
        (['{"text": "a", "label": 1}', "{]"], "line 2: not JSON"),
        (["just", "text"], "neither JSON lines nor a table"),
        ([f'{{"text": "{n}", "label": 1}}' for n in range(30)], "its labels are 30 × 1; expected"),
        ([f'{{"text": "{n}", "label": {n % 2 + 1}}}' for n in range(30)], "two labels, 1 and 2"),
    ],
)
def test_a_file_of_which_no_model_can_be_made_is_refused(
    tmp_path: Path, half: list[dict[str, Any]], rows: list[str], message: str
) -> None:
    path = tmp_path / "labelled.jsonl"
    path.write_text("\n".join(rows))
    with pytest.raises(UsageError, match=message):
        make_scores(scores_table(tmp_path / "scores", half, {"labelled": str(path)}), [])


def test_labels_that_are_grades_make_a_regression_from_a_table(
    tmp_path: Path, half: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    graded = [(text, 4.0) for text in documents(2, 30)] + [(text, 1.0) for text in junk(2, 20)]
    graded += [(f"{a} {b}", 2.5) for a, b in zip(documents(5, 20), junk(5, 20), strict=True)]
    lines = ["text;grade", *(f"{' '.join(text.split())};{grade}" for text, grade in graded)]
    (tmp_path / "labelled.csv").write_text("\n".join(line.replace('"', "") for line in lines))
    quality = {"labelled": str(tmp_path / "labelled.csv"), "label_field": "grade"}
    made = make_scores(scores_table(tmp_path / "scores", half, quality), [])
    assert "rank correlation with the labels" in capsys.readouterr().err
    scores = np.sort(rows_of(made)["score"].to_numpy())
    assert scores[:100].max() < 2.5 < scores[100:].min()


@pytest.mark.parametrize(
    "text", ["best 120%", "best 0%", "best half", "> 0.5", ">= 50%", "best 0.5"]
)
def test_a_setting_that_keeps_nothing_or_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a (least score|share above 0% and up to 100%)"):
        Keep.of(text)
    assert Keep.of(">= -0.5") == Keep(least=-0.5)
    assert Keep.of("best 12.5%") == Keep(share=0.125)


@pytest.mark.parametrize(
    "quality", [{}, {"labelled": "a", "model": "b"}, {"labelled": "a", "label": "1"}]
)
def test_documents_are_scored_in_one_way(quality: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="expected one of|are for a model"):
        ScoresStage.model_validate(
            {
                "seed": 1,
                "corpus": {"sources": [source(Path("a"))]},
                "cleaning": {},
                "quality": quality,
            }
        )


def write_classifier(directory: Path, kind: str, labels: tuple[str, ...]) -> str:
    """An untrained model for a task."""
    torch.manual_seed(1)
    model = TaskModel(Encoder(CONFIG, TOKENIZER.size), outputs=max(len(labels), 1))
    torch.nn.init.normal_(model.head.weight)
    for parameter in model.encoder.parameters():
        parameter.data *= 3
    task = TaskConfig(name="quality", kind=kind, labels=labels, max_seq_length=16, train="unused")
    saved = SavedTask(task=task, outputs=max(len(labels), 1), head_dropout=False)
    weights = model.state_dict()
    head = {f"{saved.head('bert')}{part}": weights.pop(f"head.{part}") for part in HEAD}
    directory.mkdir()
    save_file({**to_hugging_face(weights, "bert"), **head}, directory / "model.safetensors")
    config = hugging_face_config(CONFIG, TOKENIZER.size)
    config |= {"cloze_task": saved.model_dump(mode="json")}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text(TOKENIZER.tokenizer_json())
    return str(directory)


def test_a_fine_tuned_classifier_scores_by_the_probability_of_its_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_classifier(tmp_path / "model", "classification", ("bad", "fine"))
    texts = ["the list of names", "a b a b", "names of the list", "a list of a"]
    write_jsonl(tmp_path / "one" / "a.jsonl", texts)
    for number, text in enumerate(texts):
        write_jsonl(tmp_path / "many" / f"{number}.jsonl", [text])
    quality = {"model": model, "label": "fine"}
    one = make_scores(scores_table(tmp_path / "s1", [source(tmp_path / "one")], quality), [])
    many = make_scores(scores_table(tmp_path / "s2", [source(tmp_path / "many")], quality), [])
    assert one.digest == many.digest
    assert len(set(rows_of(one)["score"].to_pylist())) == 4
    assert "warning" not in capsys.readouterr().err
    write_jsonl(tmp_path / "de.jsonl", ["der Satz ist nicht englisch", "und dieser auch nicht"])
    make_scores(scores_table(tmp_path / "s3", [source(tmp_path / "de.jsonl")], quality), [])
    assert "quality.model knows 0% of its words" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "labels", "options", "message"),
    [
        ("tagging", ("O", "B-x"), {}, "is tagging, which does not judge single texts; expected"),
        ("classification", ("bad", "fine"), {}, "has no label '1'; it has bad, fine: set quality"),
        ("regression", (), {"label": "1"}, "predicts numbers; remove quality.label"),
    ],
)
def test_a_model_that_cannot_judge_texts_is_refused(
    tmp_path: Path,
    kind: str,
    labels: tuple[str, ...],
    options: dict[str, str],
    message: str,
) -> None:
    model = write_classifier(tmp_path / "model", kind, labels)
    write_jsonl(tmp_path / "a.jsonl", ["the list"])
    table = scores_table(
        tmp_path / "s", [source(tmp_path / "a.jsonl")], {"model": model, **options}
    )
    with pytest.raises(UsageError, match=message):
        make_scores(table, [])


def test_a_document_has_its_score_wherever_it_is_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: list[dict[str, Any]]
) -> None:
    quality = {"labelled": write_labelled(tmp_path / "j.jsonl", documents(2, 30), junk(2, 30))}
    monkeypatch.setattr(merged_runs, "BATCH_ROWS", 16)
    made = make_scores(scores_table(tmp_path / "scores", half, quality), [])
    rows = rows_of(made)
    digests = digest_bytes(rows["document_digest"])
    order = np.random.default_rng(1).permutation(len(rows))
    found, held_out = read_scores(made.directory).find(digests[order])
    assert (found == rows["score"].to_numpy()[order]).all()
    assert held_out.tolist() == np.array(rows["is_held_out"].to_pylist())[order].tolist()
    unknown, _ = read_scores(made.directory).find(np.zeros((2, 16), np.uint8))
    assert np.isnan(unknown).all()
