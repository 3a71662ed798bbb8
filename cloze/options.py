"""Options shared by the subcommands, and the configurations they select.

In:  the command line.
Out: `RunConfig` and `MachineConfig`.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from artifacts.config import assign, flat, override, parse, read_toml
from artifacts.errors import UsageError
from cloze.lookup import model_directory, named_artifact
from flows.config import MachineConfig, RunConfig
from flows.workspace import Workspace, list_runs, workspace

ConfigPath = Annotated[Path, Parameter(help="The run's configuration (TOML).")]
RunName = Annotated[str, Parameter(help="Name of a run in the workspace.")]
EngineOption = Annotated[
    str, Parameter(help="Options for the engine (Beam or DeepSpeed's launcher), after --.")
]

CONTINUE_FROM = "pretrain.continue_from"
MODEL_FIELDS = (
    *("pretrain.init", CONTINUE_FROM),
    *("finetune.encoder", "finetune.second_encoder"),
)
"""Fields of the configuration whose value is a model."""

HELDOUT_EXAMPLES = "evaluate.heldout_examples"
"""The field whose value is an examples artifact."""


@Parameter(name="*")
@dataclass(frozen=True)
class Place:
    """Where artifacts and runs are stored, and how the result is printed."""

    json: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """Print the result as one JSON document."""

    on: Path | None = None
    """Machine file (TOML): workspace, workers, ranks, launcher. It never changes results."""

    workspace: Annotated[str, Parameter(show_default=False)] = ""
    """Folder or URL of artifacts and runs; overrides the machine file. [default: runs]"""

    def machine(self) -> MachineConfig:
        """The machine's configuration."""
        table = read_toml(self.on) if self.on else {}
        given = {"workspace": self.workspace} if self.workspace else {}
        return parse(MachineConfig, {**table, **given}, source=self.on or "--workspace")

    def space(self) -> Workspace:
        """The workspace."""
        return workspace(self.machine().workspace)


@Parameter(name="*")
@dataclass(frozen=True)
class Target(Place):
    """Which run, with which overrides, and where it is executed."""

    set: Annotated[list[str], Parameter(negative="", show_default=False)] = field(
        default_factory=list
    )
    """Override a field of the configuration, `--set pretrain.steps=100`, or of the machine file,
    `--set training.tensorboard=logs`. Repeatable."""

    def run(self, config: Path) -> RunConfig:
        """The run's configuration, with the names of runs resolved to their models' directories."""
        settings = [one for one in self.set if not _is_of_the_machine(one)]
        run = parse(RunConfig, override(read_toml(config), settings), source=config)
        table = run.model_dump(mode="json")
        for place in MODEL_FIELDS:
            name = flat(table).get(place)
            if name == run.name and place == CONTINUE_FROM:
                raise UsageError(
                    f"{place} = {name}: a run cannot continue itself; give the longer run another "
                    f"name, for example --set name={name}-{run.pretrain.steps}"
                )
            if name:
                table = assign(table, place, model_directory(str(name), self.space()))
        examples = run.evaluate.heldout_examples
        if examples:
            named = f"{examples}/examples" if examples in list_runs(self.space()) else examples
            directory = named_artifact(named, self.space()).directory
            table = assign(table, HELDOUT_EXAMPLES, directory)
        return parse(RunConfig, table, source=config)

    def machine(self) -> MachineConfig:
        """The machine's configuration with the overrides of `--set`."""
        machine = super().machine()
        settings = [one for one in self.set if _is_of_the_machine(one)]
        table = override(machine.model_dump(mode="json"), settings)
        return parse(MachineConfig, table, source="--set") if settings else machine


def _is_of_the_machine(assignment: str) -> bool:
    return re.split(r"[.=]", assignment)[0] in MachineConfig.model_fields


PLACE = Place()
TARGET = Target()
"""The defaults."""
