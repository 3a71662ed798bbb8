"""The part of a configuration that trains an existing encoder further on another corpus.

In:  a model's name, as in a configuration, and its directory.
Out: the tables from [vocabulary] to [evaluate], with every setting that must match the encoder
     copied from it; facts that users should know about starting from it.

MLM training would undo the training of a sentence encoder, so such an encoder is instead trained on
pairs of the corpus's own passages and evaluated by search.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import tomli_w

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import WordPieceTokenizer
from cloze.model.config import FAMILY_PRESETS, SIZE_NAMES, EncoderConfig
from cloze.pipeline.config.settings import PairsConfig

if TYPE_CHECKING:
    from cloze.model.hugging_face.model_files import EncoderFiles

MINUTES = 10.0
"""Default training time."""

LONGEST = 128
"""Maximum tokens per example: enough for continued training, at a fraction of the cost of 512."""

LONGEST_PASSAGE = 256
"""The same of a passage to search, each of which is read once for many queries."""

PEAK_RATE = 1e-4
"""The paper's peak learning rate, used for encoders whose own is unknown."""

OWN_SHARE = 0.5
"""Share of the peak rate at which an encoder of ours was trained: small ones use higher rates than
the paper, and at half of it relearn what they forget."""

WARMUP_SHARE = 0.06
"""Share of the steps; the optimizer starts without moments (Gururangan et al. 2020, table 13)."""

SMALLEST_VOCABULARY = 64
"""Minimum of `vocabulary.size`."""

SETTINGS = """\
# Everything that must match the encoder is copied from it.
[vocabulary]
{vocabulary}
[examples]
max_seq_lengths = [{length}]
copies = 1
second_segment = "none"

[encoder]
{encoder}
[pretrain]
{init}steps = {steps}
batch_size = 32
phases = [{{ max_seq_length = {length}, share = 1.0 }}]
masks = "dynamic"
next_sentence_loss = false
evaluate_every = {evaluate_every}
evaluation_examples = 256
{limit}
[pretrain.optimizer]
learning_rate = {rate:g}  # {why_rate}
warmup_steps = {warmup_steps}
bias_correction = true  # the warm-up is short

[evaluate]
examples = 1000
"""


PAIRS = """\
{vocabulary}# Made-up queries, some words of a passage: of held-out passages they judge the encoder.
[pairs]
kind = "spans"
train_pairs = {pairs}
heldout_share = {heldout_share:.2g}  # for choosing, and as much for reporting

{sources}[finetune]
{encoder}seeds = [0]  # of several the best would be saved, each with a part of the time
optimizer = {{ bias_correction = true }}  # there are few updates
{limit}
[[finetune.tasks]]
name = "retrieval"
kind = "retrieval"
max_seq_length = {length}
batch_size = {batch_size}
learning_rate = 1e-4
epochs = 1

# The vectors learn what BM25 and they find together.
[finetune.tasks.retrieval]
loss = "hybrid"
language = "{language}"
"""

PAIR_BATCH = 128

JUDGING_PASSAGES, MOST_HELD_OUT = 75, 0.25
"""Passages to hold out for choosing, and as many for reporting; of a small folder so large a share.
With so many the interval of a gain of two points is above 0."""

BYTES_OF_A_PASSAGE = 700
"""Two times 60 words, as `[pairs]` has them."""


@dataclass(frozen=True)
class InitialModel:
    """An encoder that training starts from."""

    name: str
    """What it is called in messages."""

    directory: str
    """A run's artifact, or a folder in Hugging Face's layout."""

    written: str
    """The value of `pretrain.init`, which holds in any working directory."""

    words: int = 0
    """Words of the corpus to add to its vocabulary, at most."""

    @cached_property
    def files(self) -> "EncoderFiles":
        """Read and check the whole model, as training does."""
        from cloze.model.hugging_face.model_files import read_encoder_files  # imports torch

        files = read_encoder_files(self.directory)
        if files.config.attention_direction != "bidirectional":
            raise UsageError(
                f"{self.name}: its attention is {files.config.attention_direction}; expected a "
                "masked language model, which is bidirectional"
            )
        return files

    @property
    def positions(self) -> int:
        """The most tokens that it reads, without reading its weights."""
        from cloze.model.hugging_face.source import read_shape  # imports torch

        return read_shape(self.directory)[0].max_position_embeddings

    @property
    def vocabulary(self) -> str:
        """Path of its tokenizer.json, or else of its vocab.txt."""
        from cloze.model.hugging_face.source import open_source

        source = open_source(self.directory)
        names = ("tokenizer.json", "vocab.txt")
        return source.path(next(name for name in names if name in source.names))

    @property
    def makes_sentence_vectors(self) -> bool:
        """Whether it is a sentence encoder."""
        return self.files.modules is not None

    def pair_settings(
        self,
        sources: str,
        *,
        pairs: int,
        text_bytes: float,
        language: str,
        minutes: float = 0.0,
    ) -> str:
        """The tables that train a sentence encoder further on `text_bytes` of `sources`.

        `language`: of BM25's stemmer. `minutes`: the time to keep, however slow the machine
        becomes; 0: none.
        """
        share = JUDGING_PASSAGES * BYTES_OF_A_PASSAGE / max(text_bytes, 1)
        modules = self.files.modules
        positions = self.files.config.max_position_embeddings
        return PAIRS.format(
            vocabulary=f"[vocabulary]\n{self._vocabulary}\n" if self.words else "",
            pairs=pairs,
            heldout_share=min(max(share, PairsConfig().heldout_share), MOST_HELD_OUT),
            sources=sources,
            encoder=tomli_w.dumps({"encoder": self.written}),
            length=min(LONGEST_PASSAGE, modules.max_seq_length if modules else positions),
            batch_size=PAIR_BATCH,
            language=language,
            limit=limit_line(minutes),
        )

    def settings(self, *, steps: int, minutes: float = 0.0) -> str:
        """The tables that continue MLM training; `minutes` as in `pair_settings`."""
        manifest = self.files.manifest
        recipe = manifest.config.get("pretrain") if manifest else None  # only in encoders of ours
        rate = OWN_SHARE * float(recipe["optimizer"]["learning_rate"]) if recipe else 0.0
        return SETTINGS.format(
            vocabulary=self._vocabulary,
            encoder=tomli_w.dumps(shape_table(self.files.config)),
            init=tomli_w.dumps({"init": self.written}),
            length=min(LONGEST, self.files.config.max_position_embeddings),
            steps=steps,
            evaluate_every=max(1, steps // 10),
            rate=rate or PEAK_RATE,
            why_rate="half of the encoder's own peak" if rate else "the paper's peak",
            warmup_steps=max(1, round(WARMUP_SHARE * steps)),
            limit=limit_line(minutes),
        )

    @property
    def _vocabulary(self) -> str:
        """The settings of its tokenizer, with words that are added to it."""
        tokenizer = self.files.tokenizer
        size = max(tokenizer.size, SMALLEST_VOCABULARY)  # with a path, only for estimates
        settings: dict[str, object] = {"path": self.vocabulary, "size": size + self.words}
        if not tokenizer.lowercase:
            settings["lowercase"] = False
        if isinstance(tokenizer, WordPieceTokenizer) and tokenizer.strip_accents is not None:
            settings["strip_accents"] = tokenizer.strip_accents
        if self.words:
            settings["words"] = self.words
        return tomli_w.dumps(settings)

    def facts(self) -> Iterator[str]:
        """Facts to know before training it."""
        config, tokenizer = self.files.config, self.files.tokenizer
        yield (
            f"starts from {self.name}: {config.num_hidden_layers} layers × {config.hidden_size}, "
            f"{tokenizer.size:,} tokens ({'uncased' if tokenizer.lowercase else 'cased'})"
        )
        # Every MLM head has this bias.
        headless = self.files.layout.name("masked_lm.output_bias") in self.files.missing
        if self.makes_sentence_vectors:
            head = "; it has no MLM head and needs none here" if headless else ""
            yield (
                f"{self.name} is a sentence encoder: it is trained on made-up queries, not on "
                f"masked tokens, and evaluated by search before and after{head}"
            )
        elif headless:
            yield (
                f"{self.name} has no MLM head: one is trained from random weights, so there is no "
                "loss before training to compare with"
            )
            yield (
                "warning: if it was trained for sentence vectors, this training degrades them; "
                f"compare `cloze search` with {self.name} before replacing it"
            )


def limit_line(minutes: float) -> str:
    """The setting that keeps the time, if there is one to keep."""
    why = "if the machine becomes slower, fewer steps are made"
    return f"minutes = {minutes:g}  # {why}\n" if minutes else ""


def shape_table(config: EncoderConfig) -> dict[str, object]:
    """[encoder] of this shape: a preset or sizes, and the fields that differ from the defaults."""
    sizes = {name: getattr(config, name) for name in SIZE_NAMES}
    published = FAMILY_PRESETS[config.family].items()
    preset = next((name for name, known in published if known == (*sizes.values(),)), "")
    shape: dict[str, object] = {"family": config.family} if config.family != "bert" else {}
    shape |= {"preset": preset} if preset else sizes
    usual = EncoderConfig(family=config.family)
    others = [name for name in EncoderConfig.model_fields if name not in ("preset", *SIZE_NAMES)]
    return shape | {
        name: getattr(config, name)
        for name in others
        if getattr(config, name) != getattr(usual, name)
    }
