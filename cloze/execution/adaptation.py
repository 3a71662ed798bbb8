"""`cloze adapt`: continue training an encoder on a folder of documents.

In:  a model and a folder.
Out: NAME.toml, the run's configuration; the run's record, artifacts and report, which compares the
     encoder before and after on held-out documents of the folder.

It combines `cloze init --from` and `cloze run`. A sentence encoder is trained further on pairs of
passages; what was trained is kept only if search on held-out pairs or questions improved by more
than chance (kept_encoder.py). Repeat an interrupted command to resume it.
"""

import math
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import find_files, write_bytes
from cloze.artifacts.progress import say
from cloze.execution.kept_encoder import keep_if_better, questions_that_decide, verdict_line
from cloze.execution.run import WithoutPrefect, run
from cloze.flows.config import RunConfig
from cloze.flows.workspace import RunRecord, read_record
from cloze.inference.input_texts import ModelName
from cloze.init.configuration import GeneralText, Name, comment, continuation, run_name
from cloze.init.corpus_files import own_files
from cloze.init.corpus_samples import look
from cloze.init.initial_model import MINUTES, InitialModel
from cloze.init.labelled_files import labelled_files
from cloze.options import TARGET, Target, lasting_name, model_directory


@Parameter(name="*")
@dataclass(frozen=True)
class Continued(GeneralText):
    """How long to train, and with which general text."""

    minutes: float = MINUTES
    """Training time, from which the number of steps is estimated in advance: repeating the command
    trains the same encoder, even if other programs slow it down."""

    steps: int = 0
    """Training steps, instead of minutes."""

    def options(self) -> list[str]:
        """The same options as command-line arguments."""
        given = {"--general": self.general, "--replay": self.replay}
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
        them, held-out pairs of passages do.
    """
    if not 0 < how.minutes < math.inf or how.steps < 0:
        raise UsageError(
            f"--minutes {how.minutes:g} --steps {how.steps}: expected positive numbers"
        )
    asked = str(questions_file or "")
    if asked:
        # Before hours of training.
        questions_that_decide(asked)
        start = InitialModel(model, model_directory(model, target.space()))
        if not start.makes_sentence_vectors:
            raise UsageError(
                f"--evaluate {asked}: {model} is no sentence encoder, so search does not decide "
                "what is kept; leave it out, and use `cloze search --evaluate` before and after"
            )
    name = name or run_name(folder)
    # The file's first line says which command wrote it, so that repeating this command finds its
    # own.
    first_line = comment(shlex.join(["cloze", "adapt", model, folder, *how.options()]))
    config = Path(f"{name}.toml")
    if not config.exists():
        directory = model_directory(model, target.space())
        initial = InitialModel(lasting_name(model, target.space()), directory)
        for fact in initial.facts():
            say(fact)
        if not how.is_given and not initial.makes_sentence_vectors:
            say("forgetting of general text is not measured; --general TEXT measures it")
        ours = own_files(folder, target.space(), *filter(None, (str(config), asked)))
        if task := labelled_files(find_files(folder, ours)):
            raise UsageError(
                f"{folder}: {task.description}, expected documents; `cloze init {folder} --from "
                f"{model}` writes a configuration that fine-tunes on them"
            )
        found = look(folder, ours)
        for file in found.odd:
            say(f"beside the text: {file}")
        text = continuation(
            found, name, initial, target, beside=how, steps=how.steps, minutes=how.minutes
        )
        # Checked before it is written.
        parse(RunConfig, tomllib.loads(text), source="the new configuration")
        write_bytes(str(config), f"{first_line}\n{text}".encode())
        say(f"{config}: written; for further changes edit it and use `cloze run {config}`")
    elif config.read_text("utf-8").partition("\n")[0] != first_line:
        raise UsageError(
            f"{config}: already exists, written by another command; choose another --name, or "
            f"use `cloze run {config}`"
        )
    answer = run(config, target=target, without_prefect=without_prefect)
    record = RunRecord.model_validate(answer.data)
    if "pairs" not in record.stages or "finetune" not in record.stages:
        return answer
    kept = keep_if_better(record, target.space(), folder=folder, questions=asked)
    statistics = kept.manifest.statistics
    data = read_record(target.space(), name).model_dump(mode="json")
    return Answer(
        {**data, "adapted": statistics},
        f"{answer.text}\n{verdict_line(statistics)}\n`cloze search {name} …` uses it",
        target.json,
    )
