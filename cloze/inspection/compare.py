"""`cloze compare`: two runs side by side.

In:  the names of two runs.
Out: the fields in which their configurations differ, and their figures beside each other.
"""

from cloze.answer import Answer, columns
from cloze.options import PLACE, Place, RunName
from flows.figures import figures, read_summary
from flows.plan import flat
from flows.record import read_record

ABSENT = "—"


def compare(first: RunName, second: RunName, /, *, place: Place = PLACE) -> Answer:
    """Compare two runs."""
    space = place.space()
    one, other = (flat(read_record(space, run).config) for run in (first, second))
    settings = {
        name: [str(one.get(name, ABSENT)), str(other.get(name, ABSENT))]
        for name in {**one, **other}
        if name != "name" and one.get(name, ABSENT) != other.get(name, ABSENT)
    }
    summaries = [read_summary(space, run) for run in (first, second)]
    known = [figures(summary) if summary else {} for summary in summaries]
    names = list(dict.fromkeys(name for found in known for name in found))
    numbers = {name: [found.get(name) for found in known] for name in names}
    rows = [["", first, second]]
    rows += [[name, *values] for name, values in settings.items()]
    for name, values in numbers.items():
        rows.append([name, *(ABSENT if value is None else f"{value:.4g}" for value in values)])
    data = {"runs": [first, second], "configuration": settings, "figures": numbers}
    return Answer(data, columns(rows), place.json)
