"""Tokenizers and their identity: WordPiece, and those of imported encoders.

In:  a vocabulary learnt here, a `vocab.txt`, or a `tokenizer.json` (WordPiece, byte-level BPE,
     Unigram and others), of which every field that affects ids is honoured or rejected.
Out: `SubwordTokenizer`: the special ids, `encode`, and a `tokenizers.Tokenizer`, with the same ids
     as the original file.

`[MASK]` written in a document is plain text (`encode_special_tokens`), so body text never contains
a special id other than [UNK].

The kinds differ only in this module, except for WordPiece's fast implementation
(pipeline/tokenizer) and the leading space of byte-level tokens (`spaces_count`).
"""

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import tokenizers
from pydantic import JsonValue
from tokenizers import AddedToken, Tokenizer

from cloze.artifacts.config import JsonObject
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import UsageError, is_panic

PAD = "[PAD]"
UNK = "[UNK]"
CLS = "[CLS]"
SEP = "[SEP]"
MASK = "[MASK]"

SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
"""In their order in a new vocabulary."""

CONTINUATION = "##"
"""Prefix of tokens that continue a word."""

MAX_CHARACTERS_PER_WORD = 100
"""Longer words become [UNK] (the default of `tokenizers`; Google's script at eedf571 has 200)."""


LARGEST_FILE = 128 << 20
MOST_WORDS = 1 << 21
"""Bytes and entries of a vocabulary: the largest in use have 60 MB and a million. Ten million would
take minutes and gigabytes before the weights turn out not to fit."""

CASED = 0.01
"""Share of words with capital letters in a cased vocabulary, at least."""


LONG_TEXT = 1 << 20
"""Characters above which a text is encoded in parts."""


class AddedWord(NamedTuple):
    """A token added after training, matched before the text is split."""

    text: str
    normalized: bool
    """Whether it is matched in the normalised text rather than the original."""

    special: bool = False
    """Whether decoders may skip it; it is matched like any other."""

    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    """Whether it is matched only between words, and with the white space before or after it."""

    @property
    def identity(self) -> list[str | bool]:
        """What affects ids."""
        options = [self.single_word, self.lstrip, self.rstrip]
        return [self.text, self.normalized, *(options if any(options) else [])]

    @property
    def token(self) -> AddedToken:
        """For a pipeline that treats special tokens as text, but not this one."""
        return AddedToken(
            self.text,
            single_word=self.single_word,
            lstrip=self.lstrip,
            rstrip=self.rstrip,
            normalized=self.normalized,
        )


FIELDS = AddedWord._fields[1:]
"""The options of an added token."""


@dataclass(frozen=True)
class SubwordTokenizer(ABC):
    """A vocabulary in id order, and how text is mapped to ids."""

    spaces_count: ClassVar[bool] = False
    """Whether a word's ids depend on a preceding space."""

    vocabulary: tuple[str, ...]
    """Readable tokens; those that continue a word begin with `##`."""

    lowercase: bool
    """Whether text is lowercased."""

    def __post_init__(self) -> None:
        missing = [token for token in SPECIAL_TOKENS if token not in self.ids]
        if missing:
            raise UsageError(
                f"vocabulary of {self.size} tokens lacks {' '.join(missing)}; add a line for each"
            )

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token, as spelled in the tokenizer's file, to id."""
        return {word: index for index, word in enumerate(self.vocabulary)}

    @property
    def size(self) -> int:
        """Number of tokens."""
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
    @abstractmethod
    def digest(self) -> str:
        """Identity: tokenizers with equal digests give equal ids for every text."""

    @property
    @abstractmethod
    def backend(self) -> Tokenizer:
        """The `tokenizers` pipeline without padding or truncation."""

    @property
    def has_fast_form(self) -> bool:
        """Whether pipeline/tokenizer/wordpiece.py computes its ids; otherwise `tokenizers` does."""
        return False

    def running(self, parts: Sequence[str]) -> list[str]:
        """Parts of a text, prepared to be encoded one by one with the ids of the whole."""
        if not self.spaces_count:
            return list(parts)
        # As in running text, a space stands before every part but the first.
        return [f" {part}" if number and part else part for number, part in enumerate(parts)]

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, without [CLS] and [SEP]."""
        return list(self.backend.encode(well_formed(text), add_special_tokens=False).ids)

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of every text, without [CLS] and [SEP], in threads.

        An encoding takes hundreds of bytes a token, so a long text is encoded in parts where these
        have the ids of the whole: in BERT's pipeline no word goes on behind a space.
        """
        if not self.has_fast_form or max(map(len, texts), default=0) <= LONG_TEXT:
            found = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in found]
        return [[one for part in _parts(text) for one in self.encode(part)] for text in texts]

    def encode_around_masks(self, text: str) -> list[list[int]]:
        """Ids of the parts of `text` before, between and after its [MASK]s."""
        return [self.encode(part) for part in text.split(MASK)]

    def with_words(self, words: Sequence[str]) -> "SubwordTokenizer":
        """The same tokenizer with `words` behind its vocabulary, so that no id changes.

        Refused where a word that is added would not be found in running text.
        """
        del words
        raise UsageError(
            "words can be added to a WordPiece vocabulary only (BERT's), and this is of another "
            "kind; use it as it is"
        )

    def extends(self, other: "SubwordTokenizer") -> bool:
        """Whether this is `other`, or `other` with words behind its vocabulary."""
        if self.size > other.size and self.vocabulary[: other.size] == other.vocabulary:
            try:
                return self.digest == other.with_words(self.vocabulary[other.size :]).digest
            except UsageError:  # of a kind to which nothing can be added
                return False
        return self.digest == other.digest

    def tokenizer_json(self) -> str:
        """The whole pipeline in the `tokenizers` format."""
        return str(self.backend.to_str(pretty=True))

    def files(self) -> dict[str, bytes]:
        """The files stored with examples and weights, by name."""
        return {"tokenizer.json": self.tokenizer_json().encode()}

    @abstractmethod
    def transformers_options(self) -> dict[str, JsonValue]:
        """The contents of `tokenizer_config.json`: the class in `transformers` and its options."""


@dataclass(frozen=True)
class WordPieceTokenizer(SubwordTokenizer):
    """A WordPiece vocabulary and the options that affect ids.

    Vocabularies learnt here use `lowercase` and `strip_accents`; the other options occur in
    imported encoders.
    """

    strip_accents: bool | None = None
    """None: same as `lowercase`."""

    split_chinese: bool = True
    """Whether every Chinese character is a word of its own."""

    added: tuple[AddedWord, ...] = ()
    """Tokens that are matched whole."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.ids) != self.size:
            # Of duplicates the last has the id, so an earlier one's place differs from it.
            twice = next(word for i, word in enumerate(self.vocabulary) if self.ids[word] != i)
            raise UsageError(f"vocabulary lists {twice!r} twice; remove one of the lines")

    @property
    def digest(self) -> str:
        """Identity: tokenizers with equal digests give equal ids for every text."""
        # Unusual options are added only where they are set, so that usual tokenizers have the same
        # digest with or without them.
        parts = ["wordpiece", self.lowercase, MAX_CHARACTERS_PER_WORD, list(self.vocabulary)]
        added = [word.identity for word in self.added]
        options = [self.strip_accents, self.split_chinese, added]
        usual = self.strip_accents is None and self.split_chinese and not self.added
        return digest_of(parts if usual else [*parts, options])

    @property
    def has_fast_form(self) -> bool:
        """Whether no option but those of case and accents is set."""
        return self.split_chinese and not self.added

    @cached_property
    def backend(self) -> Tokenizer:
        """The `tokenizers` BERT pipeline without padding or truncation."""
        tokenizer = bert_pipeline(
            tokenizers.models.WordPiece(
                self.ids,
                unk_token=UNK,
                max_input_chars_per_word=MAX_CHARACTERS_PER_WORD,
                continuing_subword_prefix=CONTINUATION,
            ),
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            split_chinese=self.split_chinese,
        )
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{CLS}:0 $A:0 {SEP}:0",
            pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
            special_tokens=[(CLS, self.cls_id), (SEP, self.sep_id)],
        )
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        # Special tokens written in a text are text, so only these five may be special here.
        tokenizer.add_tokens([word.token for word in self.added])
        tokenizer.encode_special_tokens = True
        return tokenizer

    def tokenizer_json(self) -> str:
        """The whole pipeline in the `tokenizers` format, special tokens marked as such."""
        written = super().tokenizer_json()
        special = {word.text for word in self.added if word.special}
        if not special:
            return written
        table = json.loads(written)
        for word in table["added_tokens"]:
            word["special"] = word["special"] or word["content"] in special
        return json.dumps(table, ensure_ascii=False, indent=2)

    def with_words(self, words: Sequence[str]) -> "WordPieceTokenizer":
        """The same tokenizer with `words` behind its vocabulary, so that no id changes."""
        return replace(self, vocabulary=(*self.vocabulary, *words))

    def pieces(self, word: str) -> list[str]:
        """The word-pieces of a normalised word, longest match first.

        A `word` that begins with `##` is the rest of one. Every piece but the first begins with
        `##`; [UNK] alone if a character is in no piece.
        """
        text = word.removeprefix(CONTINUATION)
        prefix = word[: len(word) - len(text)]
        if len(text) > MAX_CHARACTERS_PER_WORD:
            return [UNK]
        found, start = [], 0
        while start < len(text):
            # The longest first: as soon as a piece is known, no shorter one is tried.
            ends = range(len(text), start, -1)
            known = (end for end in ends if prefix + text[start:end] in self.ids)
            end = next(known, 0)
            if not end:
                return [UNK]
            found.append(prefix + text[start:end])
            start, prefix = end, CONTINUATION
        return found

    def vocab_txt(self) -> str:
        """The vocabulary in Google's format: one word-piece per line."""
        return "".join(f"{word}\n" for word in self.vocabulary)

    def files(self) -> dict[str, bytes]:
        """`tokenizer.json` and `vocab.txt`."""
        return {**super().files(), "vocab.txt": self.vocab_txt().encode()}

    def transformers_options(self) -> dict[str, JsonValue]:
        """BERT's options, without those implied by `do_lower_case`."""
        options: dict[str, JsonValue] = {
            "tokenizer_class": "BertTokenizer",  # for `AutoTokenizer`
            "do_lower_case": self.lowercase,
        }
        if self.strip_accents is not None:
            options["strip_accents"] = self.strip_accents
        if not self.split_chinese:
            options["tokenize_chinese_chars"] = False
        special: list[JsonValue] = [word.text for word in self.added if word.special]
        if special:
            options["extra_special_tokens"] = special
        return options


@dataclass(frozen=True)
class ByteLevelTokenizer(SubwordTokenizer):
    """The byte-level BPE of an imported encoder such as ModernBERT or Ettin; never learnt here.

    A token includes the space before its word, so word boundaries are visible in the tokens.
    """

    spaces_count: ClassVar[bool] = True

    content: str
    """The content of `tokenizer.json`."""

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token, as spelled in the file, to id; readable forms may coincide."""
        return dict(self.backend.get_vocab(with_added_tokens=True))

    @property
    def digest(self) -> str:
        """Digest of everything that affects ids, independent of its spelling."""
        table = json.loads(self.content)
        # Merges are written as strings or as pairs.
        merges = [m.split(" ", 1) if isinstance(m, str) else m for m in table["model"]["merges"]]
        model = {**table["model"], "merges": merges}
        rest = [table.get(part) for part in ("normalizer", "pre_tokenizer", "added_tokens")]
        matched = [word["content"] for word in _other_special(table, SPECIAL_TOKENS)]
        return digest_of(["byte-level", model, *rest, *([matched] if matched else [])])

    @cached_property
    def backend(self) -> Tokenizer:
        """The file's own pipeline."""
        return own_pipeline(self.content, special=SPECIAL_TOKENS)

    def encode_around_masks(self, text: str) -> list[list[int]]:
        """Strip the white space around a [MASK], if the file says so."""
        return _around_masks(self, text, MASK)

    def tokenizer_json(self) -> str:
        """The original file."""
        return self.content

    def transformers_options(self) -> dict[str, JsonValue]:
        """The class that is defined entirely by `tokenizer.json`."""
        return {"tokenizer_class": "PreTrainedTokenizerFast"}


@dataclass(frozen=True)
class ForeignTokenizer(SubwordTokenizer):
    """Any other `tokenizer.json` of an imported encoder, such as Unigram; never learnt here.

    The special tokens may have other names than BERT's, as `<s>` for [CLS]. `tokenizers` computes
    every id.
    """

    spaces_count: ClassVar[bool] = True

    content: str
    """The content of `tokenizer.json`."""

    special: tuple[str, ...]
    """The file's names of `SPECIAL_TOKENS`, in their order."""

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token, as spelled in the file, to id; the special tokens also by BERT's names."""
        found = dict(self.backend.get_vocab(with_added_tokens=True))
        return found | {
            ours: found[theirs] for ours, theirs in zip(SPECIAL_TOKENS, self.special, strict=True)
        }

    @property
    def digest(self) -> str:
        """Digest of everything that affects ids."""
        table = json.loads(self.content)
        parts = ("model", "normalizer", "pre_tokenizer", "added_tokens", "post_processor")
        return digest_of(["foreign", list(self.special), *(table.get(part) for part in parts)])

    @cached_property
    def backend(self) -> Tokenizer:
        """The file's own pipeline."""
        return own_pipeline(self.content, special=self.special)

    def encode_around_masks(self, text: str) -> list[list[int]]:
        """Strip the white space around a [MASK], if the file says so."""
        return _around_masks(self, text, self.special[SPECIAL_TOKENS.index(MASK)])

    def tokenizer_json(self) -> str:
        """The original file."""
        return self.content

    def transformers_options(self) -> dict[str, JsonValue]:
        """The class that is defined by `tokenizer.json`, and which tokens are special."""
        names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **dict(zip(names, self.special, strict=True)),
        }


def own_pipeline(content: str, *, special: Collection[str]) -> Tokenizer:
    """The pipeline of a `tokenizer.json` without padding or truncation.

    The tokens `special`, written in a text, are text; any other added token is matched whole.
    """
    table = json.loads(content)
    # `encode_special_tokens` makes all special tokens text, so those that are to be matched must
    # not be special.
    for word in _other_special(table, special):
        word["special"] = False
    tokenizer = Tokenizer.from_str(json.dumps(table))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = True
    return tokenizer


def _around_masks(tokenizer: SubwordTokenizer, text: str, mask_token: str) -> list[list[int]]:
    """Ids of the parts of `text` around [MASK], without the white space that it takes."""
    added = tokenizer.backend.get_added_tokens_decoder().values()
    (mask,) = (word for word in added if word.content == mask_token)
    parts = text.split(MASK)
    # White space that the token takes on its left is the end of the part before it.
    if mask.lstrip:
        parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
    if mask.rstrip:
        parts = [parts[0], *(part.lstrip() for part in parts[1:])]
    return [tokenizer.encode(part) for part in parts]


def _other_special(table: JsonObject, special: Collection[str]) -> list[JsonObject]:
    """The special tokens of a `tokenizer.json` beyond those named."""
    return [
        word
        for word in table.get("added_tokens", [])
        if word.get("special") and word["content"] not in special
    ]


def _parts(text: str) -> Iterator[str]:
    """`text` in parts of up to `LONG_TEXT` characters, each but the first from a space on."""
    begin = 0
    while len(text) - begin > LONG_TEXT:
        end = text.rfind(" ", begin + 1, begin + LONG_TEXT)
        if end < 0:  # no space for so long
            break
        yield text[begin:end]
        begin = end
    yield text[begin:]


def well_formed(text: str) -> str:
    """`text` with unpaired surrogates, which JSON allows and UTF-8 does not, replaced by `?`."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def bert_pipeline(
    model: tokenizers.models.Model,
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
) -> Tokenizer:
    """BERT's normaliser and pre-tokenizer around `model` (reference: tokenization.py:188-305)."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=split_chinese,
        strip_accents=lowercase if strip_accents is None else strip_accents,
        lowercase=lowercase,
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix=CONTINUATION)
    return tokenizer


def read_vocabulary(
    path: str | Path, *, lowercase: bool | None, strip_accents: bool | None = None
) -> SubwordTokenizer:
    """Read a `tokenizer.json`, or a `vocab.txt`, which does not contain the options.

    `lowercase` None: as the words of the vocabulary show.
    """
    if str(path).endswith(".json"):
        return read_tokenizer_json(path)
    return read_vocab_txt(path, lowercase=lowercase, strip_accents=strip_accents)


def read_vocab_txt(
    path: str | Path,
    *,
    lowercase: bool | None,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
) -> WordPieceTokenizer:
    """Read a `vocab.txt`, which does not contain the tokenizer's options.

    Without `lowercase`, a vocabulary with capital letters is cased: lowercased text would never
    reach these words.
    """
    try:
        text = _readable_content(path)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such vocabulary; expected a vocab.txt with one word-piece per line"
        ) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 at byte {error.start}; expected a vocab.txt") from None
    if text.count("\n") > MOST_WORDS:
        raise UsageError(
            f"{path}: {text.count(chr(10)):,} words, expected at most {MOST_WORDS:,}; it is no "
            "vocabulary, but perhaps a text"
        )
    # The last line feed ends a line and begins no further token.
    lines = text.removesuffix("\n").split("\n") if text else []
    words = tuple(line.removesuffix("\r") for line in lines)
    if lowercase is None:
        upper = [word for word in words if word != word.lower() and not word.startswith("[")]
        # A few odd letters beyond ASCII change in lowercase though the vocabulary is uncased.
        lowercase = not any(map(str.isascii, upper)) and len(upper) < CASED * len(words)
    return WordPieceTokenizer(
        words,
        lowercase,
        None if strip_accents == lowercase else strip_accents,
        split_chinese,
    )


def _readable_content(path: str | Path) -> str:
    """The text of a vocabulary's file, if it is not too large for one."""
    with open(path, "rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise UsageError(
            f"{path}: larger than {LARGEST_FILE:,} bytes, which no vocabulary is; expected one of "
            f"at most {MOST_WORDS:,} words"
        )
    return content.decode("utf-8")


def read_tokenizer_json(path: str | Path) -> SubwordTokenizer:
    """Read a `tokenizer.json`: BERT's WordPiece pipeline, a byte-level BPE, or any other kind.

    Every field that affects ids is honoured or rejected. Padding and truncation do not affect them,
    and special tokens written in a text are treated as text, whatever the file says.
    """
    try:
        content = _readable_content(path).replace("\r\n", "\n")
        table = json.loads(content)
        # Before the file reaches `tokenizers`, which would do what it says.
        if wrong := next(_growth(table.get("normalizer")), ""):
            raise UsageError(f"{path}: {wrong}")
        if _is_byte_level(table):
            return _byte_level(content, table, path=path)
        if table["model"].get("type") in FOREIGN_MODELS:
            return _foreign(content, table, path=path)
        vocabulary: dict[str, int] = dict(table["model"]["vocab"])
        normalizer = table["normalizer"]
        lowercase = bool(normalizer["lowercase"])
        added = [(word["content"], word["id"], word) for word in table.get("added_tokens", [])]
        strip_accents = normalizer.get("strip_accents")
        # Wrong types would be accepted here and fail when they are used.
        ids = [*vocabulary.values(), *(number for _, number, _ in added)]
        odd_words = [word for word, _, _ in added if not isinstance(word, str)]
        odd_ids = [number for number in ids if type(number) is not int]
        if odd_words or odd_ids or strip_accents not in (None, True, False):
            raise TypeError
        wrong = next(_not_berts(table), "")
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
        # `None` means: as `lowercase` says.
        None if strip_accents == lowercase else strip_accents,
        bool(normalizer.get("handle_chinese_chars", True)),
        tuple(
            # Options that are missing are off, except `normalized`.
            AddedWord(word, *(bool(options.get(name, name == "normalized")) for name in FIELDS))
            for word, _, options in added
            if word not in SPECIAL_TOKENS
        ),
    )


FOREIGN_MODELS = ("Unigram", "BPE", "WordLevel")
"""Models other than WordPiece and byte-level BPE."""

SPECIAL_NAMES = {
    PAD: (PAD, "<pad>"),
    UNK: (UNK, "<unk>"),
    CLS: (CLS, "<s>", "<bos>"),
    SEP: (SEP, "</s>", "<eos>"),
    MASK: (MASK, "<mask>"),
}
"""Names of the special tokens in the files of multilingual encoders."""

MOST_GROWTH = 64
"""By how much a foreign normalizer's replacements may lengthen a text; usual ones do not."""

MAY_MATCH_NOTHING = re.compile(r"[*?^$|]|\\[bBAZzGKyY]|\{[0,]|\(\)|\A\Z")
"""Every regular expression that can match without consuming a letter has one of these; some others
do, too."""

WORD_BEGINS = "\u2581"
"""Stands for the space before a word in SentencePiece's vocabularies."""


def _is_byte_level(table: Mapping[str, Mapping[str, JsonValue]]) -> bool:
    steps = table.get("pre_tokenizer") or {}
    every = steps.get("pretokenizers", [steps])
    return (
        table["model"].get("type") == "BPE"
        and isinstance(every, list)
        and any(isinstance(step, dict) and step.get("type") == "ByteLevel" for step in every)
    )


def _foreign(
    content: str, table: Mapping[str, Mapping[str, JsonValue]], *, path: str | Path
) -> ForeignTokenizer:
    """Parse a `tokenizer.json` of another kind."""
    if table["model"].get("dropout"):
        raise UsageError(
            f"{path}: model.dropout is {table['model']['dropout']!r}, expected none; its ids "
            "cannot be reproduced"
        )
    with _refusing(path):
        backend = own_pipeline(content, special=())
        # A model that can be read may still fail when it is used.
        backend.encode("a")
    ids = backend.get_vocab(with_added_tokens=True)
    named = {
        ours: next((name for name in names if name in ids), "")
        for ours, names in SPECIAL_NAMES.items()
    }
    missing = [" or ".join(SPECIAL_NAMES[ours]) for ours, theirs in named.items() if not theirs]
    if missing:
        raise UsageError(f"{path}: no special token {', '.join(missing)}; expected an encoder's")
    # Its template must put [CLS] and [SEP] around a text, as the encoder expects.
    around = backend.encode("a").ids
    if [*around[:1], *around[-1:]] != [ids[named[CLS]], ids[named[SEP]]]:
        raise UsageError(
            f"{path}: encodes 'a' as {[backend.id_to_token(index) for index in around]}, "
            f"expected it between {named[CLS]} and {named[SEP]}"
        )
    # Only where beginnings of words are marked can continuations be told.
    spaced = any(word.startswith(WORD_BEGINS) for word in ids)

    def readable(token: str) -> str:
        if token in named.values() or not spaced:
            return token
        begins = token.startswith(WORD_BEGINS)
        # A mark alone stays as it is.
        return (token[1:] or token) if begins else f"{CONTINUATION}{token}"

    # Tried rather than read from the file: several normalizers fold case, alone or within a
    # sequence.
    normalizer = backend.normalizer
    return ForeignTokenizer(
        tuple(map(readable, _in_id_order(ids, path=path))),
        lowercase=normalizer is not None and "A" not in normalizer.normalize_str("A"),
        content=content,
        special=tuple(named.values()),
    )


@contextmanager
def _refusing(path: str | Path) -> Iterator[None]:
    """Turn every error of `tokenizers`, panics too, into a `UsageError` about the file."""
    try:
        yield
    except BaseException as error:  # tokenizers raises nothing narrower
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise UsageError(f"{path}: not a tokenizer.json: {error}") from None


def _growth(normalizer: JsonValue) -> Iterator[str]:
    """How much a normalizer's replacements may lengthen a text, if that is too much.

    Thirty of them that each double a letter would never end.
    """
    factor, waiting = 1.0, [normalizer]
    # Replacements multiply: each may lengthen what those before it have made.
    while waiting:
        step = waiting.pop()
        if isinstance(step, list):
            waiting += step
        elif isinstance(step, dict):
            waiting += [step.get("normalizers")]
            if step.get("type") == "Replace":
                pattern, content = step.get("pattern"), str(step.get("content"))
                known = pattern if isinstance(pattern, dict) else {}
                plain, expression = known.get("String"), str(known.get("Regex", ""))
                # What matches an empty string inserts between letters, which all stay.
                inserts = not plain and MAY_MATCH_NOTHING.search(expression) is not None
                factor *= max(1.0, inserts + len(content) / max(len(str(plain or "")), 1))
    if factor > MOST_GROWTH:
        yield (
            f"its normalizer may make a text {factor:,.0f} times as long, expected at most "
            f"{MOST_GROWTH}; texts would fill the memory"
        )


def _not_berts(table: Mapping[str, Mapping[str, JsonValue]]) -> Iterator[str]:
    """The fields of a `tokenizer.json` that change ids in an unsupported way."""
    expected: dict[tuple[str, str], JsonValue] = {
        ("model", "type"): "WordPiece",
        ("model", "unk_token"): UNK,
        ("model", "continuing_subword_prefix"): CONTINUATION,
        ("model", "max_input_chars_per_word"): MAX_CHARACTERS_PER_WORD,
        ("normalizer", "type"): "BertNormalizer",
        ("normalizer", "clean_text"): True,
        ("pre_tokenizer", "type"): "BertPreTokenizer",
    }
    added = [str(word["content"]) for word in table.get("added_tokens", [])]  # type: ignore[index]
    for word in (*table["model"]["vocab"], *added):  # type: ignore[misc]
        if "\n" in word or "\r" in word:
            yield f"the token {word!r} contains a line break, which vocab.txt cannot hold"
    for (part, field), value in expected.items():
        found = table[part].get(field, value)
        if found != value:
            yield f"{part}.{field} is {found!r}, expected {value!r}"


def _in_id_order(ids: Mapping[str, int], *, path: str | Path) -> tuple[str, ...]:
    # An id is the number of a row of the embeddings: a gap would be a row that no text can reach,
    # and all later rows would belong to other tokens in vocab.txt, which has no numbers.
    words = sorted(ids, key=ids.__getitem__)
    if [ids[word] for word in words] != list(range(len(words))):
        raise UsageError(
            f"{path}: ids are not 0 to {len(words) - 1}; use the vocab.txt that it was made from"
        )
    return tuple(words)


def _byte_level(
    content: str, table: Mapping[str, Mapping[str, JsonValue]], *, path: str | Path
) -> ByteLevelTokenizer:
    """Parse a `tokenizer.json` whose model is a BPE."""
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if table["model"].get(option):
            raise UsageError(
                f"{path}: model.{option} is {table['model'][option]!r}, expected none; its ids "
                "cannot be reproduced"
            )
    with _refusing(path):
        # One word is encoded at once: some files are parsed, and fail only when they are used.
        backend = Tokenizer.from_str(content)
        backend.encode("a")
    ids = backend.get_vocab(with_added_tokens=True)
    added = {word.content: word for word in backend.get_added_tokens_decoder().values()}
    special = {content for content, word in added.items() if word.special}
    missing = [token for token in SPECIAL_TOKENS if token not in special]
    if missing:
        raise UsageError(
            f"{path}: a BPE tokenizer without the special tokens {' '.join(missing)}; BERT's are "
            "required, as in ModernBERT and Ettin"
        )
    around = backend.encode("a").ids
    if [*around[:1], *around[-1:]] != [ids[CLS], ids[SEP]]:
        raise UsageError(
            f"{path}: encodes 'a' as {[backend.id_to_token(index) for index in around]}, "
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
"""The byte that a character of a byte-level vocabulary encodes (GPT-2's `bytes_to_unicode`)."""


def _readable(token: str) -> str:
    """The readable form of a byte-level token, with `##` if it continues a word.

    A word begins after a space, with punctuation, or with a wide character (Chinese, Japanese).
    """
    # 0x3F is `?`, for characters that stand for no byte.
    raw = bytes(_BYTES.get(character, 0x3F) for character in token)
    text = raw.decode("utf-8", "backslashreplace")
    is_whole = raw[0] < 0x80 or text[0] != "\\"  # does not start inside a character
    wide = unicodedata.east_asian_width(text[0]) in "WF"
    begins = is_whole and (wide or unicodedata.category(text[0])[0] not in "LMN")
    shown = text.removeprefix(" ") or text
    if not begins:
        return CONTINUATION + shown
    # A token that has ## in its own text must not look like the continuation of a word.
    return f"\\{shown}" if shown.startswith(CONTINUATION) else shown
