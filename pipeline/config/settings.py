"""Settings of the stages that turn documents into examples. No framework is imported here.

In:  tables of a run's TOML file.
Out: one frozen `Config` for each table.
"""

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from artifacts.config import Config, GrownConfig

LineBreak = Literal["sentence", "paragraph", "detect"]

Reader = Literal[
    "docstrings",
    "text",
    "blank_line_text",
    "sentence_lines",
    "jsonl",
    "parquet",
    "arrow",
    "wikiextractor",
    "mediawiki",
]


class SourceConfig(GrownConfig):
    """One source of documents."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"heldout_documents"})

    reader: Reader
    """How the source's files are read: the name of a function in `pipeline/readers`."""

    path: str = ""
    """File, folder, glob or fsspec URL; empty for `docstrings`."""

    packages: tuple[str, ...] = ()
    """Installed distributions whose docstrings are read (`docstrings` only)."""

    text_field: str = "text"
    """Column or key that holds the text (`jsonl`, `parquet`, `arrow`)."""

    html: bool | None = None
    """Whether HTML's entities and `<br>` in the text are decoded. Default: only for
    `wikiextractor` and `mediawiki`; set it for JSON lines or tables from a crawl."""

    line_break: LineBreak | None = None
    """What a line break in the text means: the end of a `sentence`, the end of a `paragraph`, or
    either the end of a paragraph or a wrapped line, by the document's line lengths (`detect`).
    Default: `detect` for text, JSON lines and tables, `paragraph` for Wikipedia and docstrings,
    `sentence` for `sentence_lines`."""

    weight: int = Field(default=1, ge=1, le=255)
    """How many copies of each document enter the examples; their ordinal is part of the seed."""

    heldout: str = ""
    """Name of the held-out split this whole source forms; empty: the source is for training."""

    heldout_documents: str = ""
    """Name of the split for those of its documents that `corpus.heldout_share` draws; empty:
    `heldout`. With names of their own, what is learnt of one source and what is forgotten of
    another are measured apart."""

    @model_validator(mode="after")
    def _has_an_origin(self) -> "SourceConfig":
        if self.reader == "docstrings" and (self.path or not self.packages):
            raise ValueError("reader docstrings wants packages = [...] and no path")
        if self.reader != "docstrings" and (self.packages or not self.path):
            raise ValueError(f"reader {self.reader} wants path = '...' and no packages")
        if self.heldout and self.heldout_documents:
            raise ValueError("heldout holds the whole source out; leave heldout_documents away")
        return self


class CorpusConfig(Config):
    """The documents, and the share of them that is held out."""

    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    """The sources, in order of precedence: of two equal documents the first survives."""

    on_bad_file: Literal["fail", "skip"] = "fail"
    """What happens at a file that is damaged, cut short, an archive, unreadable or not of its
    reader's format: the stage ends with its name, or the rest of the file is left out and listed.
    Images, PDFs and other files without text are left out and listed in any case."""

    heldout_share: float = Field(default=0.01, ge=0.0, lt=0.5)
    """Share of the documents, drawn by digest, that forms the split `heldout`. Where none is drawn
    and no source is held out, it is the document with the smallest digest; where all are, that with
    the largest trains; of fewer than three documents this share of the sentences is held out, at
    the end of each. Not in the paper, which reports its pre-training loss on training data."""


class VocabularyConfig(Config):
    """The WordPiece vocabulary."""

    size: int = Field(default=30522, ge=64, le=1 << 24)
    """Number of tokens, special ones included (the released uncased vocabulary has 30,522)."""

    lowercase: bool = True
    """Lower-case and strip accents (BERT's uncased models)."""

    sample_bytes: int = Field(default=100_000_000, ge=1)
    """Bytes of text it is trained on: a sample drawn by document digest."""

    path: str = ""
    """An existing vocab.txt or tokenizer.json to use instead of training one."""


class CleaningConfig(Config):
    """Filters that drop whole documents; all off by default, counted when on."""

    min_words: int = Field(default=0, ge=0)
    """Drop shorter documents (Gopher: 50)."""

    max_words: int = Field(default=0, ge=0)
    """Drop longer documents; 0 is off (Gopher: 100,000)."""

    min_mean_word_length: float = Field(default=0.0, ge=0.0)
    """Drop documents whose words have fewer characters on average; 0 is off (Gopher: 3)."""

    max_mean_word_length: float = Field(default=0.0, ge=0.0)
    """Drop documents whose words have more characters on average; 0 is off (Gopher: 10)."""

    max_symbol_to_word_ratio: float = Field(default=0.0, ge=0.0)
    """Drop documents with more hashes or ellipses per word; 0 is off (Gopher: 0.1)."""

    max_bullet_line_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with more lines that begin with a bullet; 0 is off (Gopher: 0.9)."""

    max_ellipsis_line_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with more lines that end with an ellipsis; 0 is off (Gopher: 0.3)."""

    min_alphabetic_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Drop documents with fewer words that contain a letter; 0 is off (Gopher: 0.8)."""

    min_stop_words: int = Field(default=0, ge=0, le=8)
    """Drop documents with fewer different ones of the, be, to, of, and, that, have, with; for
    English only (Gopher: 2)."""

    drop_curly_brackets: bool = False
    """Drop documents with a `{`: code rather than text (C4)."""

    drop_lorem_ipsum: bool = False
    """Drop documents with `lorem ipsum` (C4)."""

    max_replacement_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Drop documents in which more of the characters were invalid bytes."""

    drop_list: str = ""
    """Artifact directory of a drop list (near-duplicates, overlap with evaluation sets)."""


class NearDuplicatesConfig(Config):
    """Documents that nearly equal another one: of all alike, one stays."""

    threshold: float = Field(default=0.8, gt=0.0, lt=1.0)
    """Share of shingles in common (Jaccard) from which two documents are alike."""

    words: int = Field(default=5, ge=1, le=64)
    """Words of a shingle; shorter documents are never near-duplicates."""

    permutations: int = Field(default=128, ge=16, le=1024)
    """Values of a signature: more find the threshold more exactly and take longer."""


class OverlapConfig(Config):
    """Documents that share a shingle with an evaluation set."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, folders, globs or URLs of evaluation data: text, TSV, JSON or JSON lines."""

    words: int = Field(default=13, ge=4, le=64)
    """Words of a shingle (GPT-3: 13); shorter texts of the set are not looked for."""


class DedupConfig(Config):
    """Near-duplicates and contamination, found by looking at all documents; both are off."""

    near_duplicates: NearDuplicatesConfig | None = None
    """Set (`{}` for its defaults) to drop near-duplicates."""

    overlap: OverlapConfig | None = None
    """Set to drop what overlaps with evaluation sets."""

    @property
    def wanted(self) -> bool:
        """Whether any search is on."""
        return bool(self.near_duplicates or self.overlap)


class MaskingConfig(GrownConfig):
    """How many tokens are predicted, and what stands in their place (paper, 3.1 and A.1)."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"heldout_masked_lm_prob"})

    masked_lm_prob: float = Field(default=0.15, gt=0.0, lt=1.0)
    """Share of the tokens that is predicted; the count is exact, not drawn (reference: round(0.15 *
    length))."""

    heldout_masked_lm_prob: float | None = Field(default=None, gt=0.0, lt=1.0)
    """The same in held-out examples: 0.15, so that losses of recipes that mask more can be compared
    with others'; None: as in training."""

    max_predictions_per_seq: int = Field(default=0, ge=0)
    """Upper limit per example; 0 is the reference's 0.15 * length rounded up (20 at 128, 77 at
    512)."""

    mask_share: float = Field(default=0.8, ge=0.0, le=1.0)
    """Share of the predicted tokens that is replaced by [MASK] (paper, Table 8)."""

    random_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share replaced by a random token; the rest is kept."""

    unit: Literal["token", "whole_word", "span"] = "token"
    """What is masked together: single tokens, whole words, or spans (SpanBERT, p = 0.2, at
    most 10)."""

    def of(self, split: str) -> "MaskingConfig":
        """The masking of one split: `train`, or one that is held out."""
        if split == "train" or self.heldout_masked_lm_prob is None:
            return self
        return self.model_copy(update={"masked_lm_prob": self.heldout_masked_lm_prob})

    @model_validator(mode="after")
    def _shares_fit(self) -> "MaskingConfig":
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise ValueError("mask_share + random_share must not exceed 1")
        return self


class ExamplesConfig(GrownConfig):
    """MLM/NSP examples (reference: create_pretraining_data.py)."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"pack_documents"})

    max_seq_lengths: tuple[int, ...] = Field(default=(128, 512), min_length=1)
    """Lengths to produce, each from the same tokens (paper, A.2: 128 for 90 % of the steps, then
    512)."""

    copies: int = Field(default=10, ge=1, le=255)
    """Different maskings and pairings of the corpus (reference: dupe_factor = 10)."""

    short_seq_prob: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of documents cut into shorter sequences (reference: 0.1, drawn per document)."""

    second_segment: Literal["next_sentence", "sentence_order", "none"] = "next_sentence"
    """What the second segment is: the paper's next or random, ALBERT's next or swapped, or
    absent."""

    pack_documents: bool = False
    """Fill every example with several documents, each with [CLS] and [SEP], positions, attention
    and masks of its own; wants `second_segment = "none"`. Not in the paper (Warner et al. 2024,
    2.2.1)."""

    masking: MaskingConfig = MaskingConfig()
    """The masked language model's settings."""

    @model_validator(mode="after")
    def _packed_documents_have_one_segment(self) -> "ExamplesConfig":
        if self.pack_documents and self.second_segment != "none":
            raise ValueError(
                f'pack_documents = true with second_segment = "{self.second_segment}", which fills '
                'an example with one pair: set second_segment = "none"'
            )
        return self

    @field_validator("max_seq_lengths")
    @classmethod
    def _lengths_make_sense(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if min(lengths) < 8 or max(lengths) > 1 << 16:
            raise ValueError("each length must lie between 8 and 65,536 tokens")
        if len(set(lengths)) < len(lengths):
            raise ValueError("a length is named twice")
        return lengths


class PairsConfig(Config):
    """Pairs of texts that belong together, made of documents without any label."""

    kind: Literal["neighbours", "opening", "heading", "signature"] = "neighbours"
    """What a pair is: two excerpts of a document that follow one another; a document's first line,
    its title where it has one, and what comes after it; the heading of a section and how the
    section begins; or, of `docstrings`, a function's summary and its signature."""

    sources: tuple[SourceConfig, ...] = ()
    """The documents, as in `[[corpus.sources]]`; empty: the run's corpus."""

    words: int = Field(default=60, ge=4, le=10_000)
    """Words of an excerpt, which ends with a sentence."""

    train_pairs: int = Field(default=20_000, ge=8)
    """Largest number of training pairs, drawn evenly from all there are."""

    evaluation_pairs: int = Field(default=1000, ge=8)
    """Largest number of pairs in each of dev and test."""

    heldout_share: float = Field(default=0.1, gt=0.0, le=0.33)
    """Share of the text that gives dev, and as much test: in parts of some pages, so that neither
    what is held out nor what follows it is trained on."""


class LabelsConfig(Config):
    """Labelled tasks made from the docstrings' own signatures."""

    packages: tuple[str, ...] = Field(min_length=1)
    """Distributions that give training and development data."""

    test_packages: tuple[str, ...] = Field(min_length=1)
    """Distributions that give test data; they should be held out of pre-training too."""

    tagging_train_sentences: int = Field(default=400, ge=8)
    """Labelled sentences for training the tagger: few, because that is where pre-training shows."""

    pair_train_examples: int = Field(default=4000, ge=8)
    """Labelled pairs for training the pair classifier."""

    evaluation_examples: int = Field(default=1500, ge=8)
    """Examples of each development and test set."""
