"""Models that are damaged, foreign or hostile: one line that names the file, and no hang."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from tests.cloze.tiny_model import TOKENIZER, write_cross_encoder, write_model
from tests.waiting import PATIENCE

Cloze = Callable[..., Any]
Weights = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def model(folder: Path) -> Path:
    write_model(folder / "encoder")
    return folder / "encoder"


def change(model: Path, changed: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]) -> None:
    file = model / "model.safetensors"
    weights: Weights = load_file(file)
    save_file({name: changed(values) for name, values in weights.items()}, file)


def test_a_model_card_in_latin_1_is_no_obstacle(cloze: Cloze, model: Path) -> None:
    (model / "README.md").write_bytes(b"---\nlicense: caf\xe9\n---\n")
    done = cloze("export", "encoder", "out")
    assert done.returncode == 0, done.stderr
    assert "license: caf\ufffd\n" in (model.parent / "out" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("command", [("embed", "encoder", "a b"), ("export", "encoder", "out")])
def test_weights_that_are_integers_are_refused(
    cloze: Cloze, model: Path, command: tuple[str, ...]
) -> None:
    change(model, lambda values: values.astype(np.int64))
    done = cloze(*command)
    assert done.returncode == 1
    assert "is torch.int64, expected floating-point numbers" in done.stderr


def test_vectors_that_are_no_numbers_are_not_printed(cloze: Cloze, model: Path) -> None:
    change(model, lambda values: np.full_like(values, 3e38))
    done = cloze("embed", "encoder", "a b")
    assert (done.returncode, done.stdout) == (1, "")
    assert "text 1: its vector has NaN or infinite values" in done.stderr


def overflow(directory: Path, name: str) -> None:
    """Give one tensor values whose products exceed fp32, though each is a number."""
    weights: Weights = load_file(directory / "model.safetensors")
    weights[name] = np.full_like(weights[name], 3e38)
    save_file(weights, directory / "model.safetensors")


@pytest.mark.parametrize(
    "command",
    [("fill-mask", "encoder", "the [MASK]"), ("fill-mask", "encoder", "the [MASK]", "--json")],
)
def test_tokens_with_probabilities_that_are_no_numbers_are_not_printed(
    cloze: Cloze, model: Path, command: tuple[str, ...]
) -> None:
    change(model, lambda values: np.full_like(values, 3e38))
    done = cloze(*command)
    assert done.returncode == 1
    assert "the probability of a token has NaN or infinite values" in done.stderr
    assert "NaN" not in done.stdout.replace("has NaN or", "")


def test_scores_of_a_reranker_that_are_no_numbers_are_not_printed(
    cloze: Cloze, model: Path
) -> None:
    write_cross_encoder(model.parent / "ranker")
    overflow(model.parent / "ranker", "bert.encoder.layer.0.output.dense.weight")
    done = cloze("search", "encoder", "texts", "the list", "--rerank", "ranker", "--json")
    assert done.returncode == 1
    assert "question 'the list': a score of the reranker has NaN or infinite" in done.stderr
    assert "passages" not in done.stdout


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "README.md"),
        *("tokenizer_config.json", "modules.json", "manifest.json", "1_Pooling/config.json"),
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_device_in_a_model_is_not_waited_for(
    cloze: Cloze, model: Path, name: str, kind: str
) -> None:
    if name.startswith("1_"):
        listed = [("Transformer", ""), ("Pooling", "1_Pooling")]
        table = [{"type": f"sentence_transformers.models.{kind}", "path": p} for kind, p in listed]
        (model / "modules.json").write_text(json.dumps(table))
        (model / "1_Pooling").mkdir()
    (model / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(model / name)
    else:
        (model / name).symlink_to("/dev/zero")
    assert cloze("embed", "encoder", "a b").returncode in (0, 1, 2)


def test_a_tokenizer_whose_replacements_double_is_refused(cloze: Cloze, model: Path) -> None:
    double = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    (model / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "normalizer": {"type": "Sequence", "normalizers": [double] * 40},
                "pre_tokenizer": None,
                "model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0},
            }
        )
    )
    done = cloze("embed", "encoder", "a b")
    assert done.returncode == 2
    assert "may make a text 1,099,511,627,776 times as long" in done.stderr


def test_a_tokenizer_whose_regular_expression_would_never_end_is_one_error(
    cloze: Cloze, model: Path
) -> None:
    """The library ends a search after ten million steps back, and panics."""
    (model / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {"Regex": "(a+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                "post_processor": {
                    "type": "BertProcessing",
                    "cls": ["[CLS]", 2],
                    "sep": ["[SEP]", 3],
                },
                "model": {
                    "type": "WordLevel",
                    "vocab": {word: n for n, word in enumerate(TOKENIZER.vocabulary)},
                    "unk_token": "[UNK]",
                },
            }
        )
    )
    assert cloze("embed", "encoder", "a").returncode == 0
    started = time.monotonic()
    done = cloze("embed", "encoder", "a" * 5_000 + "b")
    assert time.monotonic() - started < PATIENCE  # without a limit, till the end of time
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "retry-limit-in-match over" in line


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_a_vocabulary_of_ten_million_entries_is_refused_at_once(
    cloze: Cloze, model: Path, name: str
) -> None:
    (model / "vocab.txt").unlink()
    if name == "vocab.txt":
        (model / name).write_bytes(b"word\n" * 10**7)
    else:
        entries = b'"a word of it": 0,\n' * 10**7
        (model / name).write_bytes(b'{"model": {"type": "WordLevel", "vocab": {' + entries)
    started = time.monotonic()
    done = cloze("embed", "encoder", "a b")
    assert time.monotonic() - started < 10
    assert done.returncode == 2
    assert f"{name}: " in done.stderr
    assert "expected at most 2,097,152" in done.stderr or "at most 2,097,152 words" in done.stderr


def test_a_text_with_half_a_character_is_read(cloze: Cloze, model: Path) -> None:
    row = '{"text": "The list \\ud800 of names, all of them."}\n'
    (model.parent / "texts" / "one.jsonl").write_text(row * 20)
    done = cloze("init", "texts/one.jsonl", "--from", "encoder")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word", ["a\nb", "a\r"])
def test_a_token_with_a_line_break_is_refused(cloze: Cloze, model: Path, word: str) -> None:
    """In the vocab.txt of an export, all later tokens would have other ids."""
    words = (*SPECIAL_TOKENS, "a", "b", word)
    written = WordPieceTokenizer(words, lowercase=True).tokenizer_json()
    (model / "tokenizer.json").write_text(written)
    done = cloze("export", "encoder", "out")
    assert done.returncode == 2
    assert f"the token {word!r} contains a line break" in done.stderr
