"""The ladder from BERT to ModernBERT as docs/modern.md shows it: figures and a plot, rung by rung.

    cloze ablations configs/ladder.toml --table modern
    python benchmarks/ladder.py WORKSPACE/ladder-ablations/ablations.json

In:  the result of the first command.
Out: benchmarks/results/ladder.json, its figures with the machine, and ladder.svg.
"""

import sys
import textwrap
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import Arguments, machine, write_result
from cloze.paper.result import AblationResult, Column, TableResult

PANELS = {
    "loss": "held-out loss, nats",
    "tagging pretrained": "tagging, fine-tuned, F1 in %",
    "tagging pretrained-last-linear": "tagging, features, F1 in %",
}
"""The table's columns to plot."""


def plot(table: TableResult, path: Path) -> None:
    """Draw each pre-training as a dot and each rung's mean with its standard error."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    all_axes = figure.subplots(1, len(PANELS), sharey=True)
    columns: dict[str, Column] = {column.key: column for column in table.columns}
    for axes, (key, label) in zip(all_axes, PANELS.items(), strict=True):
        factor = 1 if columns[key].unit == "nats" else 100
        for place, row in enumerate(table.rows):
            scores = row.figures[key]
            values = [factor * value for value in scores.values]
            axes.plot(values, [place] * len(values), "o", color="C0", alpha=0.4, markersize=5)
            error = factor * scores.standard_error
            axes.errorbar(factor * scores.mean, place, xerr=error, fmt="|", color="C0", ms=14)
        axes.set_xlabel(label)
        axes.grid(axis="x", alpha=0.3)
    titles = [textwrap.fill(row.title, 36) for row in table.rows]
    all_axes[0].set_yticks(range(len(titles)), titles)
    all_axes[0].invert_yaxis()
    figure.savefig(path)


def main() -> None:
    """Read the command's result, write it and plot it."""
    parser = Arguments(__doc__, output="ladder.json")
    parser.add_argument("result", help="ablations.json of the ladder")
    parser.add_argument("--seconds", type=float, help="duration of the command, if known")
    arguments = parser.parse_args()
    result = AblationResult.model_validate_json(Path(arguments.result).read_text())
    (table,) = (table for table in result.tables if table.name == "modern")
    found = {"machine": machine(), "seconds": arguments.seconds, **table.model_dump(mode="json")}
    write_result(arguments.output, found)
    plot(table, Path(arguments.output).with_suffix(".svg"))


if __name__ == "__main__":
    main()
