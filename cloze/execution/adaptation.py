"""`cloze adapt`: continue training an encoder on a folder of documents.

In:  a model and a folder; minutes, or a number of steps.
Out: NAME.toml, the run's configuration; the run's record, artifacts and report, which compares the
     encoder before and after on held-out documents of the folder.

It combines `cloze init --from` and `cloze run`. A sentence encoder learns from queries made of the
passages; what was trained is kept only if search by others of them, or by questions, improved by
more than chance (kept_encoder.py). Repeat an interrupted command to resume it.
"""

import math
import shlex
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.artifacts import filesystem
from cloze.artifacts.config import override, parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import find_files, write_bytes
from cloze.artifacts.progress import clock, say
from cloze.artifacts.results import Trials
from cloze.artifacts.store import Artifact
from cloze.artifacts.tokenizer import MOST_WORDS
from cloze.execution.kept_encoder import (
    keep_if_better,
    questions_that_decide,
    refuse_unknown_answers,
)
from cloze.execution.preflight import checked_plan
from cloze.execution.run import WithoutPrefect, account, run
from cloze.execution.written_configuration import is_written_by
from cloze.flows.config import RunConfig
from cloze.flows.executor import execute
from cloze.flows.expected import Timed
from cloze.flows.locks import locked
from cloze.flows.report.collect import recorded_seconds
from cloze.flows.report.units import plural
from cloze.flows.variants import Settings, changed
from cloze.flows.workspace import (
    RunRecord,
    Workspace,
    read_record,
    run_artifact,
    writable_workspace,
)
from cloze.inference.input_texts import ModelName
from cloze.init.configuration import GeneralText, Length, Name, comment, continuation, run_name
from cloze.init.corpus_files import left_out
from cloze.init.corpus_samples import Look, look
from cloze.init.initial_model import MINUTES, InitialModel
from cloze.init.labelled_files import labelled_files
from cloze.named import lasting_name, model_directory
from cloze.options import TARGET, Target

TRIAL_STEPS, TRIAL_BATCHES = 3, 1
"""Steps that are made to time them; of pairs, batches, which take as long as many steps."""

TRIAL_PAIRS = 32
"""Pairs on which they are evaluated."""

SHOWN_WORDS = 8

ABOUT_TERMS = (
    "term vectors are fitted to these documents, and add less to new ones: adapt again when many "
    "have changed; where it is exported, sentence-transformers needs trust_remote_code=True"
)

FEW_UPDATES = 50
"""Updates below which the user is told that little will change."""


@Parameter(name="*")
@dataclass(frozen=True)
class Continued(GeneralText):
    """How long to train, and with which general text."""

    minutes: float = MINUTES
    """Training time. A few steps are made first and timed, with whatever else this machine does at
    the moment, and as many as fit into the rest are planned. If the machine becomes slower, the
    rest of the schedule is shortened, and the run records how, to train the same encoder again.
    Preparation, and evaluation before and after, take their own time."""

    steps: int | None = None
    """Training steps, instead of minutes."""

    words: int | None = None
    """Most words of the folder to add to the vocabulary: those that save most tokens, with the mean
    embedding of the pieces that stood for them. No id changes. For WordPiece (BERT's)."""

    def options(self) -> list[str]:
        """The same options as command-line arguments."""
        given = {"--general": self.general, "--replay": self.replay}
        given |= {"--words": str(self.words or "")}
        length = ["--steps", f"{self.steps}"] if self.steps else ["--minutes", f"{self.minutes:g}"]
        return [*length, *(word for one in given.items() if one[1] for word in one)]


CONTINUED = Continued()


def adapt(
    model: ModelName,
    folder: str,
    /,
    *,
    how: Continued = CONTINUED,
    questions_file: Annotated[Path | None, Parameter(name="--evaluate")] = None,
    name: Name = "",
    target: Target = TARGET,
    without_prefect: WithoutPrefect = False,
) -> Answer:
    """Continue a model's training on a folder.

    :param folder: File, folder, glob or URL of the documents.
    :param questions_file: For a sentence encoder: questions with right answers, as for `cloze
        search`. Half of them choose what is kept, the other half report what it is worth; without
        them, made-up queries of held-out passages do.
    """
    if not 0 < how.minutes < math.inf:
        raise UsageError(f"--minutes {how.minutes:g}: expected a positive number")
    if how.steps is not None and how.steps < 1:
        raise UsageError(f"--steps {how.steps}: expected a positive number")
    if how.words is not None and not 0 < how.words <= MOST_WORDS:
        raise UsageError(
            f"--words {how.words}: expected 1 to {MOST_WORDS:,}; leave it out to add none"
        )
    # Everything that can be refused is, before the first program starts.
    name, questions = name or run_name(folder), str(questions_file or "")
    asked = Adaptation(model, folder, name, how, target, questions)
    if questions:
        _refuse_without_sentences(asked)
    config = _configuration(asked)
    if questions:
        encoder = target.read(config)[0].finetune.encoder
        refuse_unknown_answers(encoder, folder, questions, target.space())
    answer = run(config, target=target, without_prefect=without_prefect)
    record = RunRecord.model_validate(answer.data)
    space, lines, more = target.space(), list[str](), dict[str, object]()
    if not how.steps:
        _say_time_used(record, space, minutes=how.minutes)
    if how.words:
        vocabulary = run_artifact(space, name, stage="vocabulary")
        lines.append(words_line(vocabulary))
        more["words"] = vocabulary.manifest.statistics
    # A sentence encoder: only here is search the judge of what is kept.
    if "pairs" in record.stages and "finetune" in record.stages:
        kept = keep_if_better(record, space, folder=folder, questions=questions)
        more["adapted"] = kept.manifest.statistics
        lines.append(f"`cloze search {name} …` uses it")
        if kept.manifest.statistics["kept_terms"]:
            lines.append(ABOUT_TERMS)
        record = read_record(space, name)
    # Only now, since what is kept is told first.
    lines = [*account(record, target.machine()), *lines]
    return Answer({**record.model_dump(mode="json"), **more}, "\n".join(lines), target.json)


@dataclass(frozen=True)
class Adaptation:
    """What the command is asked for."""

    model: str
    folder: str
    name: str
    """Of the run."""
    how: Continued
    target: Target
    questions: str
    """File of the questions that decide; empty if made-up ones do."""


def _refuse_without_sentences(asked: Adaptation) -> None:
    """Refuse questions that cannot be read, or that would decide nothing, before hours of work."""
    questions_that_decide(asked.questions)
    model = asked.model
    start = InitialModel(model, model_directory(model, asked.target.space()), model)
    if not start.makes_sentence_vectors:
        raise UsageError(
            f"--evaluate {asked.questions}: {model} is no sentence encoder, so search does not "
            "decide what is kept; leave it out, and use `cloze search --evaluate` before and after"
        )


def _refuse_fixed_vocabulary(initial: InitialModel) -> None:
    """Refuse to add words to a vocabulary of another kind than WordPiece."""
    try:
        initial.files.tokenizer.with_words(())
    except UsageError as error:
        raise UsageError(f"--words {initial.words}: {initial.name}: {error}") from None


def words_line(vocabulary: Artifact) -> str:
    """Which words were added to a vocabulary, and what they save."""
    found = vocabulary.manifest.statistics
    wanted, added, before, after = (
        found[name] for name in ("words_wanted", "words_added", "tokens_before", "tokens_after")
    )
    where = (
        f"in {plural(found['fewest_documents'], 'document')} or more of "
        f"{plural(found['documents'], 'document')} that train"
    )
    if not added:
        return f"words: none added; no word {where} is more than one known piece"
    words = [one["word"] for one in vocabulary.read_json("words.json")["words"][:SHOWN_WORDS]]
    few = f" of {wanted:,} wanted, all that are {where} and save any" if added < wanted else ""
    return (
        f"words: {added:,} added{few}; the text that trains has {before:,} → {after:,} tokens "
        f"({after / before - 1:+.1%}); first: {', '.join(words)}"
    )


def _configuration(asked: Adaptation) -> Path:
    """The run's configuration file: the one that this command wrote before, or a new one."""
    model, folder, how, space = asked.model, asked.folder, asked.how, asked.target.space()
    # The file's first line says which command wrote it, so that repeating this command finds its
    # own, and with it the number of steps that was timed then.
    first_line = comment(shlex.join(["cloze", "adapt", model, folder, *how.options()]))
    config = Path(f"{asked.name}.toml")
    if is_written_by(config, first_line):
        return config
    directory, lasting = model_directory(model, space), lasting_name(model, space)
    initial = InitialModel(model, directory, lasting, words=how.words or 0)
    if how.words:
        _refuse_fixed_vocabulary(initial)
    for fact in initial.facts():
        say(fact)
    if initial.makes_sentence_vectors:
        _ = initial.files.pooling  # raises for vectors that cannot be trained
    if not how.is_given and not initial.makes_sentence_vectors:
        say("forgetting of general text is not measured; --general TEXT measures it")
    ours = left_out(folder, space, *filter(None, (str(config), asked.questions)))
    if task := labelled_files(find_files(folder, ours)):
        raise UsageError(
            f"{folder}: {task.description}, expected documents; `cloze init {folder} --from "
            f"{model}` writes a configuration that fine-tunes on them"
        )
    found = look(folder, ours)
    for file in found.odd:
        say(f"beside the text: {file}")
    text = _timed(found, initial, asked)
    # Checked before it is written.
    wanted = parse(RunConfig, tomllib.loads(text), source="the new configuration")
    say(prospects(wanted))
    if not is_written_by(config, first_line):  # timing takes minutes, in which others may write it
        write_bytes(str(config), f"{first_line}\n{text}".encode())
        say(f"{config}: written; for further changes edit it and use `cloze run {config}`")
    return config


def _timed(found: Look, initial: InitialModel, asked: Adaptation) -> str:
    """The configuration of the run, with as many steps as fit into the time.

    A processor's speed says little on a busy machine, so a few steps are made and timed.
    """
    name, how, target = asked.name, asked.how, asked.target
    if how.steps:
        length = Length(target, steps=how.steps)
        return continuation(found, name, initial, beside=how, length=length)
    began, trial = time.monotonic(), f"{name}-trial"
    few = TRIAL_BATCHES if initial.makes_sentence_vectors else TRIAL_STEPS
    say(f"timing {plural(few, 'step')}, to find how many fit into {how.minutes:g} minutes")
    brief_length = Length(target, steps=few)
    text = continuation(found, trial, initial, beside=how, length=brief_length)
    table = override(tomllib.loads(text), target.settings_of_run)
    brief = parse(RunConfig, {**table, "name": trial}, source="the trial")
    stage = "pretrain"
    if initial.makes_sentence_vectors:
        stage = "finetune"
        # One seed and hardly any evaluation, since only the steps are timed.
        places: Settings = {"finetune.seeds": [0], "pairs.evaluation_pairs": TRIAL_PAIRS}
        brief = changed(brief, trial, places, source="the trial")
    space, machine = writable_workspace(target.machine().workspace), target.machine()
    with locked(space.local, run=trial):
        execute(checked_plan(brief, machine, wanted=(stage,)))
    made = run_artifact(space, trial, stage=stage)
    # The trial is part of the time that was asked for. A tenth of that is trained even if the trial
    # has taken nearly all of it.
    left = how.minutes - (time.monotonic() - began) / 60
    length = Length(
        target, minutes=max(left, how.minutes / 10), timed=Timed(brief, _seconds_of_training(made))
    )
    text = continuation(found, name, initial, beside=how, length=length)
    filesystem.remove(space.run_folder(trial))  # no run to show; gc removes what it made
    return text


def _seconds_of_training(trial: Artifact) -> float:
    """Without the start of programs, which takes longer than a few steps, and varies by more."""
    return trial.manifest.execution.get("training_seconds") or sum(recorded_seconds(trial).values())


def _say_time_used(record: RunRecord, space: Workspace, *, minutes: float) -> None:
    """Say how long training took, and what the clock has changed."""
    stage = "pretrain" if "pretrain" in record.stages else "finetune"
    trained = record.stages.get(stage)
    if trained and trained.state == "made" and trained.seconds is not None:
        say(f"trained for {clock(trained.seconds)}; asked for: {clock(60 * minutes)}")
    artifact = run_artifact(space, record.name, stage=stage)
    if stage == "pretrain":
        found = artifact.manifest.statistics
        made = [("", found.get("steps", 0), found.get("shortened", []))]
    else:
        trials = Trials.model_validate(artifact.read_json("trials.json")).trials
        made = [(f'."{one.label}"', one.steps, list(map(list, one.shortened))) for one in trials]
    for trial, steps, shortened in made:
        if shortened:
            say(
                f"the time allowed {plural(steps, 'update')}, fewer than planned; the same encoder "
                f"again, without a clock: minutes = 0 and {stage}.shortened{trial} = {shortened}"
            )


def prospects(run: RunConfig) -> str:
    """How much a run trains, and what so much can and cannot change."""
    words = "" if run.vocabulary.words else "it adds no words to the vocabulary, and "
    if run.finetune.tasks and run.pairs:
        (task,) = run.finetune.tasks
        updates = -(-run.pairs.train_pairs // max(task.batch_size or 1, 1))
        amount = f"{plural(updates, 'update')} per seed of {task.batch_size} made-up queries"
        can = (
            "vectors can learn to find passages by their words, as BM25 does; they learn no "
            f"answers{'' if run.vocabulary.words else ' and no new words'}"
        )
    else:
        recipe = run.pretrain
        updates, length = recipe.steps, max(run.examples.max_seq_lengths)
        amount = f"{plural(updates, 'update')} of {recipe.batch_size} × {length} tokens"
        can = (
            f"it can lower the loss on masked words of such text; {words}vectors for search are "
            "not trained"
        )
    few = f"; fewer than {FEW_UPDATES} change little" if updates < FEW_UPDATES else ""
    return f"{amount}{few}: {can}"
