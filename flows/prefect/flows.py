"""The Prefect flows that a server triggers: the whole pipeline and its parts.

In:  the configurations of a run and a machine, which the server shows as a form.
Out: the run's record as JSON. A flow also makes the missing artifacts that its stages depend on.
     `serve_flows` executes the flow runs triggered on a server, each in a process of its own that
     imports the flow by module name from any working directory.

Prefect reads the forms from the parameters' types when this module is imported, which takes as long
as the rest of Prefect; what the runs of `cloze run` need is in flows/prefect/tracking.py.
"""

import json
import os
from typing import Annotated, ParamSpec, TypeVar

from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, State
from pydantic import BeforeValidator, JsonValue

from cloze.artifacts.progress import say
from cloze.flows.config import THIS_MACHINE, MachineConfig, RunConfig
from cloze.flows.plan import Plan
from cloze.flows.prefect.tracking import END_TO_END, Record, tracked
from cloze.flows.stages import PREPARE

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

SERVED = "CLOZE_SERVED"
"""Environment variable with the served parameters as JSON, for the server and its flow runs."""

SERVING = "CLOZE_SERVING"
"""Environment variable set in a process that serves flows, and inherited by its flow runs."""


def _with_served(name: str) -> BeforeValidator:
    """Complete a partial parameter, such as `{"name": "other"}`, with the served configuration."""

    def fill(given: object) -> object:
        served = json.loads(os.environ.get(SERVED, "{}")).get(name)
        return completed(served, given) if served else given

    return BeforeValidator(fill)


def completed(served: JsonValue, given: object) -> object:
    """`given`, with missing keys at any depth taken from `served`; lists are not merged."""
    if not isinstance(served, dict) or not isinstance(given, dict):
        return given
    # Prefect sends the whole form back, or whatever part of it a command gave: missing keys at any
    # depth mean the configuration that is served, not the defaults of the classes.
    return {**served, **{key: completed(served.get(key), value) for key, value in given.items()}}


Run = Annotated[RunConfig, _with_served("run")]


Machine = Annotated[MachineConfig, _with_served("machine")]


def announce(flow: "Flow[..., Result]", flow_run: FlowRun, state: "State[Result]") -> None:
    """Hook that prints a flow run's change of state on the terminal of `cloze serve`."""
    if os.environ.get(SERVING):
        changed = (state.name or state.type.value).lower()
        reason = "" if state.is_running() or state.is_completed() else state.message
        say(f"{flow_run.name} ({flow.name}): {f'{changed}: {reason}' if reason else changed}")


def announced(flow: "Flow[Parameters, Result]") -> "Flow[Parameters, Result]":
    """Decorator: `announce` the changes of state of a flow's runs."""
    flow.on_running(announce)
    flow.on_completion(announce)
    flow.on_failure(announce)
    flow.on_cancellation(announce)
    flow.on_crashed(announce)
    return flow


@announced
@flow(name=END_TO_END, flow_run_name="{run.name}", persist_result=False)
def end_to_end(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Turn documents into an evaluated encoder with a report."""
    return tracked(Plan(run, machine))


@announced
@flow(name="prepare", flow_run_name="{run.name}", persist_result=False)
def prepare(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Make vocabulary, tokens and examples."""
    return tracked(Plan(run, machine, wanted=PREPARE))


@announced
@flow(name="pretrain", flow_run_name="{run.name}", persist_result=False)
def pretrain(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Pre-train an encoder."""
    return tracked(Plan(run, machine, wanted=("pretrain",)))


@announced
@flow(name="finetune", flow_run_name="{run.name}", persist_result=False)
def finetune(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Fine-tune on every task with every seed."""
    return tracked(Plan(run, machine, wanted=("finetune",)))


@announced
@flow(name="evaluate", flow_run_name="{run.name}", persist_result=False)
def evaluate(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Evaluate the encoder and the models fine-tuned from it."""
    return tracked(Plan(run, machine, wanted=("evaluate",)))
