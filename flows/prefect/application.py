"""The application of a Prefect server of ours: Prefect's own, closed to other people's web pages.

In:  Prefect's settings, from the environment (flows/prefect/server.py).
Out: an ASGI application for uvicorn, which answers only where it is asked for by a local name.

A page of another site can make a browser send requests here. Prefect's settings keep it from
reading the answers and from knowing the secret; the check of the name also refuses a site that has
its own name resolve to 127.0.0.1.
"""

from fastapi import FastAPI
from prefect.server.api import server
from starlette.middleware.trustedhost import TrustedHostMiddleware

LOCAL_NAMES = ("127.0.0.1", "localhost")


def create_app() -> FastAPI:
    """The factory that uvicorn calls."""
    app = server.create_app()
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)
    return app
