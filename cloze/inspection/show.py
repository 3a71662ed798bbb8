"""`cloze show`: one run.

In:  a run's name.
Out: its stages with where they lie and what they cost, and its figures.
"""

from artifacts import filesystem
from artifacts.progress import clock
from cloze.answer import Answer
from cloze.options import PLACE, Place, RunName
from cloze.tables import columns
from flows.figures import Figures, figures, read_summary
from flows.record import RunRecord, StageRecord, read_record

GIB = 1 << 30


def show(run: RunName, /, *, place: Place = PLACE) -> Answer:
    """Show one run."""
    space = place.space()
    record = read_record(space, run)
    summary = read_summary(space, run)
    known = figures(summary) if summary else {}
    data = {"record": record.model_dump(mode="json"), "figures": known}
    parts = [_state(record, space.run_folder(run)), _stages(record), _figures(known)]
    return Answer(data, "\n\n".join(part for part in parts if part), place.json)


def _state(record: RunRecord, folder: str) -> str:
    took = f" in {clock(record.seconds)}" if record.seconds is not None else ""
    lines = [f"{record.name}: {record.state}{took}, begun {record.started_at}", f"folder: {folder}"]
    if "report" in record.stages:
        lines.append(f"report: {filesystem.join(folder, 'report.html')}")
    return "\n".join([*lines, record.failure] if record.failure else lines)


def _stages(record: RunRecord) -> str:
    return columns([_row(name, stage) for name, stage in record.stages.items()])


def _row(name: str, stage: StageRecord) -> tuple[str, ...]:
    took = clock(stage.seconds) if stage.seconds is not None else ""
    memory = f"{stage.peak_memory / GIB:.2f} GiB" if stage.peak_memory else ""
    return (name, stage.digest[:12], took, memory, stage.directory)


def _figures(known: Figures) -> str:
    return columns([(name, f"{value:.4g}") for name, value in known.items()])
