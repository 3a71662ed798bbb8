"""Stage report: `python -P -m flows.report --config TABLE.json`.

In:  every finished artifact of a run.
Out: report.html, one file that people look at; summary.json, the same figures for programs.
"""

from artifacts.program import run_program
from flows.report.stage import make_report

if __name__ == "__main__":
    run_program(make_report)
