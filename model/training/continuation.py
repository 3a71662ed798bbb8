"""Continuation of a finished run: what it keeps for more steps, and how they begin.

In:  the last checkpoint of a run that finishes; later its artifact, as the input `continued` of a
     stage table with more steps.
Out: the optimizer's moments and the run's state as records of that artifact; the same as `Resumed`.

A finished artifact is addressed by what it was made from, so its successor is another artifact with
the finished one among its inputs: never an existing one, and never the one that a longer
uninterrupted run would have made. With a decay, the latter is impossible: every step's learning
rate depends on the total number of steps, and the finished run's has decayed to 0. So the schedule
continues differently (`model.training.optimizer.learning_rate`). Where the finished run's rate was
constant, further steps are those of the longer run. The order of the examples, dropout, moments and
the curve continue as in one run.

Records are verified like content but are not part of the artifact's digest, so keeping them changes
no key. Weights are not kept twice: the artifact consists of the fp32 masters.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import load_file

from artifacts.config import JsonObject, parse
from artifacts.errors import UsageError
from artifacts.manifest import FileEntry, Manifest
from artifacts.progress import say
from artifacts.stage import StageTable
from artifacts.store import Artifact, open_input, put_bytes
from model.config import OptimizerConfig
from model.hugging_face.layout import from_hugging_face
from model.training.checkpoints import ParameterState, Resumed, RunState, differences
from model.training.distributed import World

CONTINUED = "continued"
"""Role of the finished run's artifact among the inputs."""

STATE = "state.json"
MOMENTS = ("exp_avg.safetensors", "exp_avg_sq.safetensors")
"""Files of a checkpoint that a finished artifact keeps as records, by the same names."""

MAY_DIFFER = {
    *("pretrain.steps", "pretrain.optimizer.learning_rate", "pretrain.optimizer.warmup_steps"),
    *("pretrain.evaluate_every", "pretrain.evaluation_examples", "pretrain.init"),
}
"""What may differ in further steps; an initial encoder no longer matters."""

SCHEDULE = {"schedule", "decay_share"}
"""Settings of the optimizer that may differ as well after a constant rate."""


@dataclass(frozen=True)
class Continuation:
    """How a run continues a finished one."""

    steps_before: int
    """The finished run's."""
    schedule: str
    """The learning-rate schedule in words."""
    warms_up: bool
    """Whether there is a second warm-up."""

    @property
    def rise_at(self) -> int:
        """The step at which the warm-up begins."""
        return self.steps_before if self.warms_up else 0

    @property
    def statistics(self) -> dict[str, JsonValue]:
        """For the manifest."""
        return {"steps_before": self.steps_before, "schedule": self.schedule}


@dataclass(frozen=True)
class FinishedRun:
    """The end of a finished run."""

    artifact: Artifact

    @property
    def state(self) -> RunState:
        """The state in its last checkpoint."""
        state: RunState = self.artifact.read_json(STATE)
        return state

    def parameters(self) -> dict[str, ParameterState]:
        """Every parameter's state."""
        moments = [load_file(self.artifact.path(name)) for name in MOMENTS]
        weights = load_file(self.artifact.path("model.safetensors"))
        family = self.artifact.manifest.config["encoder"].get("family", "bert")
        masters = from_hugging_face(weights, moments[0], family)
        return {
            name: ParameterState(masters[name], *(part[name] for part in moments))
            for name in masters
        }


def keep_end(checkpoint: Path, output: str) -> list[FileEntry]:
    """Copy what further steps need out of a run's last checkpoint into its unfinished artifact.

    Copied, not moved: until the artifact is committed, the checkpoint is the only copy.
    """
    names = (STATE, *MOMENTS)
    return [put_bytes(output, (checkpoint / name).read_bytes(), name=name) for name in names]


def continuation_of(table: StageTable) -> Continuation | None:
    """How the table's run continues a finished one; None if it does not."""
    if CONTINUED not in table.inputs:
        return None
    finished = open_input(table, CONTINUED)
    check_continuation(finished, table.keyed_config)
    ours, theirs = table.inputs["examples"].digest, finished.manifest.inputs["examples"]
    if ours != theirs:
        raise UsageError(
            f"{finished.directory}: trained on examples {theirs[:12]}, these are {ours[:12]}, and "
            "more steps read on in the same ones; to train its encoder on others: pretrain.init"
        )
    steps = _steps(finished.manifest)
    before, now = _optimizer(finished.manifest.config), _optimizer(table.keyed_config)
    is_same = now == before.model_copy(update={name: getattr(now, name) for name in SCHEDULE})
    if before.schedule == "constant" and now.schedule != "linear" and is_same:
        return Continuation(steps, f"without a break: {now.schedule} of all steps", warms_up=False)
    line = "the linear decay" if now.schedule == "linear" else now.schedule
    return Continuation(steps, f"second warm-up, then {line} of all steps", warms_up=True)


def check_continuation(finished: Artifact, config: JsonObject) -> None:
    """Refuse an artifact that cannot be continued, and a `config` that is not its own."""
    where, manifest = f"pretrain.continue_from: {finished.directory}", finished.manifest
    if manifest.stage != "pretrain":
        raise UsageError(f"{where}: an artifact of {manifest.stage}; expected one of pretrain")
    if not {STATE, *MOMENTS} <= {entry.name for entry in manifest.records}:
        raise UsageError(
            f"{where}: finished without its optimizer's state (training.keep_optimizer = false, or "
            "an earlier version); begin from its weights with a fresh one: pretrain.init"
        )
    steps = _steps(manifest)
    if config["pretrain"]["steps"] <= steps:
        raise UsageError(
            f"{where}: has done {steps:,} steps, and pretrain.steps = "
            f"{config['pretrain']['steps']:,} counts them; set it to more"
        )
    may_differ = MAY_DIFFER
    if manifest.config["pretrain"]["optimizer"].get("schedule") == "constant":
        may_differ = MAY_DIFFER | {f"pretrain.optimizer.{name}" for name in SCHEDULE}
        optimizer = _optimizer(config)
        flat = round((1 - optimizer.decay_share) * config["pretrain"]["steps"])
        if optimizer.schedule == "wsd" and flat < steps:
            raise UsageError(
                f"{where}: was at the peak for all its {steps:,} steps, and pretrain.optimizer."
                f"decay_share = {optimizer.decay_share:g} of {config['pretrain']['steps']:,} steps "
                f"begins at step {flat:,}; lower it, or raise pretrain.steps"
            )
    changed = differences(manifest.config, config, may_differ)
    if changed:
        raise UsageError(
            f"{where}: trained with another configuration ({'; '.join(changed)}); change it back, "
            "or begin from its weights with a fresh optimizer: pretrain.init"
        )


def go_on(table: StageTable, metrics: Path, *, world: World) -> Resumed:
    """The final state of the finished run; its log is copied to `metrics`."""
    finished = FinishedRun(open_input(table, CONTINUED))
    state = finished.state
    if world.is_first:
        metrics.parent.mkdir(parents=True, exist_ok=True)
        metrics.write_bytes(finished.artifact.read_bytes(metrics.name))
        say(f"going on after step {state['step']}, the end of {finished.artifact.directory}")
    return Resumed(state, finished if world.is_first else None, world)


def _steps(manifest: Manifest) -> int:
    return int(manifest.config["pretrain"]["steps"])


def _optimizer(config: JsonObject) -> OptimizerConfig:
    return parse(OptimizerConfig, config["pretrain"]["optimizer"], source="pretrain.optimizer")
