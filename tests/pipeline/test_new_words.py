"""Words of a corpus that are added to a given vocabulary: chosen by the pieces that they save."""

import json
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, UNK, WordPieceTokenizer
from cloze.pipeline.config.settings import VocabularyStage
from cloze.pipeline.new_words import NewWords, choose_words, counted
from cloze.pipeline.vocabulary import make_vocabulary
from tests.byte_level import byte_level

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = (*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "ku", "##bern")
UNCASED = WordPieceTokenizer(PIECES, lowercase=True)


def chosen(
    *texts: str, wanted: int = 10, tokenizer: WordPieceTokenizer = UNCASED
) -> tuple[dict[str, int], NewWords]:
    """The words and what each saves."""
    found = choose_words(counted((text.encode() for text in texts), tokenizer), wanted=wanted)
    return {one.word: one.saved for one in found.words}, found


def test_the_word_that_saves_most_comes_first() -> None:
    # ku ##bern ##e ##t ##e ##s: 5 saved an occurrence; p ##o ##d: 2
    text = "The kubernetes pod. The pod, the pod! Pod pod pod pod\n"
    saved, found = chosen(text, text)
    assert saved == {"pod": 2 * 14, "kubernetes": 5 * 2}
    assert list(saved) == ["pod", "kubernetes"]
    assert found.words[1].pieces == ("ku", "##bern", "##e", "##t", "##e", "##s")
    # twice: three `the`, three marks, seven pods, one kubernetes
    assert found.tokens_before - found.tokens_after == 28 + 10
    assert found.tokens_after == 2 * (3 + 1 + 7) + 2 * 3 * 1  # marks are [UNK] here
    assert list(chosen(text, text, wanted=1)[0]) == ["pod"]


def test_a_name_of_one_file_does_not_win() -> None:
    texts = ["pod\n"] * 3 + ["zanzibar " * 1000 + "\n", "the\n", "the\n"]
    assert chosen(*texts)[0] == {"pod": 6}


def test_of_few_documents_half_have_to_have_it() -> None:
    assert chosen("pod\n")[1].fewest_documents == 1
    assert chosen("pod\n", "pod\n", "the\n", "the\n")[1].fewest_documents == 2
    assert chosen(*["pod\n"] * 60)[1].fewest_documents == 3


def test_words_that_begin_with_a_new_one_are_counted_again() -> None:
    # podman: 6 pieces before, pod ##m ##a ##n after
    _, found = chosen("pod pod\n", "pod\n", "podman\n", "the\n")
    assert [one.word for one in found.words] == ["pod"]
    assert (found.tokens_before, found.tokens_after) == (9 + 6 + 1, 3 + 4 + 1)


def test_case_and_accents_are_those_of_the_tokenizer() -> None:
    assert chosen("Café café CAFÉ\n")[0] == {"cafe": 9}
    marked = WordPieceTokenizer((*PIECES, "C", "É", "##é", "##É"), lowercase=False)
    # In a cased vocabulary the two are words of their own, and CAFÉ has letters without a piece.
    assert chosen("Café café CAFÉ\n", tokenizer=marked)[0] == {"Café": 3, "café": 3}
    kept = WordPieceTokenizer((*PIECES, "##é"), lowercase=True, strip_accents=False)
    assert chosen("Café café CAFÉ\n", tokenizer=kept)[0] == {"café": 9}


def test_neither_numbers_nor_words_with_unknown_characters_are_added() -> None:
    digits = WordPieceTokenizer((*PIECES, "1", "##1", "##2"), lowercase=True)
    saved, _ = chosen("111 12 x12 ночь наoba the\n", tokenizer=digits)
    assert saved == {"x12": 2}


def test_a_script_without_spaces_gives_its_units() -> None:
    # A Chinese character is a word already. In Thai, two clusters of two code points each, of
    # which the first begins a word.
    thai = WordPieceTokenizer((*PIECES, "中", "น", "##น", "##้", "##ำ"), lowercase=False)
    assert chosen("中中 中\n", tokenizer=thai)[0] == {}
    saved, found = chosen("นำนำ\n", tokenizer=thai)
    assert saved == {"##นำ": 1, "นำ": 1}
    assert (found.tokens_before, found.tokens_after) == (4, 2)


@pytest.mark.parametrize("word", ["kubernetes", "kubernx", "zz", "ж", "ab" * 51])
def test_pieces_are_those_of_the_library(word: str) -> None:
    assert UNCASED.pieces(word) == UNCASED.backend.encode(word, add_special_tokens=False).tokens


def test_no_id_changes_and_the_digest_does() -> None:
    more = UNCASED.with_words(["pod"])
    assert more.ids == {**UNCASED.ids, "pod": UNCASED.size}
    assert more.extends(UNCASED)
    assert UNCASED.extends(UNCASED)
    assert not UNCASED.extends(more)
    assert more.digest != UNCASED.digest
    other = WordPieceTokenizer(more.vocabulary, lowercase=False)
    assert not other.extends(UNCASED)  # the same words with other rules
    assert UNK not in more.backend.encode("pod", add_special_tokens=False).tokens


def made(output: Path, texts: Path, **config: Any) -> Artifact:
    table = StageTable(
        stage="vocabulary",
        format_version=VocabularyStage.format_version,
        config={
            "seed": 1,
            "corpus": {"sources": [{"reader": "text", "path": str(texts)}], "heldout_share": 0.0},
            "cleaning": {},
            **config,
        },
        output=str(output),
        machine={"workers": 1, "worker_mode": "inline"},
    )
    output.mkdir()
    return make_vocabulary(table, [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.txt").write_text(UNCASED.vocab_txt())
    (tmp_path / "texts").mkdir()
    for number in range(6):
        text = f"The pod of number {number} is a pod of kubernetes.\n"
        (tmp_path / "texts" / f"{number}.txt").write_text(text)
    return tmp_path


def test_the_stage_adds_words_of_the_corpus_to_a_given_vocabulary(folder: Path) -> None:
    config = {"path": str(folder / "vocab.txt"), "words": 2}
    artifact = made(folder / "out", folder / "texts", vocabulary=config)
    lines = artifact.read_bytes("vocab.txt").decode().splitlines()
    assert tuple(lines[:-2]) == UNCASED.vocabulary
    assert lines[-2:] == ["kubernetes", "number"]  # 6 × 5 pieces; 6 × 5, and later by letters
    assert artifact.manifest.statistics["words_added"] == 2
    assert artifact.manifest.statistics["words_wanted"] == 2
    table = json.loads(artifact.read_bytes("words.json"))["words"]
    assert [(one["word"], one["count"], one["saved"]) for one in table] == [
        ("kubernetes", 6, 30),
        ("number", 6, 30),
    ]


def test_words_of_pairs_come_from_the_parts_that_train(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text(UNCASED.vocab_txt())
    (tmp_path / "texts").mkdir()
    # Ten pairs of passages make a part: of four, the second is dev's and the third test's.
    words = [f"w{letter}w" for letter in "abcd"]
    for number in range(4):
        lines = "".join(f"{word} the {word} the.\n" * 20 for word in words)
        (tmp_path / "texts" / f"{number}.txt").write_text(f"number {number}.\n" + lines)
    config = {"path": str(tmp_path / "vocab.txt"), "words": 100}
    pairs = {"words": 4, "heldout_share": 0.25}
    artifact = made(tmp_path / "out", tmp_path / "texts", vocabulary=config, pairs=pairs)
    table = json.loads(artifact.read_bytes("words.json"))["words"]
    count = {one["word"]: one["count"] for one in table}
    assert artifact.manifest.statistics["documents"] == 4
    assert count["waw"] > 2 * count.get("wbw", 0)
    assert count["wdw"] > 2 * count.get("wcw", 0)


def test_a_vocabulary_of_another_kind_is_refused(folder: Path) -> None:
    byte_level(folder)
    config = {"path": str(folder / "tokenizer.json"), "words": 2}
    with pytest.raises(UsageError, match="words can be added to a WordPiece vocabulary only"):
        made(folder / "out", folder / "texts", vocabulary=config)
