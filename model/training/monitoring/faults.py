"""The named points of a run at which tests inject faults.

In:  the site that a run reaches, and its step.
Out: whatever the hook of a test does there; nothing outside of tests.
"""

from collections.abc import Callable

SITES = (
    "after_forward",
    "after_backward",
    "before_step",
    "after_step",
    "checkpoint.begin",
    "checkpoint.mid_file",
    "checkpoint.after_file",
    "checkpoint.before_commit",
    "checkpoint.after_commit",
    "checkpoint.purge",
)
"""Named points of a run, reported for a hanging rank, and used by tests to inject faults."""

FaultHook = Callable[[str, int], None]
"""Called with a site and a step. Tests kill, stop, sleep or raise in it; production code never
reads an environment variable for it."""


def no_fault(site: str, step: int) -> None:
    """The hook outside of tests."""
