"""The named places of a training run at which a test may strike.

In:  the site's name and the step.
Out: a number that multiplies the loss at `after_forward`; elsewhere it is ignored.

The product hands `undisturbed` around. A test hands in a callable that kills, stops, sleeps,
raises, or returns NaN; nothing in the product reads an environment variable for it.
"""

from collections.abc import Callable

Strike = Callable[[str, int], float]

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


def undisturbed(site: str, step: int) -> float:
    """Nothing happens."""
    return 1.0
