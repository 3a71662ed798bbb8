"""Stage report: `python -P -m cloze.flows.report --config TABLE.json`.

In:  all finished artifacts of a run.
Out: report.html, a self-contained page; summary.json, the same figures for programs.
"""

from cloze.artifacts.errors import UsageError
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, put_bytes, put_json
from cloze.flows.report.collect import collect
from cloze.flows.report.page import render
from cloze.flows.workspace import PAGE_NAME, SUMMARY_NAME


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
