"""`cloze runs`, `cloze show`, `cloze gc`: the runs of a workspace, and what no run refers to.

In:  a workspace; for `show`, a run's name.
Out: for `runs`, one line per run: state, start, duration, headline figure; for `show`, a run's
     stages and all figures; for `gc`, the garbage with its size, which --delete deletes.
"""

import os
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer, aligned
from cloze.artifacts import filesystem
from cloze.artifacts.digests import cache_directory
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import clock, say
from cloze.artifacts.runtime.temporary import clear_left
from cloze.flows.inventory import (
    KEEP_RUNS,
    Retention,
    garbage,
    remove_garbage,
    search_indexes,
    store_entries,
    unreadable_references,
    unused_copies,
)
from cloze.flows.locks import locked_alone
from cloze.flows.report.figures import figures, read_summary
from cloze.flows.workspace import list_runs, read_record, stage_tables, writable_workspace
from cloze.options import PLACE, Place, RunName

HEADER = ("run", "state", "started", "took", "stages", "headline")
MEGABYTE = 1_000_000


def runs(*, place: Place = PLACE) -> Answer:
    """List the runs of the workspace."""
    space = place.space()
    data: list[dict[str, str | int]] = []
    records = []
    for name in list_runs(space):
        try:
            # One damaged record must not hide the others.
            records.append(read_record(space, name))
        except UsageError as error:
            say(f"warning: {error}")
    for record in sorted(records, key=lambda record: record.started_at):
        summary = read_summary(space, record.name)
        first = list(figures(summary).items())[:1] if summary else []
        data.append(
            {
                "run": record.name,
                "state": record.state,
                "started": record.started_at,
                "took": clock(record.seconds) if record.seconds is not None else "",
                "stages": len(record.stages),
                "headline": "".join(f"{name} {value:.4g}" for name, value in first),
            }
        )
    table = aligned([HEADER, *([str(row[name]) for name in HEADER] for row in data)])
    text = table if data else f"no runs in {space.root}"
    return Answer({"workspace": space.root, "runs": data}, text, place.json)


def show(run: RunName, /, *, place: Place = PLACE) -> Answer:
    """Show one run."""
    space = place.space()
    record = read_record(space, run)
    summary = read_summary(space, run)
    known = figures(summary) if summary else {}
    folder = space.run_folder(run)
    took = f" in {clock(record.seconds)}" if record.seconds is not None else ""
    lines = [f"{record.name}: {record.state}{took}, started {record.started_at}"]
    lines.append(f"folder: {folder}")
    if "report" in record.stages:
        lines.append(f"report: {filesystem.join(folder, 'report.html')}")
    if record.failure:
        lines.append(record.failure)
    # The directory, so that `ls` or a program needs no key.
    stages = [
        (name, stage.digest[:12], *stage.cost, space.store.directory(name, stage.key))
        for name, stage in record.stages.items()
    ]
    table = [(name, f"{value:.4g}") for name, value in known.items()]
    parts = ["\n".join(lines), aligned(stages), aligned(table)]
    tables = {**record.model_dump(mode="json"), "stages": stage_tables(record, space)}
    data = {"record": tables, "figures": known}
    return Answer(data, "\n\n".join(part for part in parts if part), place.json)


def gc(
    *,
    delete: bool = False,
    older_than: float | None = None,
    keep_searches: Annotated[float, Parameter(show_default=True)] = KEEP_RUNS.searches,
    place: Place = PLACE,
) -> Answer:
    """Delete artifacts that no run refers to, and copies of remote ones unused for a month.

    :param delete: Delete the garbage; by default it is only listed.
    :param older_than: Days after which the artifacts of a run, its models included, are garbage
        unless a newer run refers to them; records and reports stay.
    :param keep_searches: Days for which the indexes of `cloze search` stay.
    """
    for option, days in (("--older-than", older_than), ("--keep-searches", keep_searches)):
        if days is not None and not days >= 0:  # NaN is neither
            raise UsageError(f"{option} {days:g}: expected days, 0 or more")
    retention = Retention(older_than, keep_searches)
    space = writable_workspace(place.machine().workspace)
    # Alone in the workspace: a run that is going on may be about to reuse what looks like garbage,
    # as it refers to an artifact only once it has come to its stage.
    with locked_alone(space.local, run="gc"):
        for error in unreadable_references(space):
            if delete:
                raise UsageError(f"{error}; until then nothing is deleted")
            say(f"warning: {error}")
        kept = search_indexes(store_entries(space.store), retention)
        found = [*garbage(space, retention), *unused_copies(retention)]
        if delete:
            remove_garbage(found)
            for root in (space.local, cache_directory("")):
                for folder, _, _ in os.walk(root):
                    clear_left(folder)
    total = sum(item.size for item in found)
    lines = [f"{item.size / MEGABYTE:>10,.1f} MB  {item.path}  {item.reason}" for item in found]
    what = "deleted" if delete else "can be deleted (--delete)"
    data = {
        "deleted": delete,
        "bytes": total,
        "found": [{"path": i.path, "bytes": i.size, "reason": i.reason} for i in found],
        "searches": sorted({*kept.values()}),
    }
    if kept:
        names = ", ".join(sorted({*kept.values()}))
        say(f"search indexes of the last {keep_searches:g} days are kept: {names}")
    text = "\n".join([*lines, f"{len(found)} entries, {total / MEGABYTE:,.1f} MB {what}"])
    return Answer(data, text, place.json)
