"""The configuration of the pipeline: settings, and the table of each stage. Imports no framework.

In:  tables of a run's TOML file.
Out: one frozen `Config` per table; one frozen `StageConfig` per stage, with its program and format
     version; the machine settings.
"""

import math
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from cloze.artifacts.config import Config, StageConfig
from cloze.pipeline.config.formats import FORMATS
from cloze.pipeline.config.keep import Keep
from cloze.pipeline.config.rules import RulesConfig

BUCKET_BYTES, MOST_BUCKETS = 4 << 20, 1 << 16
"""Least text in a bucket of tokens, which is one task of the next stage; and most buckets."""

DOCUMENTS_PER_BUCKET = 650
"""Average, so that hardly any bucket has fewer than 500: the source of random next sentences."""

MOST_BUCKET_BYTES = 64 << 20
"""Most text in a bucket, however few documents that is: a worker loads it whole, and needs about
five times as much memory."""

LEAST_TOKENS = 10
"""Words and marks of the shortest substring that counts as repeated."""

LineBreak = Literal["sentence", "paragraph", "detect"]

PACKAGE_READERS = frozenset({"docstrings"})
"""Readers of installed distributions (`packages`) instead of files (`path`); they alone yield the
pairs of `pairs.kind = "signature"`."""


def distinct(names: Iterable[str]) -> list[str]:
    """The distinct names, in the order in which each comes first."""
    return list(dict.fromkeys(names))


def bucket_bits(documents: float, text_bytes: float) -> int:
    """Bits of a bucket number in a split of this size."""
    # Few documents or little text: fewer buckets, each with enough documents for random next
    # sentences. But no bucket larger than a worker can load.
    wanted = min(documents / DOCUMENTS_PER_BUCKET, text_bytes / BUCKET_BYTES, MOST_BUCKETS)
    least = min(text_bytes / MOST_BUCKET_BYTES, MOST_BUCKETS)
    # Down to a power of two for what is wanted, up for what is necessary.
    return max(max(int(wanted), 1).bit_length() - 1, math.ceil(math.log2(max(least, 1))))


def _known_reader(name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"unknown reader; the readers are {', '.join(FORMATS)}")
    return name


ReaderName = Annotated[
    str, AfterValidator(_known_reader), WithJsonSchema({"type": "string", "enum": [*FORMATS]})
]


class BoilerplateConfig(Config):
    """What recurs in the documents of a source: what is removed, and from where."""

    lines: bool = True
    """Remove lines that recur in many documents, by the next three settings."""

    min_documents: int = Field(default=10, ge=2, le=1 << 16)
    """Documents in which a line must occur to be boilerplate; exact duplicates count once."""

    kept_documents: int = Field(default=1, ge=0)
    """Documents that keep the line: those of the smallest digests. To remove it from the n-th
    document on, set this to n - 1 and `min_documents` to n."""

    min_words: int = Field(default=6, ge=1, le=1000)
    """Words with letters that a line needs to be compared by itself. Shorter ones ("Yes.",
    "References") are removed only as part of a run of short lines, such as a menu, that recurs as
    a run and has as many words together. A span of sentences needs as many for each of them."""

    ignore_digits: bool = False
    """Compare lines and sentences without their digits, so that page numbers and dates make no
    difference."""

    sentences: int = Field(default=0, ge=0, le=100)
    """Remove every span of so many sentences that came earlier, in any document of the source; 0 is
    off (C4, 2.2: 3)."""

    tokens: int = Field(default=0, ge=0, le=10_000)
    """Remove every exact substring of so many words and marks, or more, that came earlier, in any
    document of the source; 0 is off (Lee et al. 2022, arXiv 2107.06499: 50)."""

    @property
    def spans(self) -> bool:
        """Whether spans of sentences or of tokens are removed."""
        return bool(self.sentences or self.tokens)

    @model_validator(mode="after")
    def _some_are_removed(self) -> "BoilerplateConfig":
        if self.kept_documents >= self.min_documents:
            raise ValueError(
                f"kept_documents = {self.kept_documents} is not below min_documents = "
                f"{self.min_documents}, so a line could recur and be removed nowhere; lower it"
            )
        if not self.lines and not self.spans:
            raise ValueError(
                "lines = false, and neither sentences nor tokens is set, so nothing would be "
                "removed; set one of them, or leave boilerplate out"
            )
        if 0 < self.tokens < LEAST_TOKENS:
            raise ValueError(
                f"tokens = {self.tokens} would remove ordinary phrases; set 0, or at least "
                f"{LEAST_TOKENS}"
            )
        return self


class SourceConfig(Config):
    """One source of documents."""

    reader: ReaderName
    """Format of the source's files: the name of a reader."""

    path: str = ""
    """File, folder, glob or fsspec URL; empty for readers of `packages`."""

    exclude: tuple[str, ...] = ()
    """Files and folders to leave out, by name (`README.md`, `*.docx`) or, with a slash, by path
    below `path` (`drafts/*`). Hidden ones are always left out."""

    packages: tuple[str, ...] = ()
    """Installed distributions whose docstrings are read (`docstrings` only)."""

    text_field: str = "text"
    """Column or key that holds the text (`jsonl`, `csv`, `parquet`, `arrow`); `a.b` for the key `b`
    within `a`. A list of strings is one text, each string a line."""

    html: bool | None = None
    """Decode HTML entities and `<br>` in the text, and reduce documents with other tags to what a
    browser would show (needs the extra `web`). Default: only entities and `<br>`, and only for
    `wikiextractor` and `mediawiki`; enable it for crawled JSON lines or tables."""

    line_break: LineBreak | None = None
    """Meaning of a line break: the end of a `sentence`, the end of a `paragraph`, or `detect`:
    decide from the document's line lengths whether it ends a paragraph or wraps a line. Default:
    `detect` for text, JSON lines and tables, `paragraph` for Wikipedia and docstrings, `sentence`
    for `sentence_lines`."""

    boilerplate: BoilerplateConfig | None = None
    """Remove lines that recur in many documents of this source, such as headers, notices and
    menus, and repeated spans if asked for; `{}` for the defaults. `cloze boilerplate` lists them
    first."""

    cleaning: RulesConfig | None = None
    """The rules of this source, in place of all those of `[cleaning]`; `{}` for none."""

    name: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?$", max_length=100)
    """Name in mixtures and in the report. Sources with the same name, such as a language, are mixed
    as one. If any source has a name, all that are trained on need one; training then mixes them by
    the tokens of each, or as `share`, `pretrain.temperature` or the `mixture` of a phase say."""

    share: float | None = Field(default=None, gt=0.0, le=1.0)
    """Share of the training tokens that the sources of this name give, whatever their size; those
    without a share divide the rest. No preparation depends on it."""

    weight: int = Field(default=1, ge=1, le=255)
    """Number of copies of each document in the examples; each copy is seeded differently. Only for
    sources without a name: named ones have a `share`."""

    heldout: str = ""
    """Hold out the whole source as a split of this name; empty: use the source for training."""

    heldout_documents: str = ""
    """Name of the split for the documents that `corpus.heldout_share` draws from this source;
    empty: `heldout`. A separate name per source lets you measure what is learnt from one source
    and forgotten from another."""

    @model_validator(mode="after")
    def _has_an_origin(self) -> "SourceConfig":
        reads_packages = self.reader in PACKAGE_READERS
        if reads_packages and (self.path or not self.packages):
            raise ValueError(f"reader {self.reader} needs packages = [...] and no path")
        if not reads_packages and (self.packages or not self.path):
            raise ValueError(f"reader {self.reader} needs path = '...' and no packages")
        if self.heldout and self.heldout_documents:
            raise ValueError("heldout holds out the whole source; remove heldout_documents")
        if self.share and not self.name:
            raise ValueError('share without a name; name the source as well, as in name = "wiki"')
        if self.share and self.heldout:
            raise ValueError("share of a source that is held out; remove share or heldout")
        # Both say how often text is read; together they would contradict each other.
        if self.name and self.weight != 1:
            raise ValueError(
                f"weight = {self.weight} is for sources without a name, and {self.name} has one; "
                "use share"
            )
        return self


class CorpusConfig(Config):
    """The documents, and the share of them to hold out."""

    sources: tuple[SourceConfig, ...] = Field(min_length=1)
    """The sources, in order of precedence: of duplicate documents the first source's is kept."""

    on_bad_file: Literal["fail", "skip"] = "fail"
    """How to treat a file that is damaged, truncated, an archive, unreadable or in the wrong
    format: `fail` stops the stage and names the file, `skip` drops the rest of the file and lists
    it. A malformed record (a line of JSON, a row, an article) is named with its line, or dropped
    alone. Images, PDFs and other non-text files are always dropped and listed."""

    heldout_share: float = Field(default=0.01, ge=0.0, lt=0.5)
    """Share of the documents, drawn by digest, that forms the split `heldout`. In tiny corpora: if
    none is drawn and no source is held out, the document with the smallest digest is held out; if
    all are drawn, the one with the largest digest is used for training; with fewer than three
    documents, this share of the sentences is held out from the end of each. Not in the paper,
    which reports pre-training loss on training data."""

    abbreviations: tuple[str, ...] = ()
    """Abbreviations of the corpus's language that do not end a sentence, without their last full
    stop and up to 8 bytes long, in addition to the English ones; `0` stands for numbers of one or
    two digits (ordinals, as in `am 3. Juni`). `cloze init` learns them from a sample."""

    @model_validator(mode="after")
    def _names_can_be_mixed(self) -> "CorpusConfig":
        trained = [source for source in self.sources if not source.heldout]
        for number, source in enumerate(self.sources if self.names else ()):
            if not source.name and not source.heldout:
                raise ValueError(f"sources.{number} has no name, but others have; name it as well")
        giving = [source.name for source in trained if source.share]
        for name in distinct(giving):
            if giving.count(name) > 1:
                raise ValueError(
                    f"{giving.count(name)} sources named {name} have a share; it is that of all "
                    "sources of a name: give it in one of them, or let their names differ"
                )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each source, that of its split if it is held out; empty without names."""
        if not any(source.name for source in self.sources if not source.heldout):
            return ()
        return tuple(source.name or source.heldout for source in self.sources)

    @property
    def trained_names(self) -> list[str]:
        """The distinct names of the sources that are trained on."""
        return distinct(one.name for one in self.sources if one.name and not one.heldout)

    @property
    def shares(self) -> dict[str, float]:
        """The shares that sources have, by name."""
        return {source.name: source.share for source in self.sources if source.share}

    def unnamed(self) -> "CorpusConfig":
        """The same documents for stages that do not mix them."""
        plain: dict[str, object] = {"name": "", "share": None}
        sources = tuple(source.model_copy(update=plain) for source in self.sources)
        return self.model_copy(update={"sources": sources})

    @property
    def has_boilerplate(self) -> bool:
        """Whether recurring lines are removed from any source."""
        return any(source.boilerplate for source in self.sources)


class VocabularyConfig(Config):
    """The WordPiece vocabulary."""

    size: int = Field(default=30522, ge=64, le=1 << 24)
    """Number of tokens, including special tokens (the released uncased vocabulary has 30,522)."""

    lowercase: bool = True
    """Lower-case, and strip accents unless `strip_accents` is false (BERT's uncased models)."""

    strip_accents: bool | None = None
    """Strip accents, and with them the vowel signs of Indic scripts, the breve of `й` and the
    voicing marks of kana. Default: like `lowercase`."""

    alphabet: int = Field(default=0, ge=0)
    """Most characters in the vocabulary; words with others become [UNK]. 0: as many as cover
    99.99 % of the text, but at least 1,000 if there are so many and at most half of the vocabulary;
    more where pieces leave room."""

    sample_bytes: int = Field(default=100_000_000, ge=1)
    """Bytes of text to train the tokenizer on: a sample drawn by document digest."""

    path: str = ""
    """An existing vocab.txt or tokenizer.json to use instead of training one."""

    words: int = Field(default=0, ge=0, le=1 << 21)
    """Words of the corpus to add behind the WordPiece vocabulary in `path`, at most: those that
    save most pieces among those in three documents or more. `pretrain.init` and `finetune.encoder`
    get an embedding for each, the mean of its pieces'."""

    @model_validator(mode="after")
    def _words_need_a_vocabulary(self) -> "VocabularyConfig":
        if self.words and not self.path:
            raise ValueError(
                "words are added to an existing vocabulary; give vocabulary.path, or a larger "
                "vocabulary.size to learn one"
            )
        return self


class CleaningConfig(RulesConfig):
    """The rules of all sources without their own, and lists made before."""

    keep: str = ""
    """Drop documents of low quality: `">= 0.6"` keeps those with at least this score, `"best 50%"`
    the best half of each source. Scores are made as `[quality]` says; documents that are held out
    are kept whatever theirs. Empty: off."""

    scores: str = ""
    """Artifact directory of the stage `scores`, whose scores to use; empty: made by the run if it
    has `[quality]`."""

    boilerplate: str = ""
    """Artifact directory of the stage `boilerplate`, whose list of lines to use; empty: made by
    the run if a source asks for it."""

    drop_list: str = ""
    """Artifact directory of a drop list: near-duplicates, overlap with evaluation sets."""

    @field_validator("keep")
    @classmethod
    def _keep_can_be_read(cls, text: str) -> str:
        if text:
            Keep.of(text)
        return text


class NearDuplicatesConfig(Config):
    """Near-duplicate removal: one document of each group is kept."""

    threshold: float = Field(default=0.8, gt=0.0, lt=1.0)
    """Jaccard similarity of their shingles at which two documents count as near-duplicates."""

    words: int = Field(default=5, ge=1, le=64)
    """Words per shingle; shorter documents are never near-duplicates."""

    permutations: int = Field(default=128, ge=16, le=1024)
    """Values per MinHash signature: more values separate pairs at the threshold more sharply but
    take longer."""


class OverlapConfig(Config):
    """Documents that share a shingle with an evaluation set."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, folders, globs or URLs of evaluation data: text, TSV, JSON or JSON lines."""

    words: int = Field(default=13, ge=4, le=64)
    """Words per shingle (GPT-3: 13); shorter evaluation texts are ignored."""


class QualityConfig(Config):
    """Scores of quality, made by one of `labelled`, `good` and `model`, for `cleaning.keep`."""

    labelled: str = ""
    """File of labelled documents, JSON lines or CSV, from which a linear model of words and pairs
    of words is made: a few hundred suffice. Labels of 0 and 1 (1 is good) make a classifier, whose
    score is a probability; other numbers a regression."""

    text_field: str = "text"
    """Column or key of `labelled` that holds the text."""

    label_field: str = "label"
    """Column or key of `labelled` that holds the label."""

    good: tuple[SourceConfig, ...] = ()
    """Good text, as in `[[corpus.sources]]`. The score is then the mean log likelihood ratio of a
    word, in nats, between two bigram models: of this text, and of all the corpus. 0 is as usual."""

    model: str = ""
    """A fine-tuned classifier or regression of single texts: a run's name, or a model's folder. The
    score is the probability of `label`, or the number predicted. Computed on processors, one text
    at a time, so that it is the same for any number of workers."""

    task: str = ""
    """The task of a `model` that has several."""

    label: str = ""
    """The label of good text, for a `model` that classifies; empty: `1`."""

    @model_validator(mode="after")
    def _one_way(self) -> "QualityConfig":
        given = [name for name in ("labelled", "good", "model") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"{' and '.join(given) or 'nothing'} given to score documents by; expected one of "
                "labelled (a file of labelled documents), good (sources of good text) and model (a "
                "fine-tuned classifier)"
            )
        if (self.label or self.task) and not self.model:
            raise ValueError("task and label are for a model; remove them")
        if any(source.boilerplate for source in self.good):
            raise ValueError("good: boilerplate is removed from corpus.sources only; leave it out")
        return self


class DedupConfig(Config):
    """Near-duplicate and contamination search over the whole corpus; both off by default."""

    near_duplicates: NearDuplicatesConfig | None = None
    """Drop near-duplicates; `{}` for the defaults."""

    overlap: OverlapConfig | None = None
    """Drop documents that overlap with evaluation sets."""

    @property
    def wanted(self) -> bool:
        """Whether any search is enabled."""
        return bool(self.near_duplicates or self.overlap)


class MaskingConfig(Config):
    """How many tokens are predicted, and what replaces them (paper, 3.1 and A.1)."""

    masked_lm_prob: float = Field(default=0.15, gt=0.0, lt=1.0)
    """Share of the tokens to predict; the count is exact, not sampled (reference: round(0.15 *
    length))."""

    heldout_masked_lm_prob: float | None = Field(default=None, gt=0.0, lt=1.0)
    """The same for held-out examples; None: as in training. Set it to 0.15 to compare held-out
    losses between recipes with different mask rates."""

    max_predictions_per_seq: int = Field(default=0, ge=0)
    """Maximum predictions per example; 0: as in the reference, 0.15 * length rounded up (20 at 128,
    77 at 512)."""

    mask_share: float = Field(default=0.8, ge=0.0, le=1.0)
    """Share of the predicted tokens replaced by [MASK] (paper, Table 8)."""

    random_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share replaced by a random token; the rest is left unchanged."""

    unit: Literal["token", "whole_word", "span"] = "token"
    """Masking unit: single tokens, whole words, or spans (SpanBERT: geometric lengths with p =
    0.2, at most 10). Words are known only with a tokenizer that marks where they begin or go on;
    with another, every token counts as a word."""

    def of(self, split: str) -> "MaskingConfig":
        """The masking of one split: `train`, or a held-out one."""
        if split == "train" or self.heldout_masked_lm_prob is None:
            return self
        return self.model_copy(update={"masked_lm_prob": self.heldout_masked_lm_prob})

    @model_validator(mode="after")
    def _shares_fit(self) -> "MaskingConfig":
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise ValueError("mask_share + random_share must not exceed 1")
        return self


class ExamplesConfig(Config):
    """MLM/NSP examples (reference: create_pretraining_data.py)."""

    max_seq_lengths: tuple[int, ...] = Field(default=(128, 512), min_length=1)
    """Sequence lengths to produce from the same tokens (paper, A.2: 128 for 90 % of the steps,
    then 512)."""

    copies: int = Field(default=10, ge=1, le=255)
    """Passes over the corpus with different masks and pairs (reference: dupe_factor = 10)."""

    short_seq_prob: float = Field(default=0.1, ge=0.0, le=1.0)
    """Probability that a document is cut into shorter sequences (reference: 0.1, drawn per
    document)."""

    second_segment: Literal["next_sentence", "sentence_order", "none"] = "next_sentence"
    """Second segment: next or random (NSP, as in the paper), next or swapped (SOP, ALBERT), or
    none."""

    pack_documents: bool = False
    """Sequence packing: fill every example with several documents, each with its own [CLS], [SEP],
    positions, attention and masks; requires `second_segment = "none"`. Not in the paper (Warner et
    al. 2024, 2.2.1)."""

    masking: MaskingConfig = MaskingConfig()
    """Settings of masked language modelling."""

    @model_validator(mode="after")
    def _packed_documents_have_one_segment(self) -> "ExamplesConfig":
        if self.pack_documents and self.second_segment != "none":
            raise ValueError(
                f'pack_documents = true with second_segment = "{self.second_segment}", which puts '
                'one pair in each example: set second_segment = "none"'
            )
        return self

    @field_validator("max_seq_lengths")
    @classmethod
    def _lengths_make_sense(cls, lengths: tuple[int, ...]) -> tuple[int, ...]:
        if min(lengths) < 8 or max(lengths) > 1 << 16:
            raise ValueError("each length must be between 8 and 65,536 tokens")
        if len(set(lengths)) < len(lengths):
            raise ValueError("a length is listed twice")
        return lengths


SPANS_OF_A_PASSAGE, SPANS_TOGETHER = 96, 8
"""Most made-up queries for each passage, and how many of them are taken at a time."""


class PairsConfig(Config):
    """Query and text pairs for retrieval, mined from unlabelled documents."""

    kind: Literal["neighbours", "spans", "opening", "heading", "signature"] = "neighbours"
    """What to pair: `neighbours`, two consecutive passages of a document; `spans`, some words of
    a span of two such passages with both of them; `opening`, a document's first line (its title, if
    it has one) and the text after it; `heading`, a section's heading and its beginning; or
    `signature`, a function's summary and signature (`docstrings` only)."""

    sources: tuple[SourceConfig, ...] = ()
    """The documents, as in `[[corpus.sources]]`; empty: the corpus of the run."""

    words: int = Field(default=60, ge=4, le=10_000)
    """Words per passage; passages end at sentence boundaries."""

    train_pairs: int = Field(default=20_000, ge=8)
    """Maximum number of training pairs, sampled uniformly."""

    evaluation_pairs: int = Field(default=1000, ge=8)
    """Maximum number of pairs in each of dev and test."""

    heldout_share: float = Field(default=0.1, gt=0.0, le=0.33)
    """Share of the text held out for dev, and the same for test. Blocks of a few pages are held
    out whole, so that no held-out text has a neighbour in the training set."""


class LabelsConfig(Config):
    """Labelled tasks derived from docstrings and signatures."""

    packages: tuple[str, ...] = Field(min_length=1)
    """Distributions for training and development data."""

    test_packages: tuple[str, ...] = Field(min_length=1)
    """Distributions for test data; hold them out of pre-training too."""

    tagging_train_sentences: int = Field(default=400, ge=8)
    """Labelled sentences for training the tagger: few, to make the effect of pre-training
    visible."""

    pair_train_examples: int = Field(default=4000, ge=8)
    """Labelled pairs for training the pair classifier."""

    evaluation_examples: int = Field(default=1500, ge=8)
    """Examples in each development and test set."""


class BoilerplateStage(StageConfig):
    """corpus files → a list of recurring lines to remove."""

    stage: ClassVar[str] = "boilerplate"
    program: ClassVar[str] = "cloze.pipeline.boilerplate"

    corpus: CorpusConfig
    """The documents; each source with `boilerplate` is searched by itself."""


class ScoresStage(StageConfig):
    """corpus files → a score for every document."""

    stage: ClassVar[str] = "scores"
    program: ClassVar[str] = "cloze.pipeline.scores"

    seed: int
    """The run's seed: it selects the held-out documents, which no score drops."""
    corpus: CorpusConfig
    """The documents to score."""
    cleaning: CleaningConfig
    """Rules: documents that they drop are not scored. Without `keep`, which changes no score."""
    quality: QualityConfig
    """What scores them."""


class DedupStage(StageConfig):
    """corpus files → a list of documents to drop."""

    stage: ClassVar[str] = "dedup"
    program: ClassVar[str] = "cloze.pipeline.dedup"
    format_version: ClassVar[int] = 6

    seed: int
    """The run's seed: it selects the held-out documents, which are kept in preference to others."""
    corpus: CorpusConfig
    """The documents to search; of near-duplicates the first source's is kept."""
    cleaning: CleaningConfig
    """Filters: documents that the tokens stage drops are not searched."""
    dedup: DedupConfig
    """The searches to run; at least one."""


class VocabularyStage(StageConfig):
    """corpus files → a WordPiece tokenizer."""

    stage: ClassVar[str] = "vocabulary"
    program: ClassVar[str] = "cloze.pipeline.vocabulary"
    format_version: ClassVar[int] = 8

    seed: int
    """The run's seed: it draws the sample, and the held-out documents that are excluded from it."""
    corpus: CorpusConfig
    """The documents to sample from."""
    cleaning: CleaningConfig
    """Filters: documents that the tokens stage drops are excluded here too."""
    vocabulary: VocabularyConfig
    """Size and case, or an existing vocabulary to use instead."""
    pairs: PairsConfig | None = None
    """How pairs are cut, if the documents are those of pairs: words are then taken from the parts
    that train."""


class TokensStage(StageConfig):
    """corpus files → cleaned, deduplicated, bucketed documents as token ids."""

    stage: ClassVar[str] = "tokens"
    program: ClassVar[str] = "cloze.pipeline.tokens"
    format_version: ClassVar[int] = 8

    seed: int
    """The run's seed: it draws the held-out documents."""
    corpus: CorpusConfig
    """The documents, in order of precedence: of duplicates the first source's is kept."""
    cleaning: CleaningConfig
    """Filters that drop documents, each counted by reason."""
    keep_sources: bool = False
    """Whether the tokens say of which source each document is."""


class ExamplesStage(StageConfig):
    """tokens → masked MLM/NSP examples."""

    stage: ClassVar[str] = "examples"
    program: ClassVar[str] = "cloze.pipeline.examples"

    seed: int
    """The run's seed: with document and copy, it determines pairs, masks and order."""
    examples: ExamplesConfig
    """Lengths, copies, second segments and masking."""
    names: tuple[str, ...] = ()
    """The name of each source of the tokens, by its index; examples are told apart by it. Empty: no
    examples are told apart."""


class LabelsStage(StageConfig):
    """installed packages → labelled tasks."""

    stage: ClassVar[str] = "labels"
    program: ClassVar[str] = "cloze.demo.labels"
    format_version: ClassVar[int] = 2

    seed: int
    """The run's seed: it draws the examples and the development modules."""
    labels: LabelsConfig
    """The packages, and how many examples to draw."""


class PairsStage(StageConfig):
    """corpus files → query and text pairs."""

    stage: ClassVar[str] = "pairs"
    program: ClassVar[str] = "cloze.pipeline.pairs"
    format_version: ClassVar[int] = 3

    seed: int
    """The run's seed: it draws the pairs and the held-out ones."""
    corpus: CorpusConfig
    """The documents."""
    cleaning: CleaningConfig
    """Filters that drop documents."""
    pairs: PairsConfig
    """Kind and number of pairs."""


class PipelineMachine(Config):
    """Where and how the pipeline runs; none of these settings changes the output."""

    runner: str = "local"
    """`local` (Beam's FnApiRunner), `DataflowRunner`, `FlinkRunner`, `DaskRunner`."""

    options: dict[str, bool | int | float | str | tuple[str, ...]] = Field(default_factory=dict)
    """Beam options without the dashes: `project = "…"`, `experiments = ["a", "b"]`; `true` sets a
    flag. Passed to every pipeline stage; options given after `--` override them."""

    workers: int = Field(default=2, ge=1)
    """Local workers, each with its own tokenizer; use one per core."""

    worker_mode: Literal["auto", "processes", "threads", "inline"] = "auto"
    """How local workers run: forked `processes`, `threads`, or `inline`: all tasks sequentially in
    the main process, for debuggers and small inputs. `auto` picks `inline` for a single worker and
    for inputs too small to repay starting several, otherwise `processes`."""

    start_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds after which a job is cancelled if no worker of the engine has started."""

    stall_timeout: float = Field(default=900.0, gt=0.0)
    """Seconds without progress after which a local job is stopped."""
