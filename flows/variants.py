"""Variants of a run, for several pre-training seeds and hyperparameter sweeps.

In:  a run's configuration, seeds, and sweeps as `key=value,value`.
Out: one `Variant` for each combination of values, with a run for each seed on the same data;
     `SharedData` if their losses are only comparable on data that one run makes for all of them.
"""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from cloze.artifacts.config import assign, parse, with_value
from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.flows.config import RunConfig

Settings = dict[str, JsonValue]
"""Values by dotted configuration key."""


@dataclass(frozen=True)
class Variant:
    """One combination of values."""

    title: str
    """`learning_rate=0.002`; empty without sweeps."""

    runs: tuple[RunConfig, ...]
    """One for each seed."""


def variants(run: RunConfig, *, seeds: Sequence[int], sweeps: Sequence[str]) -> list[Variant]:
    """Every combination of swept values with every seed; without either, the run itself."""
    if seeds and not run.corpus:
        raise UsageError(
            "--seeds are pre-training seeds, but this run does not pre-train; "
            "set finetune.seeds instead"
        )
    places = [_sweep(text) for text in sweeps]
    found = []
    for values in itertools.product(*(values for _, values in places)):
        settings = {place: value for (place, _), value in zip(places, values, strict=True)}
        # The last part of a key says enough in a title.
        short = [f"{place.rpartition('.')[2]}={value}" for place, value in settings.items()]
        found.append(
            Variant(
                ", ".join(short),
                tuple(
                    _varied(run, [*short, f"seed={seed}"], {**settings, "pretrain.seed": seed})
                    for seed in seeds
                )
                or (_varied(run, short, settings),),
            )
        )
    names = [one.name for variant in found for one in variant.runs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"two variants would be named {twice[0]}; give every seed and value only once, and "
            "values that differ in letters or digits"
        )
    return found


@dataclass(frozen=True)
class SharedData:
    """Held-out examples on which all variants are evaluated, so that their losses are comparable.

    Variants with other masks would each be judged on its own, and those with other filters on the
    text that they have chosen themselves.
    """

    maker: RunConfig
    """The run whose preparation makes them: it has to come before the variants."""

    users: tuple[tuple[RunConfig, bool], ...]
    """The variants in order, each with whether it is given the examples."""

    with_vocabulary: bool
    """Whether the tokens of the variants differ, so that they also need the maker's vocabulary."""

    notes: tuple[str, ...]
    """What is done and why, for people."""

    def given(self, made: Mapping[str, Artifact]) -> list[RunConfig]:
        """The variants with the examples, and perhaps the vocabulary, that the maker has `made`."""
        shared = {"evaluate.heldout_examples": made["examples"].directory}
        if self.with_vocabulary:
            own = self.maker.vocabulary.path
            shared["vocabulary.path"] = own or made["vocabulary"].path("tokenizer.json")
        return [_with_values(run, shared) if is_given else run for run, is_given in self.users]


def shared_data(runs: Sequence[RunConfig], *, name: str) -> SharedData | None:
    """What the variants of the run called `name` share; None if each can be judged by itself."""
    first, *others = runs
    # Filters first: their variants also have other examples, but sharing the first one's would
    # judge all by its choice.
    if any(filtered_otherwise(first, other) for other in others):
        require_held_out_sources(runs)
        whole = unfiltered(first.model_copy(update={"name": name}))
        notes = [
            f"variants train on other documents: {whole.name} makes the vocabulary and the "
            "held-out examples of the whole corpus, before any filter, for all of them"
        ]
        if not all(run.pretrain.minutes for run in runs):
            notes.append("variants train for equal steps; for equal time set pretrain.minutes")
        users = tuple((run, unfiltered_alike(first, run)) for run in runs)
        return SharedData(whole, users, with_vocabulary=True, notes=tuple(notes))
    if any(masked_otherwise(first, other) for other in others):
        note = (
            f"held-out examples: those of {first.name} for all variants, so that losses are "
            "comparable (evaluate.heldout_examples overrides this)"
        )
        users = ((first, False), *((run, masked_otherwise(first, run)) for run in others))
        return SharedData(first, users, with_vocabulary=False, notes=(note,))
    return None


UPSTREAM = ("seed", "corpus", "cleaning", "dedup", "vocabulary")
"""Sections of a run that decide which documents are held out, and as which tokens."""


def masked_otherwise(run: RunConfig, other: RunConfig) -> bool:
    """Whether `other` makes other examples than `run`, of the same tokens and lengths.

    Its encoder can then be evaluated on those of `run`, and by default would not be.
    """
    if run.evaluate.heldout_examples or other.evaluate.heldout_examples or not run.corpus:
        return False
    alike = all(getattr(run, section) == getattr(other, section) for section in UPSTREAM)
    lengths = run.examples.max_seq_lengths == other.examples.max_seq_lengths
    return alike and lengths and run.examples != other.examples


FILTERS = ("cleaning", "quality", "dedup")
"""Sections of a run that drop documents or change them."""


def unfiltered(run: RunConfig) -> RunConfig:
    """`run` with all its documents as they are: what every variant with other filters begins with.

    Its vocabulary and its held-out examples are the same whatever the filters, and the mixture.
    """
    assert run.corpus
    plain = {"boilerplate": None, "cleaning": None, "weight": 1, "share": None}
    sources = tuple(source.model_copy(update=plain) for source in run.corpus.sources)
    corpus = run.corpus.model_copy(update={"sources": sources})
    fields = RunConfig.model_fields
    filters = {name: fields[name].default for name in FILTERS}
    name = {"name": f"{run.name}-unfiltered"}
    return run.model_copy(update={**filters, **name, "corpus": corpus})


def filtered_otherwise(run: RunConfig, other: RunConfig) -> bool:
    """Whether `other` trains on other documents of the same corpus than `run`.

    Their filters, or the shares of their sources, differ. Both can then be evaluated on held-out
    text that no filter has chosen; by default each would be on its own choice.
    """
    differ = any(getattr(run, name) != getattr(other, name) for name in (*FILTERS, "corpus"))
    return differ and unfiltered_alike(run, other)


def unfiltered_alike(run: RunConfig, other: RunConfig) -> bool:
    """Whether both have the same held-out examples and vocabulary before any filter."""
    if not (run.corpus and other.corpus) or run.evaluate.heldout_examples:
        return False
    bases = unfiltered(run), unfiltered(other)
    sections = ("seed", "corpus", "vocabulary", "examples", "evaluate")
    return all(getattr(bases[0], name) == getattr(bases[1], name) for name in sections)


def require_held_out_sources(runs: Sequence[RunConfig]) -> None:
    """Refuse variants of which one might train on text that is held out before filters.

    Documents are drawn by digests of their text: one whose lines a rule changes may be drawn
    otherwise. Those of a source that is held out whole stay held out.
    """
    for run in runs:
        corpus = run.corpus
        if not corpus or not corpus.heldout_share:
            continue
        changes = [
            f"corpus.sources.{number}"
            for number, source in enumerate(corpus.sources)
            if source.boilerplate or (source.cleaning or run.cleaning).changes_text
        ]
        if changes:
            raise UsageError(
                f"variant {run.name} changes lines of {changes[0]}, so other documents are drawn "
                "to be held out than before filters, and it might train on the text that judges "
                "it; hold out a source (corpus.sources.N.heldout = 'NAME'), and set "
                "corpus.heldout_share = 0"
            )


def changed(run: RunConfig, name: str, places: Settings, *, source: str) -> RunConfig:
    """`run` with other values for some keys, and another name; errors begin with `source`."""
    table = run.model_dump(mode="json")
    for place, value in places.items():
        table = assign(table, place, value)
    table = assign(table, "name", name)
    return parse(RunConfig, table, source=source)


def _sweep(text: str) -> tuple[str, list[JsonValue]]:
    """The key and the values of `key=value,value`; values are TOML, or else words."""
    place, _, listed = text.partition("=")
    try:
        values: list[JsonValue] = tomllib.loads(f"values = [{listed}]")["values"]
    except (ValueError, RecursionError):
        values = [*filter(None, (word.strip() for word in listed.split(",")))]
    if not place or not values:
        raise UsageError(
            f"--sweep {text:.200}: expected KEY=VALUE,VALUE, for example "
            "--sweep pretrain.optimizer.learning_rate=1e-3,2e-3"
        )
    return place, values


def _varied(run: RunConfig, marks: Sequence[str], settings: Settings) -> RunConfig:
    if not marks:
        return run
    # A run's name has letters, digits, dashes and underscores only.
    name = "-".join([run.name, *(re.sub(r"[^A-Za-z0-9_]+", "-", mark) for mark in marks)])
    return changed(run, name, settings, source=f"variant {', '.join(marks):.200}")


def _with_values(run: RunConfig, values: Mapping[str, str]) -> RunConfig:
    for place, value in values.items():
        run = with_value(run, place, value)
    return run
