"""Reuse of trials from an earlier artifact when only the seeds have changed.

In:  the stage's table.
Out: the records of these trials in the unfinished artifact, as if this launch had trained them, and
     the model of one that is still the best.
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
    """Copy the records from the artifact that shares most trials with `seeds`, and return it.

    A grid is searched with the first seed, which must therefore be the same.
    """
    found: dict[str, bytes] = {}
    nearest: Artifact | None = None
    for earlier in same_but_for_seeds(table):
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
    if nearest:  # an ensemble also needs the logits of its members
        names = (name.removeprefix("fits/").removesuffix(".json") for name in found)
        wanted = {f"logits/{name}.safetensors" for name in names}
        kept = [entry.name for entry in nearest.manifest.files if entry.name in wanted]
        found_files = {**{name: nearest.read_bytes(name) for name in kept}, **found}
        for name, content in found_files.items():
            if finished_file(table.output, name) is None:
                put_bytes(table.output, content, name=name)
        say(f"finetune: {len(found)} trials reused from {nearest.directory}")
    return nearest


def earlier_model(earlier: Artifact, trial: Trial, *, output: str) -> list[FileEntry]:
    """Copy the files of `models/TASK/` if they are those of `trial`; else none."""
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


def same_but_for_seeds(table: StageTable) -> Iterator[Artifact]:
    """The artifacts next to this one that differ from it in their seeds only."""
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
