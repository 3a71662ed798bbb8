"""`cloze compare`: any number of runs side by side.

In:  the names of runs.
Out: the fields in which their configurations differ, and their figures side by side, as text, CSV,
     Markdown or LaTeX; optionally a page with their curves.
"""

from pathlib import Path

from cloze.answer import ABSENT, Answer, Format, written
from cloze.artifacts import filesystem
from cloze.artifacts.config import flat
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.flows.report.figures import ERROR, figures, judged_apart, read_summary
from cloze.flows.workspace import read_record
from cloze.options import PLACE, Place, RunName


def compare(
    *names: RunName, format: Format = "text", page: Path | None = None, place: Place = PLACE
) -> Answer:
    """Compare runs.

    :param format: Format of the table; LaTeX needs the package booktabs.
    :param page: Also write a page that plots the runs' curves together.
    """
    if len(names) < 2:
        raise UsageError("compare needs at least two runs; `cloze runs` lists them")
    space = place.space()
    configurations = [flat(read_record(space, run).config) for run in names]
    settings = {}
    for field in dict.fromkeys(field for one in configurations for field in one):
        values = [str(one.get(field, ABSENT)) for one in configurations]
        if field != "name" and len(set(values)) > 1:
            settings[field] = values
    read = {run: read_summary(space, run) for run in names}
    summaries = {run: summary for run, summary in read.items() if summary}
    known = [figures(summaries[run]) if run in summaries else {} for run in names]
    found = dict.fromkeys(figure for one in known for figure in one)
    numbers = {figure: [one.get(figure) for one in known] for figure in found}
    rows = [["", *names], *([field, *values] for field, values in settings.items())]
    for figure, measured in numbers.items():
        cells = [ABSENT if one is None else f"{one:.4g}" for one in measured]
        if format != "csv":  # where a cell is a number, an error has its own row
            if figure.endswith(ERROR):
                continue
            errors = numbers.get(figure + ERROR, [None] * len(cells))
            cells = [
                cell if error is None else f"{cell} ± {error:.2g}"
                for cell, error in zip(cells, errors, strict=True)
            ]
        rows.append([figure, *cells])
    notes = judged_apart(summaries)
    for note in notes:
        say(f"warning: {note}")
    data: dict[str, object] = {"runs": list(names), "configuration": settings, "figures": numbers}
    data["notes"] = notes
    if page:
        from cloze.flows.report.page import comparison_page  # imports matplotlib

        filesystem.write_bytes(str(page), comparison_page(summaries, rows, notes).encode())
        data["page"] = str(page)
        say(f"page: {page}")
    return Answer(data, written(rows, format, notes=notes), place.json)
