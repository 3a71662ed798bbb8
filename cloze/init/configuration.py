"""`cloze init`: write a complete configuration for a corpus, or for labelled files.

In:  a file, folder, glob or URL; with --from, an initial encoder.
Out: a TOML file with a suitable reader, and sizes that match the amount of text or the encoder,
     each with an explanation; facts about the corpus from samples: documents, languages, odd
     files, fertility, cost. For labelled files, a fine-tuning task.
"""

import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, NamedTuple

import tomli_w
from cyclopts import Parameter

from cloze.answer import Answer
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import find_files, write_bytes
from cloze.artifacts.progress import on_one_line, say
from cloze.artifacts.results import GENERAL
from cloze.artifacts.tokenizer import read_vocabulary
from cloze.flows.config import RatesConfig, RunConfig
from cloze.flows.expected import Timed, cores, training_seconds
from cloze.flows.forecast import forecast_corpus
from cloze.flows.report.units import plural
from cloze.init.corpus_files import left_out
from cloze.init.corpus_samples import TABLES, Look, language, look, stemmer
from cloze.init.initial_model import MINUTES, PAIR_BATCH, InitialModel
from cloze.init.labelled_files import DELIMITED, LabelledFiles, labelled_files
from cloze.init.language_rules import language_rules
from cloze.model.config import TaskConfig
from cloze.model.task_families import TASK_FAMILIES
from cloze.named import lasting_name, model_directory
from cloze.options import PLACE, Place

Name = Annotated[str, Parameter(help="Name of the run; by default that of the corpus.")]

DEFAULT_LENGTH: int = TaskConfig.model_fields["max_seq_length"].default

SHOWN_FILES = 5

REPLAYED = 0.25
"""Share of general text among the examples. A few per cent suffice for continued training on much
text (Ibrahim et al. 2024, 4.2: 5 %), but a small folder is read many times."""

MOST_COPIES = 255

FEWEST_BESIDE_REPLAY = 20
"""With so many documents, some are certain to be held out."""


PROVISIONAL_STEPS, PROVISIONAL_PAIRS = 1000, 10_000
"""Numbers for which the time is estimated, to find how many fit into the given time."""

FASTEST_STEP = 1e-3
"""Seconds that no step stays below, whatever was timed or a processor's rates say."""

FEWEST_UNITS = 10
"""Steps or pairs to train at least, however little time is given."""


@Parameter(name="*")
@dataclass(frozen=True)
class GeneralText:
    """Text like that of the encoder's pre-training, in addition to the folder."""

    general: str = ""
    """File, folder, glob or URL of general text; the report shows how much of it is forgotten."""

    replay: str = ""
    """The same, but a quarter of the training examples come from it, to reduce forgetting, which is
    measured on its held-out documents."""

    @property
    def is_given(self) -> bool:
        """Whether any is given."""
        return bool(self.general or self.replay)

    def tables(self, found: Look) -> tuple[str, int]:
        """Its [[corpus.sources]] tables, and the weight of the folder's documents."""
        tables, copies = "", 1
        if self.general:
            tables += sources_tables(look(self.general), "corpus", heldout=GENERAL)
        if self.replay:
            if found.documents < FEWEST_BESIDE_REPLAY:
                raise UsageError(
                    f"--replay {self.replay}: needs at least {FEWEST_BESIDE_REPLAY} documents to "
                    f"adapt to, so that some are held out; {found.path} has about "
                    f"{found.documents:,.0f}: split them, or use --general"
                )
            other = look(self.replay)
            # So many copies of the folder make the replayed text `REPLAYED` of everything; below
            # one, the replayed text is repeated instead.
            ratio = other.text_bytes / max(found.text_bytes, 1.0) * (1 / REPLAYED - 1)
            copies = _copies(ratio)
            tables += sources_tables(
                other, "corpus", weight=_copies(1 / max(ratio, 1e-9)), heldout_documents=GENERAL
            )
        return tables, copies


NO_GENERAL_TEXT = GeneralText()


@dataclass(frozen=True)
class Length:
    """How long to train, and on which machine."""

    place: Place
    """The machine whose time it is."""

    minutes: float = MINUTES
    """Time, from which the number of steps is estimated."""

    steps: int = 0
    """Steps, instead of minutes; of pairs, batches."""

    timed: Timed | None = None
    """A few of these steps, made just now to convert minutes into steps. The clock then keeps the
    time while training, too."""


FINETUNE = """\
[finetune]
# encoder: a run's name, an artifact's directory, or a Hugging Face folder
{encoder}seeds = [0, 1, 2]
"""
FEW_LABELS = """\
[finetune]
# encoder: a run's name, an artifact's directory, or a Hugging Face folder
{encoder}seeds = [0]

# few labels: cross-validation on the training rows chooses how to train
[finetune.choose]
"""
FEW_ROWS = 1000
"""Up to so many training rows, the approach is chosen by cross-validation."""

FEWEST_STEPS = 80
"""Updates, at least, of a task whose approach is not chosen. The three epochs that suit thousands
of rows are six updates of 50 sentences, and a tagger then finds nothing (entity F1 0, on names; 46
after 26 updates, 65 after 80, 64 after 200)."""

SIZES = ((2e8, 0.02, "toy"), (2e9, 0.01, "middle"), (float("inf"), 0.001, "paper"))
"""For less than so many bytes of text: the share of documents to hold out, and the recipe.

`toy` is, except for its first line, identical to the end of configs/text_folder.toml.
"""


def init(
    source: str,
    /,
    *,
    output: Path | None = None,
    name: Name = "",
    vocabulary: Path | None = None,
    initial: Annotated[str, Parameter(name="--from")] = "",
    beside: GeneralText = NO_GENERAL_TEXT,
    place: Place = PLACE,
) -> Answer:
    """Write a configuration.

    :param source: File, folder, glob or URL of the corpus.
    :param output: File to write; without it, standard output.
    :param vocabulary: A vocab.txt or tokenizer.json, for example Google's, to measure its
        fertility (tokens per word) on the corpus.
    :param initial: Encoder to train further on the corpus, or to fine-tune: a run's name, an
        artifact's directory, or a folder in Hugging Face's layout.
    """
    if beside.is_given and not initial:
        raise UsageError("--general and --replay require an encoder; name it with --from")
    name = name or run_name(source)
    directory = model_directory(initial, place.space()) if initial else ""
    given, initial = initial, lasting_name(initial, place.space())
    model = InitialModel(given, directory, initial) if initial else None
    # Not what this command or earlier runs have written there.
    ours = left_out(source, place.space(), *([str(output)] if output else []))
    if task := labelled_files(find_files(source, ours), trains=bool(initial)):
        made = for_labels(task, name, model=model)
    else:
        found = look(source, ours)
        if model:
            text = continuation(found, name, model, beside=beside, length=Length(place))
        else:
            text = configuration(found, name)
        made = for_corpus(text, found, source=source, model=model, vocabulary=vocabulary)
    if output is None:
        shown = "\n".join([*map(comment, made.facts), made.text.rstrip()])
        return Answer({"configuration": made.text, **made.data}, shown, place.json)
    if output.exists():
        raise UsageError(f"{output}: already exists; choose another --output")
    write_bytes(str(output), made.text.encode())
    lines = [*made.facts, f"{output}: {made.why}", f"next: cloze plan {output}"]
    return Answer({"file": str(output), **made.data}, "\n".join(lines), place.json)


class Proposal(NamedTuple):
    """A configuration that has been checked, and what is said about it."""

    text: str
    """The TOML file."""
    why: str
    """Why it is so, or what to set."""
    facts: list[str]
    data: dict[str, object]
    """The facts for `--json`."""


def for_labels(task: LabelledFiles, name: str, *, model: InitialModel | None) -> Proposal:
    """The configuration that fine-tunes `model`, or one to be named, on labelled files."""
    # an encoder with fewer positions than the default length would be refused
    positions = model.positions if model else DEFAULT_LENGTH
    if positions < DEFAULT_LENGTH:
        task = replace(task, settings={**task.settings, "max_seq_length": positions})
    task = with_more_passes(task)
    encoder = model.written if model else ""
    text = task_configuration(task, name, encoder=encoder or "bert-base-uncased")
    # Only to check it.
    parse(RunConfig, tomllib.loads(text), source="the new configuration")
    facts = [task.description, *task.notes]
    data: dict[str, object] = {"task": asdict(task), "facts": facts}
    return Proposal(text, task.description if encoder else "set finetune.encoder", facts, data)


def for_corpus(
    text: str, found: Look, *, source: str, model: InitialModel | None, vocabulary: Path | None
) -> Proposal:
    """The configuration `text` for a corpus, with what a sample of it says."""
    run = parse(RunConfig, tomllib.loads(text), source="the new configuration")
    first = found.sources[0]
    if source.lower().endswith(DELIMITED) and first.reader not in TABLES:
        say(
            f"init: {source}: a table by its name, but neither commas, semicolons nor tabs "
            "give its lines the same number of cells, so it is read as prose"
        )
    facts = [*(model.facts() if model else ())]
    if run.corpus:
        named = vocabulary or (Path(model.vocabulary) if model else None)
        facts += corpus_facts(found, run, vocabulary=named)
    data: dict[str, object] = {
        "reader": first.reader,
        "sources": [one.source for one in found.sources],
        "text_bytes": found.text_bytes,
        "documents": found.documents,
        "odd": found.odd,
        "facts": facts,
    }
    return Proposal(text, found.why, facts, data)


def comment(text: str) -> str:
    """`text` as a comment of a TOML file: one line, whatever file names and labels it contains."""
    return f"# {on_one_line(text)}"


def run_name(source: str) -> str:
    """The name of a run on the corpus `source`."""
    # The last part of the path, without the characters of patterns and without suffixes.
    last = re.sub(r"[*?\[\]]", "", source.rstrip("/*")).rsplit("/", 1)[-1].partition(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", last).strip("_-") or "corpus"


def configuration(
    found: Look, name: str, settings: str = "", *, beside: GeneralText = NO_GENERAL_TEXT
) -> str:
    """The configuration as TOML, with `settings` or those that suit the amount of text."""
    _, share, suitable = next(size for size in SIZES if found.text_bytes < size[0])
    # a larger share of few documents, otherwise none would be held out
    share = max(share, min(0.2, 20 / max(found.documents, 1)))
    others, copies = beside.tables(found)
    rules = language_rules(found.samples)
    tables = settings
    if not settings:
        tables = _with_length(recipe(suitable), rules.length)
        for table, lines in rules.tables.items():
            tables = _with_lines(tables, table, lines)
    return (
        f"{_headline(found, name)}\n{sources_tables(found, 'corpus', weight=copies)}{others}"
        f"[corpus]\nheldout_share = {share:.3g}  # of the documents, for evaluation\n"
        f"{rules.corpus}\n{tables}"
    )


def _with_lines(tables: str, name: str, lines: str) -> str:
    """The tables with `lines` at the beginning of the one of this name, which may be new."""
    header = f"[{name}]\n"
    if not lines:
        return tables
    if header in tables:
        return tables.replace(header, header + lines, 1)
    return f"{tables.rstrip()}\n\n{header}{lines}"


def _with_length(tables: str, length: int) -> str:
    """The tables for examples of `length` tokens, if the recipe's are shorter, as long to train."""
    found = re.search(r"^max_seq_lengths = \[(\d+)\]$", tables, re.MULTILINE)
    batch = re.search(r"^batch_size = (\d+)$", tables, re.MULTILINE)
    if not (found and batch) or length <= int(found[1]):
        return tables
    short = found[1]
    # Longer examples in smaller batches: a step has as many tokens as the recipe's, and takes as
    # long.
    same_tokens = int(batch[1]) * int(short) // length
    reason = f"  # for two sentences, which are long here; {short} suffice in English"
    return (
        tables.replace(found[0], f"max_seq_lengths = [{length}]{reason}")
        .replace(batch[0], f"batch_size = {same_tokens}")
        .replace(f"max_position_embeddings = {short}", f"max_position_embeddings = {length}")
        .replace(f"max_seq_length = {short},", f"max_seq_length = {length},")
    )


def recipe(name: str) -> str:
    """The tables of the configuration that suit an amount of text."""
    return Path(__file__).with_name(f"{name}.toml").read_text("utf-8")


def _headline(found: Look, name: str) -> str:
    """A comment that describes the corpus, the run's name and its seed."""
    files = plural(found.files, "file")
    about = comment(f"{files}, about {found.text_bytes / 1e6:,.1f} MB of text; {found.why}.")
    return f"{about}\n{tomli_w.dumps({'name': name, 'seed': 12345})}"


def sources_tables(found: Look, owner: str, *, weight: int = 1, **splits: str) -> str:
    """`[[OWNER.sources]]` for each kind of documents: how to read them, which to hold out."""
    more = ({"weight": weight} if weight > 1 else {}) | splits
    tables = (tomli_w.dumps(one.source | more) for one in found.sources)
    return "".join(f"[[{owner}.sources]]\n{table}\n" for table in tables)


def _copies(times: float) -> int:
    return min(MOST_COPIES, max(1, round(times)))


def continuation(
    found: Look,
    name: str,
    model: InitialModel,
    *,
    beside: GeneralText,
    length: Length,
) -> str:
    """The configuration that trains `model` further on the corpus."""
    on_pairs = model.makes_sentence_vectors
    if on_pairs and beside.is_given:
        raise UsageError(
            f"{model.name}: a sentence encoder, evaluated by search before and after training; "
            "--general and --replay are for encoders that predict masked tokens"
        )

    def trained_on(units: int, *, minutes: float = 0.0) -> str:
        if on_pairs:
            settings = model.pair_settings(
                sources_tables(found, "pairs"),
                pairs=units,
                text_bytes=found.text_bytes,
                language=stemmer(" ".join(found.samples)),
                minutes=minutes,
            )
            return f"{_headline(found, name)}\n{settings}"
        return configuration(
            found, name, model.settings(steps=units, minutes=minutes), beside=beside
        )

    # Training on pairs is configured by their number, of which each step takes a batch.
    stage, per_step = ("finetune", PAIR_BATCH) if on_pairs else ("pretrain", 1)
    if length.steps:
        return trained_on(length.steps * per_step)
    # Twice: the time of a provisional number tells how many fit into the given time.
    units = PROVISIONAL_PAIRS if on_pairs else PROVISIONAL_STEPS
    run = parse(RunConfig, tomllib.loads(trained_on(units)), source="the new configuration")
    space, machine = length.place.space(), length.place.machine()
    seconds = training_seconds(run, machine, stage, space=space, timed=length.timed) / units
    seconds = max(seconds, FASTEST_STEP / per_step)
    within = int(60 * length.minutes / seconds)
    if not length.timed:
        within = int(float(f"{within:.2g}"))  # an estimate: two significant digits
        return trained_on(max(per_step, FEWEST_UNITS, within))
    limit = float(f"{length.minutes:.3g}")
    return trained_on(max(per_step, FEWEST_UNITS, within), minutes=limit)


def with_more_passes(task: LabelledFiles) -> LabelledFiles:
    """The task; with more epochs if it is trained as configured, on few rows.

    Where the approach is chosen, `finetune.choose.fewest_steps` sees to that.
    """
    if TASK_FAMILIES[task.kind].is_chosen or not task.rows:
        return task
    usual = TaskConfig(name=task.kind, kind=task.kind)
    steps = math.ceil(task.rows / usual.batch_size)
    epochs = math.ceil(FEWEST_STEPS / steps)
    if epochs <= usual.epochs:
        return task
    note = f"few rows: {epochs} epochs, as {usual.epochs} are only {usual.epochs * steps} updates"
    settings = {**task.settings, "epochs": epochs}
    return replace(task, settings=settings, notes=(*task.notes, note))


def task_configuration(task: LabelledFiles, name: str, *, encoder: str) -> str:
    """The configuration of a run that fine-tunes `encoder` on labelled files."""
    table = {"name": name, "kind": task.kind, **task.paths, **task.settings}
    chosen = TASK_FAMILIES[task.kind].is_chosen
    chooses = chosen and task.rows is not None and task.rows <= FEW_ROWS
    settings = FEW_LABELS if chooses else FINETUNE
    columns = f"\n[finetune.tasks.columns]\n{tomli_w.dumps(task.columns)}" if task.columns else ""
    return (
        f"{comment(task.description)}.\n"
        f"{''.join(f'{comment(note)}.{chr(10)}' for note in task.notes)}"
        f"{tomli_w.dumps({'name': name})}\n"
        f"{settings.format(encoder=tomli_w.dumps({'encoder': encoder}))}\n"
        f"[[finetune.tasks]]\n{tomli_w.dumps(table)}{columns}"
    )


def corpus_facts(found: Look, run: RunConfig, *, vocabulary: Path | None) -> Iterator[str]:
    """Facts to know before starting, one per line."""
    size = found.text_bytes / max(found.documents, 1)
    yield (
        f"{plural(found.files, 'file')}, about {found.text_bytes / 1e6:,.1f} MB of text in about "
        f"{plural(round(found.documents), 'document')} of {size:,.0f} bytes on average"
    )
    # By sample, since a corpus may be in several.
    languages = Counter(language(text) for text in found.samples)
    yield "samples: " + ", ".join(f"{count} {name}" for name, count in languages.most_common())
    if found.odd:
        more = f" and {len(found.odd) - SHOWN_FILES:,} more" if len(found.odd) > SHOWN_FILES else ""
        yield f"odd files: {', '.join(found.odd[:SHOWN_FILES])}{more}"
    if vocabulary is None:
        yield "fertility: unknown; --vocabulary FILE measures it with a vocab.txt or tokenizer.json"
    else:
        tokenizer = read_vocabulary(vocabulary, lowercase=None)
        text = " ".join(found.samples)
        # Per word between spaces, so it can be compared between tokenizers.
        fertility = len(tokenizer.encode(text)) / max(len(text.split()), 1)
        case = "uncased" if tokenizer.lowercase else "cased"
        yield f"fertility: {fertility:.2f} tokens per word with {vocabulary.name} ({case})"
    forecast = forecast_corpus(found.text_bytes, run.examples)
    yield (
        f"preparation: about {forecast.core_seconds / cores() / 60:,.1f} minutes on this "
        f"machine's {cores()} cores and {forecast.examples_bytes / 1e9:,.2f} GB of disk, "
        f"or ${forecast.engine.cost(RatesConfig()):,.2f} on Dataflow; `cloze plan` has the details"
    )
    for one in found.sources:
        of = f"{one.reader}: " if len(found.sources) > 1 else ""
        if one.why_field:
            yield f'{of}text_field = "{one.text_field}": {one.why_field}'
        if one.html:
            yield f"{of}html = true: the samples contain HTML entities and tags"
        if one.line_break:
            yield f'{of}line_break = "{one.line_break}": {one.why_line_break}'
