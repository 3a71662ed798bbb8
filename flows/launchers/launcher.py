"""The interface of launchers, which run the programs of stages: `start`, `poll`, `cancel`.

In:  an argv and a job directory on a disk that the launcher and the program share.
Out: DIRECTORY/log with everything the program printed, and its exit code.

A job is identified by its directory, and `job.json` records where it runs. So a restarted flow can
find its job again, and another process can cancel it.
"""

import os
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Protocol, Self

from pydantic import ValidationError

from cloze.artifacts.config import Config
from cloze.artifacts.digests import digest_of, digest_of_file

LOST = -9
"""Exit code of a job that disappeared without leaving one."""

CANCELLED = 130
"""Exit code of a job that somebody has cancelled, as if by Ctrl-C: it is not tried again."""


class Job(Config):
    """The content of `job.json`: where a job runs."""

    @classmethod
    def read(cls, job: Path) -> Self | None:
        """Read it from a job's directory; None if it is missing or of another launcher."""
        try:
            return cls.model_validate_json((job / "job.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, job: Path) -> None:
        """Write it to the job's directory."""
        (job / "job.json").write_text(self.model_dump_json(indent=1) + "\n", "utf-8")


class Launcher(Protocol):
    """Runs programs in one environment."""

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Start `argv`; its output goes to `job / "log"`."""

    def poll(self, job: Path) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def queued(self, job: Path) -> bool:
        """Whether it is waiting for a machine, so that no output is expected."""

    def cancel(self, job: Path) -> None:
        """End it with everything it has started, and wait until nothing is left."""


def supervisor_argv(job: Path, *, grace: float, python: str = sys.executable) -> tuple[str, ...]:
    """The command of a supervisor, to be followed by its other options, `--` and the program."""
    options = ("--job", str(job), "--grace", str(grace))
    return (python, "-P", "-m", "cloze.flows.launchers.supervisor", *options)


def packaged(name: str) -> str:
    """The content of a file of this folder: a script or manifest with places to fill in."""
    return resources.files("cloze.flows.launchers").joinpath(name).read_text("utf-8")


def child_environment() -> dict[str, str]:
    """Our environment, in which no Python program imports from the working directory (-P)."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def identity(argv: Sequence[str]) -> str:
    """Digest of the argv and of the content of the stage table it names."""
    tables = [
        digest_of_file(word) for word in argv if word.endswith(".json") and Path(word).exists()
    ]
    return digest_of([list(argv), tables])
