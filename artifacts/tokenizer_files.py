"""Tokenizers read from their files, every field that changes ids honoured or refused.

In:  `vocab.txt`, or the `tokenizer.json` of a WordPiece or of a byte-level BPE.
Out: the `SubwordTokenizer` (artifacts/tokenizer.py) that gives the ids which the file's own gives.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue
from tokenizers import Tokenizer

from artifacts.errors import UsageError
from artifacts.tokenizer import (
    CLS,
    CONTINUATION,
    MAX_CHARACTERS_PER_WORD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    AddedWord,
    ByteLevelTokenizer,
    SubwordTokenizer,
    WordPieceTokenizer,
)


def read_vocabulary(path: str | Path, *, lowercase: bool) -> SubwordTokenizer:
    """The tokenizer of a `tokenizer.json`, or of a `vocab.txt`, which does not say `lowercase`."""
    if str(path).endswith(".json"):
        return read_tokenizer_json(path)
    return read_vocab_txt(path, lowercase=lowercase)


def read_vocab_txt(
    path: str | Path,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
) -> WordPieceTokenizer:
    """The tokenizer of a `vocab.txt`, which says nothing of its options."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such vocabulary; expected a vocab.txt with one word-piece a line"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}; expected a vocab.txt") from None
    words = text.removesuffix("\n").split("\n") if text else []
    return WordPieceTokenizer(
        tuple(word.removesuffix("\r") for word in words),
        lowercase,
        None if strip_accents == lowercase else strip_accents,
        split_chinese,
    )


def read_tokenizer_json(path: str | Path) -> SubwordTokenizer:
    """The tokenizer of a `tokenizer.json`: BERT's WordPiece pipeline, or a byte-level BPE.

    Every field that changes ids is honoured or refused. Padding and truncation change none, and
    special tokens written in a text are text, whatever the file says.
    """
    try:
        content = Path(path).read_text("utf-8")
        table = json.loads(content)
        if table["model"].get("type") == "BPE":
            return _byte_level(content, table, path=path)
        vocabulary: dict[str, int] = dict(table["model"]["vocab"])
        normalizer = table["normalizer"]
        lowercase = bool(normalizer["lowercase"])
        added = [(word["content"], word["id"], word) for word in table.get("added_tokens", [])]
        strip_accents = normalizer.get("strip_accents")
        ids = [*vocabulary.values(), *(number for _, number, _ in added)]
        odd_words = [word for word, _, _ in added if not isinstance(word, str)]
        odd_ids = [number for number in ids if type(number) is not int]
        if odd_words or odd_ids or strip_accents not in (None, True, False):
            raise TypeError
        wrong = next(_not_berts(table, [options for _, _, options in added]), "")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such tokenizer") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UsageError(
            f"{path}: not a BERT tokenizer.json; expected a WordPiece model and a BertNormalizer"
        ) from None
    if wrong:
        raise UsageError(f"{path}: {wrong}; its ids cannot be reproduced")
    vocabulary |= {word: number for word, number, _ in added}
    return WordPieceTokenizer(
        _in_id_order(vocabulary, path=path),
        lowercase,
        None if strip_accents == lowercase else strip_accents,
        bool(normalizer.get("handle_chinese_chars", True)),
        tuple(
            AddedWord(word, bool(options.get("normalized", True)))
            for word, _, options in added
            if not options.get("special", False)
        ),
    )


def _not_berts(
    table: Mapping[str, Mapping[str, JsonValue]], added: Sequence[Mapping[str, JsonValue]]
) -> Iterator[str]:
    """The fields of a `tokenizer.json` that change ids in a way that is not honoured."""
    expected: dict[str, dict[str, JsonValue]] = {
        "model": {
            "type": "WordPiece",
            "unk_token": UNK,
            "continuing_subword_prefix": CONTINUATION,
            "max_input_chars_per_word": MAX_CHARACTERS_PER_WORD,
        },
        "normalizer": {"type": "BertNormalizer", "clean_text": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }
    for part, fields in expected.items():
        for field, value in fields.items():
            found = table[part].get(field, value)
            if found != value:
                yield f"{part}.{field} is {found!r}, expected {value!r}"
    for word in added:
        for option in ("single_word", "lstrip", "rstrip"):
            if word.get(option) and not word.get("special"):
                yield f"the added token {word.get('content')!r} has {option}"


def _in_id_order(ids: Mapping[str, int], *, path: str | Path) -> tuple[str, ...]:
    words = sorted(ids, key=ids.__getitem__)
    if [ids[word] for word in words] != list(range(len(words))):
        raise UsageError(
            f"{path}: ids are not 0 to {len(words) - 1}; use the vocab.txt it was made from"
        )
    return tuple(words)


def _byte_level(
    content: str, table: Mapping[str, Mapping[str, JsonValue]], *, path: str | Path
) -> ByteLevelTokenizer:
    """The tokenizer of a `tokenizer.json` whose model is a BPE."""
    steps = table.get("pre_tokenizer") or {}
    every = steps.get("pretokenizers", [steps])
    if not isinstance(every, list) or not any(
        isinstance(step, dict) and step.get("type") == "ByteLevel" for step in every
    ):
        raise UsageError(
            f"{path}: a BPE tokenizer that does not work on bytes; expected the pre-tokenizer "
            "ByteLevel, as ModernBERT's and Ettin's have it, or WordPiece"
        )
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if table["model"].get(option):
            raise UsageError(
                f"{path}: model.{option} is {table['model'][option]!r}, expected none; its ids "
                "cannot be reproduced"
            )
    try:
        backend = Tokenizer.from_str(content)
    except Exception as error:  # tokenizers raises nothing narrower
        raise UsageError(f"{path}: not a tokenizer.json: {error}") from None
    ids = backend.get_vocab(with_added_tokens=True)
    added = {word.content: word for word in backend.get_added_tokens_decoder().values()}
    special = {content for content, word in added.items() if word.special}
    missing = [token for token in SPECIAL_TOKENS if token not in special]
    if missing:
        raise UsageError(
            f"{path}: a BPE tokenizer without the special tokens {' '.join(missing)}; only those "
            "with BERT's can be read, as ModernBERT's and Ettin's"
        )
    around = backend.encode("a").ids
    if [*around[:1], *around[-1:]] != [ids[CLS], ids[SEP]]:
        raise UsageError(
            f"{path}: makes {[backend.id_to_token(index) for index in around]} of the text 'a', "
            f"expected it between {CLS} and {SEP}"
        )
    normalizer = backend.normalizer
    return ByteLevelTokenizer(
        tuple(
            token if token in added or not token else _readable(token)
            for token in _in_id_order(ids, path=path)
        ),
        lowercase=normalizer is not None and normalizer.normalize_str("A") == "a",
        content=content,
    )


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))

_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + place): byte
    for place, byte in enumerate(byte for byte in range(0x100) if byte not in _PRINTABLE)
}
"""The byte that a character of a byte-level vocabulary stands for (GPT-2's `bytes_to_unicode`)."""


def _readable(token: str) -> str:
    """A byte-level token as people read it, `##` before one that continues a word.

    A word begins after a space, and with punctuation or a wide character (Chinese, Japanese).
    """
    raw = bytes(_BYTES.get(character, 0x3F) for character in token)
    text = raw.decode("utf-8", "backslashreplace")
    is_whole = raw[0] < 0x80 or text[0] != "\\"  # no byte from inside a character
    wide = unicodedata.east_asian_width(text[0]) in "WF"
    begins = is_whole and (wide or unicodedata.category(text[0])[0] not in "LMN")
    shown = text.removeprefix(" ") or text
    if not begins:
        return CONTINUATION + shown
    return f"\\{shown}" if shown.startswith(CONTINUATION) else shown
