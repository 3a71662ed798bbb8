"""Serving the flows: executing the flow runs that are triggered on a server.

In:  the default values of the server's form.
Out: every flow as a deployment; each flow run in a process of its own, which imports the flow by
     module name from any working directory.
"""

import asyncio
import json
import os
import pkgutil
from collections.abc import Callable, Mapping
from contextlib import suppress

from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import TerminationSignal
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

from cloze.flows.prefect import flows
from cloze.flows.prefect.flows import SERVED, SERVING

FLOWS = (
    *(f"{flows.__name__}:{name}" for name in ("end_to_end", "prepare", "pretrain", "finetune")),
    f"{flows.__name__}:evaluate",
    "cloze.paper.flow:run_rows",
)
"""The flows that are served: `module:name`."""


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
        for flow in map(pkgutil.resolve_name, FLOWS)
    ]


def serve_flows(
    parameters: Mapping[str, object], *, name: str, on_ready: Callable[[], None] = lambda: None
) -> None:
    """Execute triggered flow runs one at a time, since they would compete for this machine's cores.

    `on_ready` is called once the deployments are registered. Returns on Ctrl-C or SIGTERM.
    """
    os.environ[SERVING] = "1"
    # By the environment, since each flow run is a process of its own that imports the flows by
    # name.
    os.environ[SERVED] = json.dumps(parameters)
    runner = GentleRunner(limit=1)
    for deployment in deployments(parameters, name=name):
        runner.add_deployment(deployment)
    on_ready()
    with suppress(KeyboardInterrupt, TerminationSignal):
        asyncio.run(runner.start())
