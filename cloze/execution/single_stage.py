"""`cloze prepare`, `vocabulary`, `tokens`, …: one stage and those it depends on, without Prefect.

In:  a configuration; options for the engine after `--`.
Out: the stage's artifact. Earlier stages run too, unless their artifacts exist.
"""

import subprocess
import sys
from collections.abc import Callable

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.store import open_artifact
from cloze.artifacts.tables import SPAN_KINDS
from cloze.execution.console import watching
from cloze.execution.preflight import checked_plan
from cloze.flows.config import RANKED
from cloze.flows.executor import execute
from cloze.flows.stages import PREPARE
from cloze.flows.workspace import stage_tables
from cloze.options import TARGET, ConfigPath, Target

BEAM = {*PREPARE, "boilerplate", "scores", "dedup"}
"""Stages that run on Beam."""
ENGINES = {*BEAM, *RANKED}
"""Stages that run on Beam or through DeepSpeed's launcher."""

PARSE_LAUNCHER_OPTIONS = "from deepspeed.launcher.runner import parse_args; parse_args()"
"""A program of its own, as the import takes seconds; ends with code 2 for an unknown option."""


def _account(directory: str, run: str) -> list[str]:
    """How many documents were kept and dropped, from the tokens artifact's statistics."""
    facts = open_artifact(directory).manifest.statistics
    if "documents_read" not in facts:
        return []
    kept = {split: found["documents"] for split, found in facts["splits"].items()}
    splits = ", ".join(f"{count:,} {split}" for split, count in kept.items())
    read, dropped = facts["documents_read"], facts["dropped"]
    left = read - sum(dropped.values())  # of few documents each may be in two splits
    lines = [f"documents: {read:,} read, {left:,} kept ({splits})"]
    if dropped:
        most_first = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in most_first)
        lines.append(f"dropped: {reasons}; list them: cloze inspect {run}/tokens --dropped")
    return lines


def _removed_lines(directory: str, run: str) -> str:
    """How much boilerplate is removed, from the artifact's statistics."""
    sources = open_artifact(directory).manifest.statistics["sources"].values()
    names = ("removed_lines", "lines", "removed_bytes", "bytes")
    removed, lines, removed_bytes, size = (sum(one[name] for one in sources) for name in names)
    spans = sum(one.get(f"{kind}_spans", 0) for one in sources for kind in SPAN_KINDS)
    removed_bytes += sum(one.get(f"{kind}_bytes", 0) for one in sources for kind in SPAN_KINDS)
    earlier = f" and {spans:,} spans that came earlier" if spans else ""
    return (
        f"boilerplate: {removed:,} of {lines:,} lines{earlier} removed, "
        f"{removed_bytes / max(size, 1):.1%} of the text; list them: cloze inspect "
        f"{run}/boilerplate"
    )


def _command(*stages: str) -> Callable[..., Answer]:
    """The subcommand that runs `stages`."""

    def command(config: ConfigPath, /, *options: str, target: Target = TARGET) -> Answer:
        """Run one stage of `config`.

        :param options: Options for the engine (Beam or DeepSpeed's launcher), after --.
        """
        if options and not options[0].startswith("-"):
            # an engine would ignore it, as would a reused stage
            raise UsageError(
                f"{options[0]}: options for the engine begin with a dash; "
                "to override a field of the configuration write --set KEY=VALUE"
            )
        if options and not ENGINES.intersection(stages):
            raise UsageError(
                f"{options[0]}: {stages[-1]} has no engine that takes options; omit everything "
                "after --"
            )
        run, machine = target.read(config)
        if options and BEAM.intersection(stages) and machine.pipeline.runner == "local":
            # checked here too, since reused stages would accept anything
            from cloze.pipeline.runner.beam import refuse_unknown

            refuse_unknown(options)
        if options and {*RANKED}.intersection(stages):
            # checked here too, since DeepSpeed's launcher starts after hours of preparation
            program = (sys.executable, "-P", "-c", PARSE_LAUNCHER_OPTIONS, *options, "program")
            done = subprocess.run(program, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip() or "no reason given").rpartition("error: ")[2]
                raise UsageError(
                    f"DeepSpeed's launcher: {reason}; `deepspeed --help` lists its options; fields "
                    "of the configuration are set with --set KEY=VALUE"
                )
        for_beam = options if BEAM.intersection(stages) else ()
        plan = checked_plan(run, machine, wanted=stages, options=for_beam)
        with watching():
            record = execute(plan, options=options)
        if options and all(record.stages[stage].state == "reused" for stage in stages):
            say(f"warning: {options[0]}: every stage was reused, so the option had no effect")
        data = stage_tables(record, plan.space, stages=stages)
        lines = [f"{stage}: {found['directory']}" for stage, found in data.items()]
        if "boilerplate" in record.stages:
            made = stage_tables(record, plan.space, stages=("boilerplate",))["boilerplate"]
            lines.append(_removed_lines(str(made["directory"]), run.name))
        if "tokens" in data:
            lines += _account(str(data["tokens"]["directory"]), run.name)
        return Answer(data, "\n".join(lines), target.json)

    return command


prepare = _command(*PREPARE)
boilerplate = _command("boilerplate")
scores = _command("scores")
dedup = _command("dedup")
vocabulary = _command("vocabulary")
tokens = _command("tokens")
examples = _command("examples")
pretrain = _command("pretrain")
finetune = _command("finetune")
evaluate = _command("evaluate")
report = _command("report")
