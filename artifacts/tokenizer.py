"""A WordPiece tokenizer and its identity.

In:  `vocab.txt` or `tokenizer.json`.
Out: `WordPieceTokenizer`: the vocabulary, the special ids, and a `tokenizers.Tokenizer`.

`[MASK]` written in a document is text (`encode_special_tokens`): ids of body text never contain a
special id other than [UNK].
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from artifacts.digests import digest_of
from artifacts.errors import UsageError

PAD = "[PAD]"
UNK = "[UNK]"
CLS = "[CLS]"
SEP = "[SEP]"
MASK = "[MASK]"

SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
"""In the order in which a new vocabulary lists them."""

CONTINUATION = "##"
"""Prefix of a word-piece that continues a word."""

MAX_CHARACTERS_PER_WORD = 100
"""Longer words become [UNK] (the `tokenizers` default; Google's script at eedf571 says 200)."""


class AddedWord(NamedTuple):
    """A word that was added after training: found in a text before anything is split."""

    text: str
    normalized: bool
    """Found in the normalised text, not in the text as it is written."""


@dataclass(frozen=True)
class WordPieceTokenizer:
    """A vocabulary in id order and the options that change its ids.

    Vocabularies of our own have `lowercase` alone; the others are those of imported encoders.
    """

    vocabulary: tuple[str, ...]
    lowercase: bool
    strip_accents: bool | None = None
    """None: as `lowercase`."""

    split_chinese: bool = True
    """Whether every Chinese character is a word."""

    added: tuple[AddedWord, ...] = ()
    """Words of the vocabulary that are found whole."""

    def __post_init__(self) -> None:
        missing = [token for token in SPECIAL_TOKENS if token not in self.ids]
        if missing:
            raise UsageError(
                f"vocabulary of {self.size} words lacks {' '.join(missing)}; add one line each"
            )
        if len(self.ids) != self.size:
            twice = next(word for i, word in enumerate(self.vocabulary) if self.ids[word] != i)
            raise UsageError(f"vocabulary lists {twice!r} twice; remove one of the two lines")

    @cached_property
    def ids(self) -> dict[str, int]:
        """Word-piece to id."""
        return {word: index for index, word in enumerate(self.vocabulary)}

    @property
    def size(self) -> int:
        """Number of word-pieces."""
        return len(self.vocabulary)

    @property
    def pad_id(self) -> int:
        """Id of [PAD]."""
        return self.ids[PAD]

    @property
    def unk_id(self) -> int:
        """Id of [UNK]."""
        return self.ids[UNK]

    @property
    def cls_id(self) -> int:
        """Id of [CLS]."""
        return self.ids[CLS]

    @property
    def sep_id(self) -> int:
        """Id of [SEP]."""
        return self.ids[SEP]

    @property
    def mask_id(self) -> int:
        """Id of [MASK]."""
        return self.ids[MASK]

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids of all five special tokens."""
        return frozenset(self.ids[token] for token in SPECIAL_TOKENS)

    @property
    def digest(self) -> str:
        """Identity: equal digests give equal ids on every text."""
        parts = ["wordpiece", self.lowercase, MAX_CHARACTERS_PER_WORD, list(self.vocabulary)]
        options = [self.strip_accents, self.split_chinese, [list(word) for word in self.added]]
        return digest_of(parts if self.is_plain else [*parts, options])

    @property
    def is_plain(self) -> bool:
        """Whether `lowercase` is its only option, as our own tokenisation of corpora wants it."""
        return self.strip_accents is None and self.split_chinese and not self.added

    @cached_property
    def backend(self) -> Tokenizer:
        """The `tokenizers` BERT pipeline without padding or truncation."""
        tokenizer = bert_pipeline(
            models.WordPiece(
                self.ids,
                unk_token=UNK,
                max_input_chars_per_word=MAX_CHARACTERS_PER_WORD,
                continuing_subword_prefix=CONTINUATION,
            ),
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            split_chinese=self.split_chinese,
        )
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{CLS}:0 $A:0 {SEP}:0",
            pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
            special_tokens=[(CLS, self.cls_id), (SEP, self.sep_id)],
        )
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        tokenizer.add_tokens([AddedToken(w.text, normalized=w.normalized) for w in self.added])
        tokenizer.encode_special_tokens = True
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone, without [CLS] and [SEP]."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def vocab_txt(self) -> str:
        """The vocabulary as Google writes it: one word-piece a line."""
        return "".join(f"{word}\n" for word in self.vocabulary)

    def tokenizer_json(self) -> str:
        """The whole pipeline in the `tokenizers` format."""
        return str(self.backend.to_str(pretty=True))


def well_formed(text: str) -> str:
    """`text` with unpaired surrogates, which JSON can hold and UTF-8 cannot, as question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def bert_pipeline(
    model: models.Model,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
) -> Tokenizer:
    """BERT's normaliser and pre-tokenizer round any model (reference: tokenization.py:188-305)."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_chinese,
        strip_accents=lowercase if strip_accents is None else strip_accents,
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return tokenizer


def read_vocabulary(path: str | Path, *, lowercase: bool) -> WordPieceTokenizer:
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


def read_tokenizer_json(path: str | Path) -> WordPieceTokenizer:
    """The tokenizer of a `tokenizer.json` that holds a BERT WordPiece pipeline.

    Every field that changes ids is honoured or refused. Padding and truncation change none, and
    special tokens written in a text are text, whatever the file says.
    """
    try:
        table = json.loads(Path(path).read_text("utf-8"))
        if table["model"].get("type") == "BPE":
            raise UsageError(
                f"{path}: a BPE tokenizer; only encoders with a WordPiece vocabulary can be read"
            )
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
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[word] for word in words] != list(range(len(words))):
        raise UsageError(
            f"{path}: ids are not 0 to {len(words) - 1}; use the vocab.txt it was made from"
        )
    return WordPieceTokenizer(
        tuple(words),
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
