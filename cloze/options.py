"""Options shared by the subcommands, and the configurations that they name.

In:  the command line: a configuration's file, `--on FILE`, `--set pretrain.steps=100`.
Out: `RunConfig` and `MachineConfig`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

from cyclopts import Parameter

from cloze.artifacts.config import flat, override, parse, read_toml, with_value
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.flows.config import MachineConfig, RunConfig, for_this_processor
from cloze.flows.locks import in_use
from cloze.flows.workspace import Workspace, list_runs, workspace
from cloze.model.config import TrainingMachine
from cloze.named import model_directory, named_artifact

ConfigPath = Annotated[Path, Parameter(help="The run's configuration (TOML).")]
RunName = Annotated[str, Parameter(help="Name of a run in the workspace.")]

MODEL_FIELDS = (
    *("pretrain.init", "pretrain.continue_from"),
    *("finetune.encoder", "finetune.second_encoder", "negatives.encoder", "distill.teacher"),
    "quality.model",
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
            stage = "finetune" if place == "quality.model" else "pretrain"
            directory = model_directory(str(named[place]), space, stage=stage)
            run = with_value(run, place, directory)
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
