"""The Prefect flows: the whole pipeline, its parts, and the ablations; and serving them.

In:  the configurations of a run and a machine, which the server shows as a form.
Out: the run's record as JSON. A flow also makes the missing artifacts that its stages depend on.
     `serve_flows` executes the flow runs triggered on a server, each in a process of its own that
     imports the flow by module name from any working directory.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, TypeVar

from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import TerminationSignal
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType
from pydantic import BeforeValidator, JsonValue

from artifacts.progress import say
from flows.ablation.result import publish
from flows.ablation.rows import HELDOUT_ROW, Settings, Table, changed, rows
from flows.config import THIS_MACHINE, MachineConfig, RunConfig
from flows.prefect.tracking import tracked
from flows.record import run_artifact
from flows.stages import PREPARE
from flows.workspace import workspace

Result = TypeVar("Result")

ALL_TABLES: tuple[Table, ...] = ("objective", "size", "masking")
"""The paper's tables."""

Record = dict[str, JsonValue]
"""A run's record as JSON."""

SERVED = "CLOZE_SERVED"
"""Environment variable with the served parameters as JSON, for the server and its flow runs."""


def _with_served(name: str) -> BeforeValidator:
    """Complete a partial parameter, such as `{"name": "other"}`, with the served configuration."""

    def fill(given: object) -> object:
        served = json.loads(os.environ.get(SERVED, "{}")).get(name)
        return merged(served, given) if served else given

    return BeforeValidator(fill)


def merged(served: JsonValue, given: object) -> object:
    """`given`, with missing keys at any depth taken from `served`; lists are not merged."""
    if not isinstance(served, dict) or not isinstance(given, dict):
        return given
    return {**served, **{key: merged(served.get(key), value) for key, value in given.items()}}


Run = Annotated[RunConfig, _with_served("run")]
Machine = Annotated[MachineConfig, _with_served("machine")]

SERVING = "CLOZE_SERVING"
"""Environment variable set in a process that serves flows, and inherited by its flow runs."""


def announce(flow: "Flow[..., Result]", flow_run: FlowRun, state: "State[Result]") -> None:
    """Hook that prints a flow run's change of state on the terminal of `cloze serve`."""
    if os.environ.get(SERVING):
        changed = (state.name or state.type.value).lower()
        reason = "" if state.is_running() or state.is_completed() else state.message
        say(f"{flow_run.name} ({flow.name}): {f'{changed}: {reason}' if reason else changed}")


@flow(name="end-to-end", flow_run_name="{run.name}", persist_result=False)
def end_to_end(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Turn documents into an evaluated encoder with a report."""
    return tracked(run, machine)


@flow(name="prepare", flow_run_name="{run.name}", persist_result=False)
def prepare(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Make vocabulary, tokens and examples."""
    return tracked(run, machine, wanted=PREPARE)


@flow(name="pretrain", flow_run_name="{run.name}", persist_result=False)
def pretrain(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Pre-train an encoder."""
    return tracked(run, machine, wanted=("pretrain",))


@flow(name="finetune", flow_run_name="{run.name}", persist_result=False)
def finetune(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Fine-tune on every task with every seed."""
    return tracked(run, machine, wanted=("finetune",))


@flow(name="evaluate", flow_run_name="{run.name}", persist_result=False)
def evaluate(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Evaluate the encoder and the models fine-tuned from it."""
    return tracked(run, machine, wanted=("evaluate",))


@flow(name="ablations", flow_run_name="{run.name}-ablations", persist_result=False)
def ablations(
    run: Run,
    machine: Machine = THIS_MACHINE,
    tables: tuple[Table, ...] = ALL_TABLES,
    seeds: int = 3,
    only: tuple[str, ...] = (),
) -> Record:
    """Run all rows of the tables, or only some, and compare their figures.

    All rows of a table are evaluated on the same held-out examples, usually those of `run` itself,
    and share the artifacts they have in common. If a row fails, the flow ends, and the same call
    resumes there.
    """
    wanted, space = rows(run, tables, seeds=seeds, only=only), workspace(machine.workspace)
    heldout = {}
    for table in {row.table: None for row in wanted}:
        by_name = {row.name: row.runs[0] for row in rows(run, (table,))}
        base = by_name.get(HELDOUT_ROW.get(table, ""), run)
        tracked(base, machine, wanted=PREPARE)
        heldout[table] = run_artifact(space, base.name, stage="examples").directory
    for row in wanted:
        for partner in row.partners:
            tracked(partner, machine, wanted=("pretrain",))
        partners = [run_artifact(space, one.name, stage="pretrain") for one in row.partners]
        for number, one in enumerate(row.runs):
            found: Settings = {"evaluate.heldout_examples": heldout[row.table]}
            if partners:
                found["finetune.second_encoder"] = partners[number].directory
            tracked(changed(one, one.name, found), machine)
    return publish(run, wanted, space).model_dump(mode="json")


FLOWS = (end_to_end, prepare, pretrain, finetune, evaluate, ablations)

for _flow in FLOWS:
    _flow.on_running(announce)
    _flow.on_completion(announce)
    _flow.on_failure(announce)
    _flow.on_cancellation(announce)
    _flow.on_crashed(announce)


class GentleRunner(Runner):
    """Ends on SIGTERM as on Ctrl-C; Prefect's own handler does not await the shutdown."""

    def handle_sigterm(self, *args: object, **kwargs: object) -> None:
        """Signal handler."""
        raise KeyboardInterrupt


def deployments(parameters: Mapping[str, object], *, name: str) -> list[RunnerDeployment]:
    """Every flow as a deployment called `FLOW/name`."""
    return [
        RunnerDeployment.from_flow(
            flow, name=name, parameters=dict(parameters), entrypoint_type=EntrypointType.MODULE_PATH
        )
        for flow in FLOWS
    ]


def serve_flows(
    parameters: Mapping[str, object], *, name: str, on_ready: Callable[[], None] = lambda: None
) -> None:
    """Execute triggered flow runs one at a time, since they would compete for this machine's cores.

    `on_ready` is called once the deployments are registered. Returns on Ctrl-C or SIGTERM.
    """
    os.environ[SERVING] = "1"
    os.environ[SERVED] = json.dumps(parameters)
    runner = GentleRunner(limit=1)
    for deployment in deployments(parameters, name=name):
        runner.add_deployment(deployment)
    on_ready()
    with suppress(KeyboardInterrupt, TerminationSignal):
        asyncio.run(runner.start())
