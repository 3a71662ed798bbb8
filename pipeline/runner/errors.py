"""What can go wrong with a job as a whole, and how a worker's own error finds its way back.

In:  the exception or traceback text with which a runner ends.
Out: `JobFailed`, or the `ClozeError` that a worker raised, on one line.
"""

import re

from artifacts.errors import ClozeError, DiskFull, IntegrityError, UsageError

_RAISED = re.compile(
    r"^(?:artifacts|pipeline\.engine)\.errors\.(\w+): (.*?)(?: \[while running .*)?$", re.MULTILINE
)
_LONGEST = 600


class JobFailed(ClozeError):
    """A Beam job ended without finishing its work."""


class WorkerKilled(JobFailed):
    """A worker was killed from outside; what it wrote before says nothing about why."""

    exit_code = 128 + 9
    """As if the program itself had been killed: another try may help."""


_KINDS = {kind.__name__: kind for kind in (DiskFull, IntegrityError, UsageError)}


def own_error(kind: str, message: str) -> ClozeError:
    """An error of ours from the name of its class."""
    return _KINDS.get(kind, JobFailed)(message)


def job_error(kind: str, text: str) -> ClozeError:
    """The error to raise for a job that ended with exception `kind` and message `text`.

    Workers' exceptions reach the runner as text only; our own are recognised in it.
    """
    raised = _RAISED.findall(f"artifacts.errors.{kind}: {text}" if kind in _KINDS else text)
    if raised:
        return own_error(*raised[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    reason = re.sub(r" \[while running .*", "", lines[-1])[:_LONGEST]
    reason = reason if kind == "RuntimeError" else f"{kind}: {reason}"
    return JobFailed(f"the job failed: {reason}; finished parts are kept, the same command goes on")
