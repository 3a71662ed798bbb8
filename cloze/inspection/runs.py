"""`cloze runs`: the runs of a workspace.

In:  a workspace.
Out: one line per run: how far it is, when it began, how long it took, its headline figure.
"""

from artifacts.progress import clock
from cloze.answer import Answer
from cloze.options import PLACE, Place
from cloze.tables import columns
from flows.figures import figures, read_summary
from flows.record import RunRecord, list_runs, read_record
from flows.workspace import Workspace

HEADER = ("run", "state", "started", "took", "stages", "headline")


def runs(*, place: Place = PLACE) -> Answer:
    """List the runs of the workspace."""
    space = place.space()
    records = [read_record(space, name) for name in list_runs(space)]
    records.sort(key=lambda record: record.started_at)
    data = [_facts(record, space) for record in records]
    rows = [HEADER, *(tuple(str(fact[name]) for name in HEADER) for fact in data)]
    text = columns(rows) if data else f"no runs in {space.root}"
    return Answer({"workspace": space.root, "runs": data}, text, place.json)


def _facts(record: RunRecord, space: Workspace) -> dict[str, object]:
    summary = read_summary(space, record.name)
    known = figures(summary) if summary else {}
    name, value = next(iter(known.items()), ("", 0.0))
    return {
        "run": record.name,
        "state": record.state,
        "started": record.started_at,
        "took": clock(record.seconds) if record.seconds is not None else "",
        "stages": len(record.stages),
        "headline": f"{name} {value:.4g}" if name else "",
    }
