"""`cloze import`: equal vectors of the same text, or an error that names the field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BertModel

from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.layout import hugging_face_config, to_hugging_face
from tests.cloze.tiny_model import CONFIG

Cloze = Callable[..., Any]

WORDS = (*SPECIAL_TOKENS, "zurich", "zürich", "東", "##京", "東京", "covid", "a", "##19", "19", "b")
TEXTS = ("Zürich 東京", "covid19 a <ent> b", "a b", "COVID19")


@pytest.fixture
def model(folder: Path) -> Callable[..., Path]:
    """Write a model in Hugging Face's layout with changes to tokenizer.json and config.json."""

    def write(
        *,
        padded_to: int = 0,
        added: tuple[str, ...] = (),
        tokenizer: dict[str, dict[str, object]] | None = None,
        **config: object,
    ) -> Path:
        directory = folder / "theirs"
        directory.mkdir()
        table = json.loads(WordPieceTokenizer(WORDS, lowercase=True).tokenizer_json())
        for part, fields in (tokenizer or {}).items():
            table[part] |= fields
        for number, word in enumerate(added, start=len(WORDS)):
            options = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
            table["added_tokens"].append(
                {"id": number, "content": word, "normalized": True, **options}
            )
        rows = padded_to or len(WORDS) + len(added)
        torch.manual_seed(0)
        weights = to_hugging_face(PretrainingModel(Encoder(CONFIG, rows)).state_dict())
        weights["bert.embeddings.word_embeddings.weight"] *= 50  # other ids, other vectors
        save_file(weights, directory / "model.safetensors")
        theirs = hugging_face_config(CONFIG, rows)
        if not config.pop("keep_cloze", False):
            del theirs["cloze"]
        (directory / "config.json").write_text(json.dumps(theirs | config))
        (directory / "tokenizer.json").write_text(json.dumps(table))
        return directory

    return write


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tokenizer": {"normalizer": {"strip_accents": False}}},
        {"tokenizer": {"normalizer": {"lowercase": False}}},
        {"tokenizer": {"normalizer": {"handle_chinese_chars": False}}},
        {"added": ("<ent>",)},
        {"padded_to": 16},
        {"padded_to": 64, "added": ("<ent>", "covid19")},
    ],
    ids=["plain", "accents", "case", "chinese", "added", "padded", "added and padded"],
)
def test_an_imported_encoder_computes_the_vectors_of_transformers(
    cloze: Cloze, model: Callable[..., Path], options: dict[str, Any]
) -> None:
    directory = model(**options)
    imported = cloze("import", str(directory))
    assert imported.returncode == 0, imported.stderr
    done = cloze("embed", imported.stdout.strip(), *TEXTS, "--json")
    assert done.returncode == 0, done.stderr
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    theirs = BertModel.from_pretrained(directory).eval()
    for text, vector in zip(TEXTS, json.loads(done.stdout)["vectors"], strict=True):
        with torch.inference_mode():
            states = theirs(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": {"normalizer": {"clean_text": False}}}, "normalizer.clean_text is False"),
        (
            {"tokenizer": {"model": {"max_input_chars_per_word": 9}}},
            "max_input_chars_per_word is 9",
        ),
        ({"tokenizer": {"pre_tokenizer": {"type": "Whitespace"}}}, "pre_tokenizer.type is"),
        ({"padded_to": 17}, "word_embeddings.weight is [17, 8]"),
        ({"hidden_size": 16, "keep_cloze": True}, "hidden_size is 16, but its section cloze has 8"),
    ],
    ids=["clean_text", "long words", "pre_tokenizer", "another vocabulary", "edited"],
)
def test_an_unsupported_field_is_rejected_by_name(
    cloze: Cloze, model: Callable[..., Path], options: dict[str, Any], message: str
) -> None:
    done = cloze("import", str(model(**options)))
    assert done.returncode != 0
    assert message in done.stderr


def test_contradictory_files_are_rejected(cloze: Cloze, model: Callable[..., Path]) -> None:
    directory = model()
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    done = cloze("import", str(directory))
    assert done.returncode != 0
    assert "do_lower_case is False, but tokenizer.json says True" in done.stderr


def special(word: str, number: int, **options: object) -> dict[str, object]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": word, **usual, "special": True, **options}


def test_added_special_tokens_are_kept_whole_in_vectors_and_in_the_export(
    cloze: Cloze, model: Callable[..., Path], folder: Path
) -> None:
    first, user = len(WORDS), len(WORDS) + 1
    directory = model(padded_to=24)
    path = directory / "tokenizer.json"
    table = json.loads(path.read_text())
    table["added_tokens"] += [special("[E1]", first), special("<user>", user, lstrip=True)]
    path.write_text(json.dumps(table))
    texts = ["[E1] a [E1]", "b <user>a", "a [MASK]"]
    done = cloze("embed", str(directory), *texts, "--json")
    assert done.returncode == 0, done.stderr
    theirs = BertModel.from_pretrained(directory).eval()
    a, b, unknown = WORDS.index("a"), WORDS.index("b"), 1  # [CLS] is 2, [SEP] 3
    by_hand = [
        [2, first, a, first, 3],
        [2, b, user, a, 3],
        [2, a, unknown, unknown, unknown, 3],  # [MASK] written in a text is text
    ]
    for ids, vector in zip(by_hand, json.loads(done.stdout)["vectors"], strict=True):
        with torch.inference_mode():
            states = theirs(torch.tensor([ids])).last_hidden_state[0]
        np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=1e-5)
    assert cloze("export", str(directory), "again").returncode == 0
    exported = AutoTokenizer.from_pretrained(folder / "again")
    assert exported("[E1] a <user>").input_ids == [2, first, a, user, 3]
    assert {"[E1]", "<user>"} < set(exported.all_special_tokens)


def test_special_tokens_that_only_the_settings_name_are_refused(
    cloze: Cloze, model: Callable[..., Path]
) -> None:
    directory = model()
    settings = {"additional_special_tokens": ["[E1]", {"content": "[E2]"}]}
    (directory / "special_tokens_map.json").write_text(json.dumps(settings))
    done = cloze("import", str(directory))
    assert done.returncode == 2
    assert "the special tokens [E1] [E2] are not in tokenizer.json" in done.stderr


def test_a_cased_vocabulary_without_settings_is_read_as_cased(
    cloze: Cloze, model: Callable[..., Path], folder: Path
) -> None:
    directory = model(padded_to=16)
    (directory / "tokenizer.json").unlink()
    words = (*SPECIAL_TOKENS, "Paris", "paris", "is", "A", "a")
    (directory / "vocab.txt").write_text("".join(f"{word}\n" for word in (*words, "[unused1]")))
    upper, lower = json.loads(cloze("embed", str(directory), "Paris", "paris", "--json").stdout)[
        "vectors"
    ]
    assert not np.allclose(upper, lower)
    (folder / "texts" / "two.txt").write_text("Paris is a. " * 20)
    done = cloze("init", "texts", "--from", str(directory))
    assert "lowercase = false" in done.stdout
    assert "(cased)" in done.stdout
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    same = json.loads(cloze("embed", str(directory), "Paris", "paris", "--json").stdout)["vectors"]
    assert np.array_equal(*same)
