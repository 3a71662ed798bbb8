"""Stage report: `python -P -m flows.report --config TABLE.json`.

In:  all finished artifacts of a run.
Out: report.html, a self-contained page; summary.json, the same figures for programs.
"""

from artifacts.errors import UsageError
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact, commit, put_bytes, put_json
from flows.report.collect import collect
from flows.report.page import render
from flows.workspace import PAGE_NAME, SUMMARY_NAME


def make_report(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage; it takes seconds, so an interrupted attempt is not resumed."""
    if options:
        raise UsageError(f"report takes no engine options, got {' '.join(options)}; remove them")
    summary = collect(table)
    files = [
        put_bytes(table.output, render(summary).encode(), name=PAGE_NAME),
        put_json(table.output, summary.model_dump(mode="json"), name=SUMMARY_NAME),
    ]
    return commit(table, files)


if __name__ == "__main__":
    run_program(make_report)
