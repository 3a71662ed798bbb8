"""Trials of an earlier artifact that a configuration with other seeds need not repeat.

In:  the stage's table.
Out: their records in the unfinished artifact, as if this launch had trained them; the model of one
     that is still the best.
"""

from collections.abc import Iterator, Sequence

from artifacts import filesystem
from artifacts.config import assign
from artifacts.errors import ClozeError
from artifacts.manifest import FileEntry
from artifacts.progress import say
from artifacts.results import Trial, Trials
from artifacts.stage import StageTable
from artifacts.store import Artifact, finished_file, open_artifact, put_bytes

SEEDS = "finetune.seeds"


def take_over(table: StageTable, seeds: Sequence[int]) -> Artifact | None:
    """Copy the records of the artifact that has most of `seeds`; that artifact, or None.

    A grid is searched with the first seed and decides the others, so that seed must be the same.
    """
    found: dict[str, bytes] = {}
    nearest: Artifact | None = None
    for earlier in _alike(table):
        records = {
            entry.name: earlier.read_bytes(entry.name)
            for entry in earlier.manifest.files
            if entry.name.startswith("fits/")
        }
        trials = {name: Trial.model_validate_json(text) for name, text in records.items()}
        if any(trial.point and trial.seed != seeds[0] for trial in trials.values()):
            continue
        shared = {name: records[name] for name, trial in trials.items() if trial.seed in seeds}
        if len(shared) > len(found):
            found, nearest = shared, earlier
    if nearest:  # an ensemble needs its members' logits as well
        names = (name.removeprefix("fits/").removesuffix(".json") for name in found)
        wanted = {f"logits/{name}.safetensors" for name in names}
        kept = [entry.name for entry in nearest.manifest.files if entry.name in wanted]
        found_files = {**{name: nearest.read_bytes(name) for name in kept}, **found}
        for name, content in found_files.items():
            if finished_file(table.output, name) is None:
                put_bytes(table.output, content, name=name)
        say(f"finetune: {len(found)} trials are taken over from {nearest.directory}")
    return nearest


def earlier_model(earlier: Artifact, trial: Trial, *, output: str) -> list[FileEntry]:
    """The files of `models/TASK/`, copied, if they are those of `trial`; else none."""
    best = max(
        (
            one
            for one in Trials.model_validate(earlier.read_json("fits.json")).fits
            if (one.task, one.system, one.point) == (trial.task, trial.system, "")
        ),
        key=lambda one: one.merit,
        default=trial,
    )
    return [
        put_bytes(output, earlier.read_bytes(entry.name), name=entry.name)
        for entry in earlier.manifest.files
        if best.seed == trial.seed and entry.name.startswith(f"models/{trial.task}/")
    ]


def _alike(table: StageTable) -> Iterator[Artifact]:
    """The artifacts beside this one that differ from it in their seeds only."""
    folder, _, own = table.output.rpartition("/")
    inputs = {role: reference.digest for role, reference in table.inputs.items()}
    wanted = assign({**table.keyed_config}, SEEDS, [])
    for name in filesystem.list_names(folder):
        if name == own:
            continue
        try:
            earlier = open_artifact(filesystem.join(folder, name))
        except (ClozeError, OSError):
            continue
        made = earlier.manifest
        same = (made.stage, made.format_version, made.inputs)
        if same == (table.stage, table.format_version, inputs) and (
            assign(made.config, SEEDS, []) == wanted
        ):
            yield earlier
