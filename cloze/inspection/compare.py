"""`cloze compare`: two runs side by side.

In:  the names of two runs.
Out: the fields in which their configurations differ, and their figures beside each other.
"""

from cloze.answer import Answer
from cloze.options import PLACE, Place, RunName
from cloze.tables import columns
from flows.figures import Figures, figures, read_summary
from flows.plan import flat
from flows.record import read_record
from flows.workspace import Workspace

ABSENT = "—"


def compare(first: RunName, second: RunName, /, *, place: Place = PLACE) -> Answer:
    """Compare two runs."""
    space = place.space()
    settings = _settings(first, second, space)
    known = [_known(first, space), _known(second, space)]
    names = list(dict.fromkeys(name for one in known for name in one))
    data = {
        "runs": [first, second],
        "configuration": {name: list(values) for name, values in settings.items()},
        "figures": {name: [one.get(name) for one in known] for name in names},
    }
    rows = [("", first, second)]
    rows += [(name, *values) for name, values in settings.items()]
    rows += [(name, _number(known[0], name), _number(known[1], name)) for name in names]
    return Answer(data, columns(rows), place.json)


def _settings(first: str, second: str, space: Workspace) -> dict[str, tuple[str, str]]:
    """Fields that differ, with both values as text."""
    one, other = (flat(read_record(space, run).config) for run in (first, second))
    return {
        name: (str(one.get(name, ABSENT)), str(other.get(name, ABSENT)))
        for name in {**one, **other}
        if name != "name" and one.get(name, ABSENT) != other.get(name, ABSENT)
    }


def _known(run: str, space: Workspace) -> Figures:
    summary = read_summary(space, run)
    return figures(summary) if summary else {}


def _number(known: Figures, name: str) -> str:
    return f"{known[name]:.4g}" if name in known else ABSENT
