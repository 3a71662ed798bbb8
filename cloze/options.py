"""Options that many commands share, and the configurations they lead to.

In:  the command line.
Out: `RunConfig` and `MachineConfig`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from artifacts.config import assign, override, parse, read_toml
from cloze.names import model_directory
from flows.config import MachineConfig, RunConfig
from flows.plan import flat
from flows.workspace import Workspace, workspace

ConfigPath = Annotated[Path, Parameter(help="The run's configuration (TOML).")]
RunName = Annotated[str, Parameter(help="Name of a run in the workspace.")]
EngineOption = Annotated[str, Parameter(help="Options for the engine, after --.")]

MODEL_PLACES = ("pretrain.init", "finetune.encoder", "finetune.second_encoder")
"""Fields of a configuration that name a model."""


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """How the result is given."""

    json: Annotated[bool, Parameter(negative="", show_default=False)] = False
    """One machine-readable result on standard output."""


@Parameter(name="*")
@dataclass(frozen=True)
class Place(Output):
    """Where runs lie."""

    on: Path | None = None
    """Machine file (TOML): workers, ranks, workspace; nothing in it changes a result."""

    workspace: Annotated[str, Parameter(show_default=False)] = ""
    """Folder or URL for artifacts and runs; wins over the machine file."""

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
class Wanted(Place):
    """What is wanted, and where it happens."""

    set: Annotated[list[str], Parameter(negative="", show_default=False)] = field(
        default_factory=list
    )
    """Change a field, `--set pretrain.steps=100`; may be repeated."""

    def run(self, config: Path) -> RunConfig:
        """The run's configuration; where it asks for a model, a run's name becomes its encoder."""
        run = parse(RunConfig, override(read_toml(config), self.set), source=config)
        table = run.model_dump(mode="json")
        for place in MODEL_PLACES:
            name = flat(table)[place]
            if name:
                table = assign(table, place, model_directory(str(name), self.space()))
        return parse(RunConfig, table, source=config)


OUTPUT = Output()
PLACE = Place()
WANTED = Wanted()
"""The options when none is given."""
