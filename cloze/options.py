"""Options shared by the subcommands, and what they name: configurations, artifacts, models.

In:  the command line: `--set pretrain.steps=100`, `demo`, `demo/examples`,
     `runs/artifacts/examples/1f…`.
Out: `RunConfig` and `MachineConfig`; the artifact, or the model's directory.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

from cyclopts import Parameter

from cloze.artifacts import filesystem
from cloze.artifacts.config import flat, override, parse, read_toml, with_value
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import located
from cloze.artifacts.manifest import MANIFEST_NAME
from cloze.artifacts.progress import say
from cloze.artifacts.store import Artifact, open_artifact
from cloze.flows.config import MachineConfig, RunConfig, for_this_processor
from cloze.flows.locks import in_use
from cloze.flows.workspace import (
    RECORD_NAME,
    Workspace,
    list_runs,
    read_record,
    run_artifact,
    workspace,
)
from cloze.model.config import TrainingMachine

ConfigPath = Annotated[Path, Parameter(help="The run's configuration (TOML).")]
RunName = Annotated[str, Parameter(help="Name of a run in the workspace.")]

MODEL_FIELDS = (
    *("pretrain.init", "pretrain.continue_from"),
    *("finetune.encoder", "finetune.second_encoder", "negatives.encoder"),
)
"""Fields of the configuration whose value is a model."""


@Parameter(name="*")
@dataclass(frozen=True)
class Place:
    """Where artifacts and runs are stored, and how the result is printed."""

    json: bool = False
    """Print the result as one JSON document."""

    on: Path | None = None
    """Machine file (TOML): workspace, workers, ranks, launcher. It never changes results."""

    workspace: str = ""
    """Folder or URL of artifacts and runs; overrides the machine file. [default: runs]"""

    def machine(self) -> MachineConfig:
        """The machine's configuration."""
        # What comes later wins: the machine file, --workspace, --set.
        table, settings = read_toml(self.on) if self.on else {}, self._settings()
        if self.workspace:
            table["workspace"] = self.workspace
        sources = [*filter(None, [str(self.on or ""), "--set" if settings else ""])]
        source = " and ".join(sources) or "--workspace"
        return parse(MachineConfig, override(table, settings), source=source)

    def _settings(self) -> list[str]:
        """Overrides of the machine file."""
        return []

    def space(self) -> Workspace:
        """The workspace."""
        return workspace(self.machine().workspace)

    def training(self) -> TrainingMachine:
        """How this machine computes: `training`, unless that is about the jobs of a cluster."""
        machine = self.machine()
        if machine.jobs.launcher == "local":
            return machine.training
        if machine.training.ranks > 1:
            say(
                f"{self.on}: its ranks are those of jobs on {machine.jobs.launcher}; this command "
                "uses one process, here"
            )
        return TrainingMachine()


@Parameter(name="*")
@dataclass(frozen=True)
class Target(Place):
    """Which run, with which overrides, and where it is executed."""

    set: list[str] = field(default_factory=list)
    """Override a field of the configuration, `--set pretrain.steps=100`, or of the machine file,
    `--set training.tensorboard=logs`. Repeatable."""

    @property
    def settings_of_run(self) -> list[str]:
        """Overrides of the run's configuration."""
        return [one for one in self.set if not _is_of_the_machine(one)]

    def read(self, config: Path) -> tuple[RunConfig, MachineConfig]:
        """The configurations of run and machine, with models and examples as directories.

        Each is parsed once, and looked at no more than that by whoever plans or executes the run.
        """
        table = for_this_processor(read_toml(config))  # --set has the last word
        run = parse(RunConfig, override(table, self.settings_of_run), source=config)
        if run.pretrain.continue_from == run.name:
            raise UsageError(
                f"pretrain.continue_from = {run.name}: a run cannot continue itself; give the "
                f"longer run another name, for example --set name={run.name}-{run.pretrain.steps}"
            )
        machine, named = self.machine(), flat(run.model_dump(mode="json"))
        examples, models = run.evaluate.heldout_examples, [*filter(named.get, MODEL_FIELDS)]
        if not (models or examples):  # the packages that read a store may be missing here
            return run, machine
        space = workspace(machine.workspace)
        # Names of runs become directories here, so nothing later depends on what a name refers to.
        for place in models:
            run = with_value(run, place, model_directory(str(named[place]), space))
        if examples:
            name = f"{examples}/examples" if examples in list_runs(space) else examples
            directory = named_artifact(name, space).directory
            run = with_value(run, "evaluate.heldout_examples", directory)
        return run, machine

    def _settings(self) -> list[str]:
        return [one for one in self.set if _is_of_the_machine(one)]


def _is_of_the_machine(assignment: str) -> bool:
    # The tables of a run and of a machine have different names.
    return re.split(r"[.=]", assignment)[0] in MachineConfig.model_fields


Options = ParamSpec("Options")
Result = TypeVar("Result")

ADAPTED = "adapted"
"""The encoder that `cloze adapt` kept, among the artifacts of a run."""

PLACE = Place()
TARGET = Target()
"""The defaults."""


def reading_artifacts(command: Callable[Options, Result]) -> Callable[Options, Result]:
    """The same command, which keeps `cloze gc` from the workspace while it runs."""

    @wraps(command)
    def read(*arguments: Options.args, **options: Options.kwargs) -> Result:
        place = options.get("place", PLACE)
        assert isinstance(place, Place)
        with in_use(place.space().local):
            return command(*arguments, **options)

    return read


def named_artifact(name: str, workspace: Workspace) -> Artifact:
    """The artifact in the directory `name`, or the one named `RUN/STAGE`."""
    path = os.path.expanduser(name)
    if filesystem.exists(filesystem.join(path, MANIFEST_NAME)):
        return open_artifact(path)
    run, slash, stage = name.partition("/")
    if slash and run in list_runs(workspace):
        return run_artifact(workspace, run, stage=stage)
    if name in list_runs(workspace):
        stages = ", ".join(f"{name}/{stage}" for stage in read_record(workspace, name).stages)
        raise UsageError(
            f"{name}: this is a run; name one of its artifacts: {stages or 'it has none yet'}"
        )
    raise UsageError(
        f"{name}: neither the directory of a finished artifact nor RUN/STAGE; "
        f"runs in {workspace.root}: {', '.join(list_runs(workspace)) or 'none'}"
    )


def vectors_directory(name: str, workspace: Workspace) -> str:
    """Like `model_directory`, but for a run that trained an encoder for retrieval, that encoder.

    After `cloze adapt` it is the one that was kept.
    """
    if name in list_runs(workspace):
        record = read_record(workspace, name)
        if ADAPTED in record.stages:
            return run_artifact(workspace, name, stage=ADAPTED).directory
        run = RunConfig.model_validate(record.config)
        kinds = {task.kind for task in run.finetune.tasks}
        if "retrieval" in kinds and "finetune" in record.stages and run.finetune.save != "none":
            return run_artifact(workspace, name, stage="finetune").directory
    return model_directory(name, workspace)


def lasting_name(model: str, workspace: Workspace) -> str:
    """`model` as it can be written to a file: a run's name, or a path from wherever it is read."""
    return model if not model or model in list_runs(workspace) else located(model)


def model_directory(name: str, workspace: Workspace, *, stage: str = "pretrain") -> str:
    """The directory of a model: the output of a run's `stage`, or the directory `name` itself."""
    if not name.strip():
        raise UsageError("no model is named; expected a run's name or a model's directory")
    # A run comes before a folder of the same name.
    if name in list_runs(workspace):
        record = read_record(workspace, name)
        if stage == "pretrain" and ADAPTED in record.stages:
            return run_artifact(workspace, name, stage=ADAPTED).directory
        given = flat(record.config).get("finetune.encoder")
        if stage == "pretrain" and given:  # a run without a corpus, which started from this encoder
            return str(given)
        return run_artifact(workspace, name, stage=stage).directory
    path = os.path.expanduser(name)
    if filesystem.exists(filesystem.join(path, RECORD_NAME)):
        folder, run = os.path.split(os.path.normpath(path))
        raise UsageError(
            f"{name}: a run's folder, which contains no model; use the run's name, {run}, "
            f"with --workspace {folder or '.'} if that is not {workspace.root}"
        )
    if filesystem.exists(path):
        return path
    raise UsageError(
        f"{name}: no run of this name in {workspace.root}, and no such directory; "
        f"runs there: {', '.join(list_runs(workspace)) or 'none'}"
    )
