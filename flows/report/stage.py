"""Stage report: a run's artifacts become a page and a summary.

In:  the stage table.
Out: the artifact with report.html and summary.json.
"""

from artifacts.errors import UsageError
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, put_bytes, put_json
from flows.report.collect import collect
from flows.report.page import render

PAGE = "report.html"
SUMMARY = "summary.json"


def make_report(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage; it takes a second, so nothing of an earlier attempt is kept."""
    if options:
        raise UsageError(f"report takes no engine options, got {' '.join(options)}; leave them out")
    summary = collect(table)
    files = [
        put_bytes(table.output, render(summary).encode(), name=PAGE),
        put_json(table.output, summary.model_dump(mode="json"), name=SUMMARY),
    ]
    return commit(table, files)
