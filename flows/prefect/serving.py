"""The flows as deployments of a Prefect server, worked off by this process.

In:  the parameters that the server's form shows first.
Out: runs, one at a time, until this process is told to end.

A run is a process of its own. It finds the flow by module name, wherever it is started.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prefect import Flow
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import TerminationSignal
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

from flows.prefect.ablations import ablations
from flows.prefect.end_to_end import end_to_end
from flows.prefect.evaluate import evaluate
from flows.prefect.finetune import finetune
from flows.prefect.prepare import prepare
from flows.prefect.pretrain import pretrain

FLOWS: tuple[Flow[..., dict[str, Any]], ...] = (
    end_to_end,
    prepare,
    pretrain,
    finetune,
    evaluate,
    ablations,
)


class GentleRunner(Runner):
    """Ends on SIGTERM as on Ctrl-C; Prefect's own handler forgets to await the stopping."""

    def handle_sigterm(self, *args: Any, **kwargs: Any) -> None:
        """Signal handler."""
        raise KeyboardInterrupt


def deployments(parameters: dict[str, Any], *, name: str) -> list[RunnerDeployment]:
    """Every flow as a deployment called `FLOW/name`."""
    return [
        RunnerDeployment.from_flow(
            flow, name=name, parameters=parameters, entrypoint_type=EntrypointType.MODULE_PATH
        )
        for flow in FLOWS
    ]


def serve_flows(
    parameters: dict[str, Any], *, name: str, on_ready: Callable[[], None] = lambda: None
) -> None:
    """Work off what is triggered, one run at a time: a workspace has one user at a time.

    `on_ready` is called when the server knows the deployments. Returns when it is told to end.
    """
    runner = GentleRunner(limit=1)
    for deployment in deployments(parameters, name=name):
        runner.add_deployment(deployment)
    on_ready()
    with suppress(KeyboardInterrupt, TerminationSignal):
        asyncio.run(runner.start())
