"""`cloze serve`: execute runs that are triggered from a Prefect server.

In:  a configuration, the default values of the server's form.
Out: runs, until Ctrl-C.
"""

import os
import shlex
from typing import Annotated

from cyclopts import Parameter

from artifacts.progress import say
from cloze.answer import Answer
from cloze.options import TARGET, ConfigPath, Target
from flows.prefect.server import prefect_server, secret_file
from flows.workspace import writable_workspace

Port = Annotated[
    int, Parameter(help="Port of the server, unless PREFECT_API_URL already names one.")
]


def serve(config: ConfigPath, /, *, port: Port = 4200, target: Target = TARGET) -> Answer:
    """Serve the flows."""
    run, machine = target.run(config), target.machine()
    space = writable_workspace(machine.workspace)
    os.environ["PYTHONSAFEPATH"] = (
        "1"  # inherited by the runs: a user's own `flows/` must not shadow ours
    )
    elsewhere = bool(os.environ.get("PREFECT_API_URL"))
    with prefect_server(space, run=run.name, port=port) as url:
        # imported here because Prefect reads its settings on import
        from flows.prefect.flows import serve_flows

        def say_ready() -> None:
            page, flow = url.removesuffix("/api"), f"end-to-end/{run.name}"
            if elsewhere:
                say(f"server: {page}")
                say(f"trigger: PREFECT_API_URL={url} prefect deployment run {flow}")
            else:
                secret = shlex.quote(str(secret_file(space)))
                settings = f'PREFECT_API_URL={url} PREFECT_API_AUTH_STRING="$(cat {secret})"'
                say(f"server: {page} (the password is in {secret})")
                say(f"trigger: {settings} prefect deployment run {flow}")

        parameters = {
            "run": run.model_dump(mode="json"),
            "machine": machine.model_dump(mode="json"),
        }
        serve_flows(parameters, name=run.name, on_ready=say_ready)
    return Answer({"server": url}, "", target.json)
