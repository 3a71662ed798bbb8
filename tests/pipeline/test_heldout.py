"""A share of the text is always held out, from training and from the vocabulary."""

from pathlib import Path

import pyarrow as pa
import pytest

from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, read_tokenizer_json
from cloze.pipeline.tokens import make_tokens
from cloze.pipeline.vocabulary import make_vocabulary
from tests.pipeline.corpora import documents, source, tokens_table, vocabulary_table, write_jsonl

SENTENCE = "The only sentence of the document."


def prepared(folder: Path, texts: list[str], **corpus: object) -> tuple[Artifact, Artifact]:
    """The vocabulary and tokens of these documents."""
    write_jsonl(folder / "corpus" / "all.jsonl", texts)
    sources = [source(folder / "corpus")]
    table = vocabulary_table(folder / "words", sources, vocabulary={"size": 600}, **corpus)
    words = make_vocabulary(table, [])
    return words, make_tokens(
        tokens_table(folder / "tokens", sources, vocabulary=words, **corpus), []
    )


def sentences(tokens: Artifact, split: str) -> list[tuple[int, ...]]:
    """The sentences of a split, as ids."""
    found = []
    names = [e.name for e in tokens.manifest.files if e.name.startswith(f"{split}-")]
    for row in (
        row for name in names for row in pa.ipc.open_file(tokens.path(name)).read_all().to_pylist()
    ):
        start = 0
        for length in row["sentence_lengths"]:
            found.append(tuple(row["token_ids"][start : start + length]))
            start += length
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 25, 400])
def test_something_is_held_out_of_any_number_of_documents_and_nothing_of_it_trains(
    tmp_path: Path, count: int
) -> None:
    texts = [" ".join(documents(100 + number, 6)) for number in range(count)]
    _, tokens = prepared(tmp_path, texts, heldout_share=0.002)
    heldout, trained = sentences(tokens, "heldout"), sentences(tokens, "train")
    assert heldout
    assert trained
    assert not set(heldout) & set(trained)
    assert len(heldout) < len(trained)


def test_a_draw_that_holds_out_far_more_text_than_asked_for_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Documents are drawn whole, and one may have most of the text."""
    said = {}
    for place in range(12):  # the long document is each of twelve in turn
        texts = [" ".join(documents(number, 6 + 300 * (number == place))) for number in range(12)]
        _, tokens = prepared(tmp_path / str(place), texts, heldout_share=0.2)
        sizes = [float(split["tokens"]) for split in tokens.manifest.statistics["splits"].values()]
        held = float(tokens.manifest.statistics["splits"]["heldout"]["tokens"]) / sum(sizes)
        line = f"warning: tokens: {held:.0%} of the tokens are held out, for corpus.heldout_share ="
        said[held > 0.4] = line in capsys.readouterr().err
    assert said == {True: True, False: False}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_vocabulary_has_not_seen_what_is_held_out_where_the_draw_finds_nothing(
    tmp_path: Path, count: int
) -> None:
    # Every sentence has a word of its own, often enough to become a piece of the vocabulary.
    names = [[f"q{chr(97 + d)}{chr(97 + n)}z" for n in range(9)] for d in range(count)]
    texts = [" ".join(f"The word is {name} {name} {name}." for name in of) for of in names]
    words, tokens = prepared(tmp_path, texts, heldout_share=0.001)
    vocabulary = read_tokenizer_json(words.path("tokenizer.json")).vocabulary
    spelled = "".join(
        vocabulary[index].removeprefix("##") for ids in sentences(tokens, "train") for index in ids
    )
    every = {name for of in names for name in of}
    trained = {name for name in every if name in spelled}
    assert trained <= set(vocabulary)
    assert trained < every
    assert not (every - trained) & set(vocabulary)


DRAWN, NOT_DRAWN = (105, 106, 108), 100
"""Seeds of documents that a share of 0.49 draws, and does not draw, with these tables' seed."""


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (DRAWN[:1], "the end of each document is held out"),
        (DRAWN[:2], "the end of each document is held out"),
        ((DRAWN[0], NOT_DRAWN), "the end of each document is held out"),
        (DRAWN, "draws all of so few documents"),
    ],
)
def test_some_text_trains_and_some_is_held_out_when_the_draw_takes_half_or_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], seeds: tuple[int, ...], said: str
) -> None:
    texts = [" ".join(documents(seed, 6)) for seed in seeds]
    words, tokens = prepared(tmp_path, [*texts, *texts], heldout_share=0.49)
    heldout, trained = sentences(tokens, "heldout"), sentences(tokens, "train")
    assert heldout
    assert trained
    assert not set(heldout) & set(trained)
    assert said in capfd.readouterr().err
    vocabulary = read_tokenizer_json(words.path("tokenizer.json")).vocabulary
    pieces = {piece.removeprefix("##") for piece in vocabulary}
    assert max(map(len, pieces - set(SPECIAL_TOKENS))) > 1  # learnt from the training text


def test_the_document_held_out_does_not_depend_on_files_and_their_names(tmp_path: Path) -> None:
    texts = documents(3, 12)
    _, once = prepared(tmp_path / "a", texts, heldout_share=0.001)
    _, again = prepared(tmp_path / "b", texts[::-1], heldout_share=0.001)
    assert once.digest == again.digest


def test_the_end_of_a_document_is_held_out_and_said_before_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = " ".join(documents(1, 40))
    _, tokens = prepared(tmp_path, [text], heldout_share=0.1)
    heldout, trained = sentences(tokens, "heldout"), sentences(tokens, "train")
    assert len(heldout) == round(0.1 * (len(heldout) + len(trained)))
    assert "the end of each document is held out, 10.0% of its sentences" in capfd.readouterr().err


def test_a_document_of_one_sentence_trains_whole_and_a_warning_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, tokens = prepared(tmp_path, [SENTENCE], heldout_share=0.1)
    assert list(tokens.manifest.statistics["splits"]) == ["train"]
    assert "documents of one sentence cannot be split" in capfd.readouterr().err


def test_nothing_more_is_held_out_where_a_source_is_or_nothing_is_asked_for(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "other.jsonl", documents(9, 3))
    named = source(tmp_path / "other.jsonl", heldout="other")
    write_jsonl(tmp_path / "all.jsonl", documents(1, 5))
    sources = [source(tmp_path / "all.jsonl"), named]
    words = make_vocabulary(
        vocabulary_table(tmp_path / "words", sources, vocabulary={"size": 200}), []
    )
    tokens = make_tokens(tokens_table(tmp_path / "tokens", sources, vocabulary=words), [])
    assert sorted(tokens.manifest.statistics["splits"]) == ["other", "train"]
    _, nothing = prepared(tmp_path / "b", documents(1, 5), heldout_share=0.0)
    assert list(nothing.manifest.statistics["splits"]) == ["train"]
