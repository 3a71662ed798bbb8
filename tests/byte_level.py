"""A tiny byte-level BPE, trained here, in the arrangement of ModernBERT's and Ettin's."""

from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from cloze.artifacts.tokenizer import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    SubwordTokenizer,
    read_tokenizer_json,
)

TEXT = (
    "The list of names, and the names of lists. A new array of given shape and type is returned; "
    "it isn't a copy. Zürich, naïve café, 東京 and 中国 are words, 1234 and 3.14 numbers. "
    "## a heading\nprint('hello world')  # a comment\n"
)


@cache
def byte_level_json() -> str:
    """Its `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 2, trainer)
    tokenizer.add_tokens([AddedToken("  ", normalized=True)])  # runs of spaces, as theirs
    tokenizer.add_special_tokens([UNK, CLS, SEP, PAD, AddedToken(MASK, lstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B {SEP}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (CLS, SEP)],
    )
    return str(tokenizer.to_str(pretty=True))


def byte_level(folder: Path) -> SubwordTokenizer:
    """As it is read from `folder`, where it is written."""
    path = folder / "tokenizer.json"
    path.write_text(byte_level_json(), "utf-8")
    return read_tokenizer_json(path)
