"""The part of a configuration that continues the pre-training of an encoder on another corpus.

In:  a model's name as a configuration takes it, and the directory it stands for; general text.
Out: the tables from [vocabulary] to [evaluate], everything that must agree with the encoder taken
     over from it; and what a person should know about starting from it.

An encoder that was trained to compare texts would lose that by predicting masked words, so its
training goes on with what it can do: on pairs of the corpus's own passages, scored by search.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from artifacts.errors import UsageError
from flows.config import MachineConfig, RunConfig
from flows.expected import START_SECONDS, expected_times
from flows.workspace import Workspace
from model.config import FAMILY_PRESETS, SIZE_NAMES, EncoderConfig

if TYPE_CHECKING:
    from model.hugging_face.encoder_files import EncoderFiles

MINUTES = 10.0
"""Of training, unless the user says otherwise."""

PROVISIONAL_STEPS, PROVISIONAL_PAIRS = 1000, 10_000
"""The time of so many is estimated, to find how many fit into the time given."""

LONGEST = 128
"""Tokens of an example: what continuing needs, at a fraction of the time that 512 take."""

PEAK_RATE = 1e-4
"""The paper's, also for encoders of which it is not known how they were trained."""

OWN_SHARE = 0.5
"""Of the peak rate that an encoder of ours was trained with: small ones were trained faster than
the paper's, and forget nothing at half of it that they do not learn again."""

WARMUP_SHARE = 0.06
"""Of the steps; optimizer and moments begin fresh (Gururangan et al. 2020, table 13)."""

SMALLEST_VOCABULARY = 64
"""That `vocabulary.size` can say."""

SETTINGS = """\
# All that must agree with the encoder is its own.
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

[pretrain.optimizer]
learning_rate = {rate:g}  # {why_rate}
warmup_steps = {warmup_steps}
bias_correction = true  # the warm-up is short

[evaluate]
examples = 1000
"""


PAIRS = """\
# Passages that follow one another belong together; some parts of the text are held out.
[pairs]
kind = "neighbours"
train_pairs = {pairs}

{sources}
[finetune]
{encoder}seeds = [0, 1, 2]  # fewer bear no verdict

[[finetune.tasks]]
name = "retrieval"
kind = "retrieval"
max_seq_length = {length}
batch_size = {batch_size}  # every passage of it is an answer to choose from
learning_rate = 2e-5
epochs = 1
"""

PAIR_BATCH = 256


@dataclass(frozen=True)
class InitialModel:
    """An encoder that training starts from."""

    name: str
    """The value of `pretrain.init`."""

    directory: str
    """Where it lies: a run's artifact, or a folder in Hugging Face's layout."""

    @cached_property
    def files(self) -> "EncoderFiles":
        """Read the model in full and check it, as training will."""
        from model.hugging_face.encoder_files import read_encoder_files  # takes torch along

        files = read_encoder_files(self.directory)
        if files.config.attention_direction != "bidirectional":
            raise UsageError(
                f"{self.name}: its attention is {files.config.attention_direction}; expected a "
                "masked language model, which sees both sides"
            )
        if not files.tokenizer.prepares_corpora:
            raise UsageError(
                f"{self.name}: its tokenizer strips accents, splits Chinese or has added tokens "
                "otherwise than BERT, and a corpus cannot be tokenised so; choose another encoder"
            )
        return files

    @property
    def vocabulary(self) -> str:
        """Path of its tokenizer.json, else its vocab.txt."""
        from model.hugging_face.source import open_source

        source = open_source(self.directory)
        names = ("tokenizer.json", "vocab.txt")
        return source.path(next(name for name in names if name in source.names))

    @property
    def makes_sentence_vectors(self) -> bool:
        """Whether it was trained to compare texts."""
        return self.files.modules is not None

    def pair_settings(self, sources: str, *, pairs: int) -> str:
        """The tables that go on training an encoder of sentence vectors on the `sources`' pairs."""
        import tomli_w

        modules = self.files.modules
        positions = self.files.config.max_position_embeddings
        return PAIRS.format(
            pairs=pairs,
            sources=sources,
            encoder=tomli_w.dumps({"encoder": self.name}),
            length=min(LONGEST, modules.max_seq_length if modules else positions),
            batch_size=PAIR_BATCH,
        )

    def settings(self, *, steps: int) -> str:
        """The tables of the configuration."""
        import tomli_w

        tokenizer, manifest = self.files.tokenizer, self.files.manifest
        recipe = manifest.config.get("pretrain") if manifest else None  # ours, if we trained it
        rate = OWN_SHARE * float(recipe["optimizer"]["learning_rate"]) if recipe else 0.0
        size = max(tokenizer.size, SMALLEST_VOCABULARY)  # beside a path it only serves estimates
        vocabulary: dict[str, object] = {"path": self.vocabulary, "size": size}
        if not tokenizer.lowercase:
            vocabulary["lowercase"] = False
        return SETTINGS.format(
            vocabulary=tomli_w.dumps(vocabulary),
            encoder=tomli_w.dumps(shape_table(self.files.config)),
            init=tomli_w.dumps({"init": self.name}),
            length=min(LONGEST, self.files.config.max_position_embeddings),
            steps=steps,
            evaluate_every=max(1, steps // 10),
            rate=rate or PEAK_RATE,
            why_rate="half of the encoder's own peak" if rate else "the paper's peak",
            warmup_steps=max(1, round(WARMUP_SHARE * steps)),
        )

    def facts(self) -> Iterator[str]:
        """What to know before it is trained."""
        config, tokenizer = self.files.config, self.files.tokenizer
        yield (
            f"begins from {self.name}: {config.num_hidden_layers} layers × {config.hidden_size}, "
            f"{tokenizer.size:,} tokens ({'uncased' if tokenizer.lowercase else 'cased'})"
        )
        headless = self.files.layout.outside["masked_lm.output_bias"] in self.files.missing
        if self.makes_sentence_vectors:
            head = "; it has no masked-language-model head and needs none here" if headless else ""
            yield (
                f"{self.name} was trained to compare texts: it is trained on with pairs of "
                f"passages, not with masked words, and judged by search before and after{head}"
            )
        elif headless:
            yield (
                f"{self.name} has no masked-language-model head: one is trained from random "
                "weights, and there is no loss from before to compare with"
            )
            yield (
                "warning: if it was trained for sentence vectors, this training does not keep "
                f"them; compare `cloze search` with {self.name} before replacing it"
            )


def shape_table(config: EncoderConfig) -> dict[str, object]:
    """[encoder] of this shape: the preset with its sizes, or the sizes; and what else differs."""
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


def steps_within(
    minutes: float, run: RunConfig, machine: MachineConfig, *, space: Workspace
) -> int:
    """How many steps of `run` this machine is expected to train in so many minutes.

    Two significant digits, at least ten.
    """
    return _fitting(minutes, run, machine, "pretrain", run.pretrain.steps, space=space)


def pairs_within(
    minutes: float, run: RunConfig, machine: MachineConfig, *, space: Workspace
) -> int:
    """How many pairs all seeds of `run` are expected to be trained on in so many minutes."""
    pairs = run.pairs.train_pairs if run.pairs else 0
    return _fitting(minutes, run, machine, "finetune", pairs, space=space)


def _fitting(
    minutes: float,
    run: RunConfig,
    machine: MachineConfig,
    stage: str,
    units: int,
    *,
    space: Workspace,
) -> int:
    """How many units of the stage fit into the time, if `run` has so many; at least ten."""
    (expected,) = expected_times(run, machine, [stage], space=space)
    each = max(expected.seconds - START_SECONDS[stage], 1e-3) / units
    return max(10, int(float(f"{60 * minutes / each:.2g}")))
