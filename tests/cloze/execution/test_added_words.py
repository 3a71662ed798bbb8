"""`cloze adapt --words`: words of the folder in the vocabulary, in training, search and export."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloze as api
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer, read_tokenizer_json
from cloze.model.hugging_face.changed_vocabulary import with_vocabulary
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.inference.export import export_encoder
from tests.byte_level import byte_level
from tests.cloze.execution.test_adaptation import with_sentence_modules
from tests.cloze.inference.test_onnx import RUN, program
from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = (*SPECIAL_TOKENS, *LETTERS, *(f"##{one}" for one in LETTERS), "the", "of", ".")
SHORT = ("--steps", "1", "--without-prefect")
SMALL = ("--set", "pairs.words=8", "--set", "finetune.seeds=[0]")


@pytest.fixture
def begun(folder: Path) -> Path:
    """A tiny encoder of letters, and documents with two words that it lacks."""
    write_model(folder / "encoder", tokenizer=WordPieceTokenizer(PIECES, lowercase=True))
    (folder / "texts" / "one.txt").unlink()
    draw = np.random.default_rng(0)
    for number in range(8):
        lines = (
            f"{' '.join(draw.choice(['the', 'pod', 'node', 'of'], 6))}.\n\n" for _ in range(90)
        )
        (folder / "texts" / f"{number}.txt").write_text("".join(lines))
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--words", "0"), "--words 0: expected 1 to 2,097,152; leave it out to add none"),
        (("--words", "-3"), "--words -3: expected 1 to"),
    ],
)
def test_no_number_of_words_is_refused(
    cloze: Cloze, begun: Path, arguments: tuple[str, ...], message: str
) -> None:
    refused = cloze("adapt", "encoder", "texts", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not (begun / "texts.toml").exists()


def test_a_vocabulary_of_another_kind_is_refused_before_anything_runs(
    cloze: Cloze, begun: Path
) -> None:
    size = byte_level(begun / "encoder").size
    write_model(
        begun / "other",
        tokenizer=WordPieceTokenizer(
            (*SPECIAL_TOKENS, *(f"w{n}" for n in range(size - 5))), lowercase=True
        ),
    )
    (begun / "other" / "vocab.txt").unlink()
    (begun / "encoder" / "tokenizer.json").rename(begun / "other" / "tokenizer.json")
    refused = cloze("adapt", "other", "texts", "--words", "5")
    assert refused.returncode == 2
    (line,) = (one for one in refused.stderr.splitlines() if "--words 5" in one)
    assert "other: words can be added to a WordPiece vocabulary only" in line
    assert not (begun / "texts.toml").exists()


def test_words_without_a_vocabulary_to_add_them_to_are_refused(cloze: Cloze, begun: Path) -> None:
    refused = cloze("plan", "try.toml", "--set", "vocabulary.words=3")
    assert refused.returncode == 2
    assert "words are added to an existing vocabulary; give vocabulary.path" in refused.stderr


def test_words_are_added_to_the_vocabulary_of_the_encoder_and_to_no_other(
    cloze: Cloze, begun: Path
) -> None:
    with_sentence_modules(begun / "encoder")
    (begun / "other.txt").write_text("".join(f"{piece}\n" for piece in (*PIECES, "more")))
    done = cloze("init", "texts", "--from", "encoder", "--output", "words.toml")
    assert done.returncode == 0, done.stderr
    words = ("--set", "vocabulary.words=2", "--set", "vocabulary.path=other.txt")
    refused = cloze("plan", "words.toml", *words)
    assert refused.returncode == 2
    assert "finetune.encoder = " in refused.stderr
    assert "set vocabulary.path to its tokenizer.json or vocab.txt" in refused.stderr
    words = ("--set", "vocabulary.words=2", "--set", "vocabulary.path=encoder/vocab.txt")
    planned = cloze("plan", "words.toml", *words)
    assert planned.returncode == 0, planned.stderr


@pytest.mark.slow
def test_a_sentence_encoder_is_adapted_with_words_and_exported_with_them(
    cloze: Cloze, begun: Path
) -> None:
    with_sentence_modules(begun / "encoder")
    done = cloze("adapt", "encoder", "texts", "--words", "9", *SHORT, *SMALL)
    assert done.returncode == 0, done.stderr
    (line,) = (one for one in done.stdout.splitlines() if one.startswith("words: "))
    assert "words: 2 added of 9 wanted, all that are in 3 documents or more of 8 documents" in line
    assert line.endswith("first: node, pod")
    (made,) = (begun / "runs" / "artifacts" / "vocabulary").iterdir()
    facts = json.loads((made / "manifest.json").read_text())["statistics"]
    words = json.loads(next(made.glob("words*.json")).read_text())["words"]
    saved = sum(one["saved"] for one in words)
    assert facts["tokens_before"] - facts["tokens_after"] == saved > 1000
    page = (begun / "runs" / "texts" / "report.html").read_text()
    assert "Words added to the vocabulary" in page
    assert f"{facts['tokens_after']:,}" in page
    # What was trained reads with them, whether it is kept or not.
    assert cloze("export", "texts", "vectors", "--task", "retrieval").returncode == 0
    tokenizer = read_tokenizer_json(begun / "vectors" / "tokenizer.json")
    assert tokenizer.vocabulary == (*PIECES, "node", "pod")
    trained = api.load(str(next((begun / "runs" / "artifacts" / "finetune").iterdir())))
    ours, theirs = (
        [*one.sentence_vectors(["the pod of pods", "a node"])]
        for one in (trained, api.load("vectors"))
    )
    assert np.array_equal(ours, theirs)
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    ids = transformers.AutoTokenizer.from_pretrained("vectors")("The pod of pods")["input_ids"]
    assert ids == [2, *tokenizer.encode("The pod of pods"), 3]
    assert tokenizer.ids["pod"] in ids
    # The original reads with its own vocabulary, and is what is kept where nothing is better.
    (kept,) = (begun / "runs" / "artifacts" / "adapted").iterdir()
    verdict = json.loads((kept / "manifest.json").read_text())["statistics"]
    assert verdict["words"] == 2
    assert cloze("export", "texts", "kept").returncode == 0
    size = read_tokenizer_json(begun / "kept" / "tokenizer.json").size
    assert size == len(PIECES) + (2 if verdict["kept_share"] else 0)
    again = cloze("adapt", "encoder", "texts", "--words", "9", *SHORT, *SMALL)
    assert "0 stages made" in again.stdout
    # A longer run, or another of the same folder, finds the same words made.
    longer = cloze("plan", "texts.toml", *SMALL, "--set", "pairs.train_pairs=64")
    assert "vocabulary" in longer.stdout
    assert len([*(begun / "runs" / "artifacts" / "vocabulary").iterdir()]) == 1


@pytest.mark.slow
def test_a_masked_language_model_is_adapted_with_words(cloze: Cloze, begun: Path) -> None:
    small = ("--set", "pretrain.batch_size=8", "--set", "corpus.heldout_share=0.2")
    done = cloze("adapt", "encoder", "texts", "--words", "1", *SHORT, *small)
    assert done.returncode == 0, done.stderr
    assert "words: 1 added; the text that trains has" in done.stdout
    adapted = api.load("texts")
    assert adapted.tokenizer.vocabulary == (*PIECES, "node")
    (scores,) = json.loads((begun / "runs" / "texts" / "summary.json").read_text())[
        "language_model"
    ]
    assert scores["initial_mlm_loss"] > 0  # the encoder before, with the same tokens


@pytest.mark.slow
def test_a_folder_without_new_words_says_so(cloze: Cloze, begun: Path) -> None:
    with_sentence_modules(begun / "encoder")
    for number in range(8):
        lines = (f"the {'of ' * (n % 5)}the {number}.\n\n" for n in range(90))
        (begun / "texts" / f"{number}.txt").write_text("".join(lines))
    done = cloze("adapt", "encoder", "texts", "--words", "9", *SHORT, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "words: none added; no word in 3 documents or more of" in done.stdout


@pytest.mark.slow
def test_exported_with_added_words_every_library_has_the_same_vectors(
    cloze: Cloze, begun: Path
) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    pytest.importorskip("onnxruntime", reason="wants the extra `onnx`")
    from sentence_transformers import SentenceTransformer

    with_sentence_modules(begun / "encoder")
    given = read_encoder_files("encoder")
    export_encoder(with_vocabulary(given, given.tokenizer.with_words(["pod", "node"])), "more")
    texts = ["The pod of nodes", "pods"]
    ours = np.stack([*api.load("more").sentence_vectors(texts)])
    assert not np.allclose(ours, np.stack([*api.load("encoder").sentence_vectors(texts)]))
    theirs = SentenceTransformer("more", device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)
    assert cloze("export", "more", "graph", "--onnx").returncode == 0
    _, computed = json.loads(program("-c", RUN, "graph", "model.onnx", *texts))
    np.testing.assert_allclose(computed, ours, atol=1e-5)
