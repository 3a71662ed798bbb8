"""The errors that a job ends with.

In:  what a worker or Beam's runner raised, often only as text.
Out: `JobFailed`, or the error of ours that it was, on one line.
"""

import re

from artifacts.errors import ClozeError, DiskFull, IntegrityError, UsageError

_RAISED = re.compile(r"^artifacts\.errors\.(\w+): (.*?)(?: \[while running .*)?$", re.MULTILINE)
_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)
"""The message of a gRPC error, among the lines of its status."""
_LONGEST = 600


class JobFailed(ClozeError):
    """A job ended without finishing its work."""


class WorkerKilled(JobFailed):
    """A worker was killed from outside; what it wrote before says nothing about why."""

    exit_code = 128 + 9
    """As if the program itself had been killed: another try may help."""


KINDS = {kind.__name__: kind for kind in (DiskFull, IntegrityError, UsageError)}


def job_error(kind: str, text: str) -> ClozeError:
    """The error to raise for a job that ended with exception `kind` and message `text`.

    Workers' exceptions reach the runner as text only; our own are recognised in it.
    """
    raised = _RAISED.findall(f"artifacts.errors.{kind}: {text}" if kind in KINDS else text)
    if raised:
        return KINDS.get(raised[-1][0], JobFailed)(raised[-1][1])
    details = _DETAILS.findall(text)
    if details:
        text = details[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    reason = re.sub(r" \[while running .*", "", lines[-1])[:_LONGEST]
    reason = reason if kind == "RuntimeError" else f"{kind}: {reason}"
    return JobFailed(f"the job failed: {reason}; finished parts are kept, the same command goes on")
