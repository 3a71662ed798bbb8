"""`cloze prepare`, `vocabulary`, `tokens`, …: one stage and what it needs, without Prefect.

In:  a configuration; options for the engine after `--`.
Out: the stage's artifact. The stages before it are made too, unless their artifacts exist.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence

from artifacts.errors import UsageError
from artifacts.progress import say
from artifacts.store import open_artifact
from cloze.answer import Answer
from cloze.execution.console import watching
from cloze.execution.preflight import refuse_contradictions
from cloze.options import TARGET, ConfigPath, EngineOption, Target
from flows.executor import execute
from flows.plan import plan
from flows.record import stage_tables
from flows.stages import PREPARE
from flows.workspace import workspace

BEAM = {*PREPARE, "dedup"}
"""Stages that Beam runs."""
ENGINES = {*BEAM, "pretrain"}
"""These, and what DeepSpeed's launcher runs."""


def _account(directory: str, run: str) -> list[str]:
    """What became of the documents, from the tokens artifact's statistics."""
    facts = open_artifact(directory).manifest.statistics
    if "documents_read" not in facts:
        return []
    kept = {split: found["documents"] for split, found in facts["splits"].items()}
    splits = ", ".join(f"{count:,} {split}" for split, count in kept.items())
    lines = [f"documents: {facts['documents_read']:,} read, {sum(kept.values()):,} kept ({splits})"]
    if dropped := facts["dropped"]:
        most_first = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in most_first)
        lines.append(f"dropped: {reasons}; which: cloze inspect {run}/tokens --dropped")
    return lines


def _refuse_unknown_to_launcher(options: Sequence[str]) -> None:
    """Refuse now what DeepSpeed's launcher would refuse when the corpus is prepared."""
    program = (sys.executable, "-P", "-m", "model.training.launcher_options")
    done = subprocess.run([*program, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").rpartition("error: ")[2]
        raise UsageError(
            f"DeepSpeed's launcher: {reason}; `deepspeed --help` lists its options, those of a run "
            "are set with --set KEY=VALUE"
        )


def _command(*stages: str) -> Callable[..., Answer]:
    """A command that makes `stages`."""

    def command(config: ConfigPath, /, *options: EngineOption, target: Target = TARGET) -> Answer:
        """Make one stage of `config`."""
        if options and not options[0].startswith("-"):
            # an engine would ignore it, and so would a stage that is reused
            raise UsageError(
                f"{options[0]}: options for the engine begin with a dash; "
                "to override a field of the configuration write --set KEY=VALUE"
            )
        if options and not ENGINES.intersection(stages):
            raise UsageError(
                f"{options[0]}: {stages[-1]} runs without an engine that takes options; leave out "
                "what follows --"
            )
        run, machine = target.run(config), target.machine()
        if options and BEAM.intersection(stages) and machine.pipeline.runner == "local":
            # here and not only in the stages: those that are reused would accept anything
            from pipeline.runner.beam import refuse_unknown

            refuse_unknown(options)
        if options and "pretrain" in stages:
            _refuse_unknown_to_launcher(options)
        space = workspace(machine.workspace)
        refuse_contradictions(run, machine, plan(run, workspace=space, wanted=stages))
        with watching():
            record = execute(run, machine, wanted=stages, options=options)
        if options and all(record.stages[stage].state == "reused" for stage in stages):
            say(f"warning: {options[0]}: every stage was reused, so no engine got this option")
        data = stage_tables(record, space, stages=stages)
        lines = [f"{stage}: {found['directory']}" for stage, found in data.items()]
        if "tokens" in data:
            lines += _account(str(data["tokens"]["directory"]), run.name)
        return Answer(data, "\n".join(lines), target.json)

    return command


prepare = _command(*PREPARE)
dedup = _command("dedup")
vocabulary = _command("vocabulary")
tokens = _command("tokens")
examples = _command("examples")
pretrain = _command("pretrain")
finetune = _command("finetune")
evaluate = _command("evaluate")
report = _command("report")
