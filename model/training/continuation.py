"""Continuing a finished run with more steps.

In:  the last checkpoint of a finishing run; later its artifact, as the input `continued` of a stage
     table with more steps.
Out: the optimizer's moments and the run state, as records of that artifact; a `SavedRun`.

The key of an artifact covers everything it was made from. The continued run therefore produces a
new artifact with the finished one among its inputs, not the artifact of a longer uninterrupted run.
With a decay, it could not be the same: every learning rate depends on the total number of steps,
and the finished run has decayed to 0, so the schedule continues differently
(`cloze.model.training.optimizer.Schedule`). After a constant rate, the further steps are those
of the longer run. Data order, dropout, moments and the curve continue as in a single run.

Records are verified like content but are not part of the artifact's digest, so keeping them changes
no key. Weights are not stored twice: the artifact holds the fp32 masters.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import load_file

from cloze.artifacts.config import JsonObject, parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.manifest import FileEntry, Manifest
from cloze.artifacts.progress import say
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, open_input, put_bytes
from cloze.model.config import OptimizerConfig
from cloze.model.hugging_face.layout import from_hugging_face
from cloze.model.training.checkpoints import ParameterState, RunState, SavedRun, setting_differences
from cloze.model.training.distributed import World

CONTINUED = "continued"
"""Role of the finished run's artifact among the inputs."""

STATE = "state.json"
MOMENTS = ("exp_avg.safetensors", "exp_avg_sq.safetensors")
"""Checkpoint files that a finished artifact keeps as records, under the same names."""

MAY_DIFFER = {
    *("pretrain.steps", "pretrain.optimizer.learning_rate", "pretrain.optimizer.warmup_steps"),
    *("pretrain.evaluate_every", "pretrain.evaluation_examples", "pretrain.init"),
    *("pretrain.minutes", "pretrain.shortened"),
}
"""Settings that may change; an initial encoder no longer matters."""

SCHEDULE = {"schedule", "decay_share"}
"""Optimizer settings that may also change after a constant learning rate."""


@dataclass(frozen=True)
class Continuation:
    """How a run continues a finished one."""

    rise_at: int
    """The step at which the warm-up starts."""

    statistics: dict[str, JsonValue]
    """Entries for the manifest: the steps before, and the learning-rate schedule in words."""


def finished_parameters(artifact: Artifact) -> dict[str, ParameterState]:
    """The final state of every parameter of a finished run."""
    moments = [load_file(artifact.path(name)) for name in MOMENTS]
    weights = load_file(artifact.path("model.safetensors"))
    family = artifact.manifest.config["encoder"].get("family", "bert")
    # The artifact has the weights under Hugging Face's names, the moments under ours.
    masters = from_hugging_face(weights, moments[0], family)
    return {
        name: ParameterState(masters[name], *(part[name] for part in moments)) for name in masters
    }


def keep_final_state(checkpoint: Path, output: str) -> list[FileEntry]:
    """Copy the records from a run's last checkpoint into its unfinished artifact.

    Copied, not moved: until the artifact is committed, the checkpoint is the only copy.
    """
    names = (STATE, *MOMENTS)
    return [put_bytes(output, (checkpoint / name).read_bytes(), name=name) for name in names]


def continuation_of(table: StageTable) -> Continuation | None:
    """How the run of `table` continues a finished one; None if it does not."""
    if CONTINUED not in table.inputs:
        return None
    finished = open_input(table, CONTINUED)
    check_continuation(finished, table.keyed_config)
    # Settings alone do not tell: the data order addresses examples by number, so with other
    # examples the continued run would neither repeat nor complete the pass it is in.
    ours, theirs = table.inputs["examples"].digest, finished.manifest.inputs["examples"]
    if ours != theirs:
        raise UsageError(
            f"{finished.directory}: trained on examples {theirs[:12]}, not {ours[:12]}; only the "
            "same examples can be continued. To train its encoder on others, set pretrain.init"
        )
    steps = _steps(finished.manifest)
    before, now = _optimizer(finished.manifest.config), _optimizer(table.keyed_config)
    # The same optimizer but for the form of its schedule: rate and warm-up are those of one longer
    # run.
    is_same = now == before.model_copy(update={name: getattr(now, name) for name in SCHEDULE})
    # Then the finished run is exactly the beginning of this one, and there is nothing to rise from.
    if before.schedule == "constant" and now.schedule != "linear" and is_same:
        rise_at, schedule = 0, f"without a break: {now.schedule} of all steps"
    else:
        line = "the linear decay" if now.schedule == "linear" else now.schedule
        rise_at, schedule = steps, f"second warm-up, then {line} of all steps"
    return Continuation(rise_at, {"steps_before": steps, "schedule": schedule})


def check_continuation(finished: Artifact, config: JsonObject) -> None:
    """Reject an artifact that cannot be continued, or not with this `config`."""
    where, manifest = f"pretrain.continue_from: {finished.directory}", finished.manifest
    if manifest.stage != "pretrain":
        raise UsageError(f"{where}: an artifact of {manifest.stage}; expected one of pretrain")
    if not {STATE, *MOMENTS} <= {entry.name for entry in manifest.records}:
        raise UsageError(
            f"{where}: has no optimizer state (training.keep_optimizer = false, or an earlier "
            "version); set pretrain.init to start from its weights with a fresh optimizer"
        )
    steps = _steps(manifest)
    if config["pretrain"]["steps"] <= steps:
        raise UsageError(
            f"{where}: has done {steps:,} steps, which pretrain.steps = "
            f"{config['pretrain']['steps']:,} includes; increase it"
        )
    may_differ = MAY_DIFFER
    if manifest.config["pretrain"]["optimizer"].get("schedule") == "constant":
        may_differ = MAY_DIFFER | {f"pretrain.optimizer.{name}" for name in SCHEDULE}
        optimizer = _optimizer(config)
        # Where the decay of the longer run begins, which must not lie in the finished part.
        flat = round((1 - optimizer.decay_share) * config["pretrain"]["steps"])
        if optimizer.schedule == "wsd" and flat < steps:
            raise UsageError(
                f"{where}: has done {steps:,} steps at the peak rate, but pretrain.optimizer."
                f"decay_share = {optimizer.decay_share:g} of {config['pretrain']['steps']:,} steps "
                f"starts the decay at step {flat:,}; lower it, or raise pretrain.steps"
            )
    changed = setting_differences(manifest.config, config, may_differ)
    if changed:
        raise UsageError(
            f"{where}: trained with another configuration ({'; '.join(changed)}); change it back, "
            "or set pretrain.init to start from its weights with a fresh optimizer"
        )


def finished_state(table: StageTable, metrics: Path, *, world: World) -> SavedRun:
    """The final state of the finished run; its log is copied to `metrics`."""
    finished = open_input(table, CONTINUED)
    state: RunState = finished.read_json(STATE)
    if world.is_first:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        metrics.write_bytes(finished.read_bytes(metrics.name))
        say(f"continuing after step {state['step']}, the end of {finished.directory}")
    # Its time limit is not this run's.
    state = {**state, "elapsed": 0.0, "shortened": ()}
    return SavedRun(state, partial(finished_parameters, finished))


def _steps(manifest: Manifest) -> int:
    # Fewer than configured if its time was limited.
    return int(manifest.statistics.get("steps", manifest.config["pretrain"]["steps"]))


def _optimizer(config: JsonObject) -> OptimizerConfig:
    return parse(OptimizerConfig, config["pretrain"]["optimizer"], source="pretrain.optimizer")
