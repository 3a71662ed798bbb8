"""A Prefect server for the tests of a file."""

import os
from collections.abc import Iterator

import pytest

from cloze.flows.prefect.server import prefect_server
from cloze.flows.workspace import writable_workspace


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A temporary server, shared by the tests of a file."""
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        os.environ.pop(name, None)
    space = writable_workspace(str(tmp_path_factory.mktemp("server")))
    with prefect_server(space, run="flows") as url:
        yield url
