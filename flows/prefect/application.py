"""The application of our Prefect servers: Prefect's own, protected from other web sites.

In:  Prefect's settings, from the environment (flows/prefect/server.py).
Out: an ASGI application for uvicorn that only accepts requests to a local host name, and serves the
     report of each run at /reports/RUN to clients that know the secret.

Other web sites can make a browser send requests to this server. Prefect's settings prevent them
from reading the responses and the secret; checking the host name also refuses sites whose name
resolves to 127.0.0.1 (DNS rebinding).
"""

import os
import secrets
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from prefect.server.api import server
from starlette.middleware.trustedhost import TrustedHostMiddleware

from cloze.artifacts import filesystem
from cloze.flows.prefect.server import SHOWN_WORKSPACE
from cloze.flows.workspace import PAGE_NAME, Workspace, list_runs

LOCAL_NAMES = ("127.0.0.1", "localhost")

SANDBOX = {"Content-Security-Policy": "sandbox; script-src 'none'"}
"""A report contains text of the corpus, so a browser must not treat it as a page of Prefect's."""


def create_app() -> FastAPI:
    """The factory that uvicorn calls."""
    app = server.create_app()
    if os.environ.get(SHOWN_WORKSPACE):
        # inserted first, since Prefect's UI matches every path
        app.router.routes.insert(0, APIRoute("/reports/{run}", report))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)
    return app


def report(
    run: str, given: Annotated[HTTPBasicCredentials, Depends(HTTPBasic(realm="Cloze"))]
) -> HTMLResponse:
    """The report of `run`; user and password are the two parts of the secret."""
    known = os.environ["PREFECT_SERVER_API_AUTH_STRING"].encode()
    if not secrets.compare_digest(f"{given.username}:{given.password}".encode(), known):
        raise HTTPException(401, "wrong secret", {"WWW-Authenticate": 'Basic realm="Cloze"'})
    space = Workspace(os.environ[SHOWN_WORKSPACE])
    path = filesystem.join(space.run_folder(run), PAGE_NAME)
    if run not in list_runs(space) or not filesystem.exists(path):
        raise HTTPException(404, f"{run}: no report in workspace {space.root}")
    return HTMLResponse(filesystem.read_bytes(path), headers=SANDBOX)
