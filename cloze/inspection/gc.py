"""`cloze gc`: find and delete artifacts that no run refers to.

In:  a workspace.
Out: the garbage with its size; with --delete, it is deleted.
"""

from typing import Annotated

from cyclopts import Parameter

from artifacts.errors import UsageError
from artifacts.progress import say
from cloze.answer import Answer
from cloze.options import PLACE, Place
from flows.inventory import garbage, remove_garbage, unreadable_references
from flows.locks.on_disk import locked_alone
from flows.workspace import writable_workspace

MEGABYTE = 1_000_000

Delete = Annotated[
    bool,
    Parameter(
        negative="", show_default=False, help="Delete the garbage; by default it is only listed."
    ),
]


def gc(*, delete: Delete = False, place: Place = PLACE) -> Answer:
    """Delete artifacts that no run refers to."""
    space = writable_workspace(place.machine().workspace)
    with locked_alone(space.local, run="gc"):
        for error in unreadable_references(space):
            if delete:
                raise UsageError(f"{error}; until then nothing is deleted")
            say(f"warning: {error}")
        found = garbage(space)
        if delete:
            remove_garbage(found)
    total = sum(item.size for item in found)
    lines = [f"{item.size / MEGABYTE:>10,.1f} MB  {item.path}  {item.reason}" for item in found]
    what = "deleted" if delete else "can be deleted (--delete)"
    data = {
        "deleted": delete,
        "bytes": total,
        "found": [{"path": i.path, "bytes": i.size, "reason": i.reason} for i in found],
    }
    text = "\n".join([*lines, f"{len(found)} entries, {total / MEGABYTE:,.1f} MB {what}"])
    return Answer(data, text, place.json)
