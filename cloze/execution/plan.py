"""`cloze plan`: what `cloze run` would do, why, and what it would take.

In:  a configuration, and a machine file with rates.
Out: one line per stage, then work, sizes, memory, hours and cost. Nothing is started, and without
     --tables nothing is written.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from artifacts.errors import UsageError
from cloze.answer import Answer
from cloze.execution.forecast_text import corpus_lines, training_lines
from cloze.init.corpus_samples import look
from cloze.options import WANTED, ConfigPath, Wanted
from flows.config import MachineConfig, RunConfig
from flows.executor import write_tables
from flows.forecast.corpus import forecast_corpus
from flows.forecast.training import forecast_training
from flows.plan import PlannedStage
from flows.plan import plan as plan_run
from flows.stages import PREPARE

Gigabytes = Annotated[
    float,
    Parameter(
        help="Reckon with so many GB of text; the corpus need not be here.", show_default=False
    ),
]

Tables = Annotated[
    bool,
    Parameter(
        negative="",
        help="Write the tables of stages that could begin now, to start them by hand.",
    ),
]

GIGABYTE = 1e9


def plan(
    config: ConfigPath,
    /,
    *,
    gigabytes: Gigabytes = 0.0,
    tables: Tables = False,
    wanted: Wanted = WANTED,
) -> Answer:
    """What `cloze run` would reuse and what it would make, stage by stage, and what it takes."""
    run, machine = wanted.run(config), wanted.machine()
    if gigabytes and not run.corpus:
        raise UsageError(f"--gigabytes {gigabytes:g}: this run reads no corpus; leave it out")
    stages = () if gigabytes else plan_run(run, workspace=wanted.space())
    text_bytes = gigabytes * GIGABYTE or _text_bytes(run)
    to_run = {stage.stage for stage in stages if stage.action == "run"}
    data, lines = _forecast(run, machine, text_bytes, to_run if stages else {*PREPARE, "pretrain"})
    written = [str(file) for file in write_tables(run, machine)] if tables else []
    data["stages"] = [stage.model_dump(mode="json") for stage in stages]
    data["tables"] = written
    lines += [f"table: {file}" for file in written]
    return Answer(data, "\n".join([*_stage_lines(stages), *lines]).lstrip("\n"), wanted.json)


def _forecast(
    run: RunConfig, machine: MachineConfig, text_bytes: float, to_run: set[str]
) -> tuple[dict[str, Any], list[str]]:
    """What the stages that would run take, as data and as lines."""
    data: dict[str, Any] = {}
    lines: list[str] = []
    corpus = forecast_corpus(text_bytes, run.examples)
    if text_bytes and to_run & {*PREPARE}:
        data["preparation"] = asdict(corpus)
        lines += corpus_lines(corpus, run, machine)
    if "pretrain" in to_run:
        training = forecast_training(run, machine, examples=corpus.examples)
        data["pretraining"] = asdict(training)
        lines += training_lines(training, run, machine)
    return data, lines


def _text_bytes(run: RunConfig) -> float:
    """Estimated bytes of text; 0 where it lies in packages, which nobody has measured."""
    sources = run.corpus.sources if run.corpus else ()
    return sum(look(source.path).text_bytes for source in sources if source.path)


def _stage_lines(stages: Sequence[PlannedStage]) -> list[str]:
    return [f"{stage.stage:<11} {stage.action:<6} {_why(stage)}" for stage in stages]


def _why(stage: PlannedStage) -> str:
    return stage.digest[:12] if stage.action == "reuse" else "; ".join(stage.reasons)
