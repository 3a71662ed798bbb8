"""Where a stage's program runs: `start`, `poll`, `cancel`.

In:  an argv and a job directory on a disk that the launcher and the program share.
Out: DIRECTORY/log with everything the program printed, and its exit code.

A job is its directory: `job.json` says where it runs. So a flow that died can find its job again,
and another process can cancel it.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from pydantic import ValidationError

from artifacts.config import Config
from artifacts.digests import digest_of, digest_of_file

LOST = -9
"""Exit code of a job that vanished without leaving one."""


class Job(Config):
    """What a job's `job.json` says: where it runs."""

    @classmethod
    def read(cls, job: Path) -> Self | None:
        """Read that of the job in a directory; None if there is none of this kind."""
        try:
            return cls.model_validate_json((job / "job.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, job: Path) -> None:
        """Write it into the job's directory."""
        (job / "job.json").write_text(self.model_dump_json(indent=1) + "\n", "utf-8")


class Launcher(Protocol):
    """A place where programs run."""

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Start `argv`; its output goes to `job / "log"`."""

    def poll(self, job: Path) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def queued(self, job: Path) -> bool:
        """Whether it still waits for a machine, so that its silence means nothing."""

    def cancel(self, job: Path) -> None:
        """End it and everything it has started; returns when nothing is left."""


def child_environment() -> dict[str, str]:
    """Our environment, with -P for all descendants, so that no folder of the user's is imported."""
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}


def identity(argv: Sequence[str]) -> str:
    """Digest of what is asked for: the argv and the content of the stage table it names."""
    tables = [
        digest_of_file(word) for word in argv if word.endswith(".json") and Path(word).exists()
    ]
    return digest_of([list(argv), tables])
