"""The stage table: what a stage is given, and what decides whether its output can be reused.

In:  the result-defining configuration of one stage and references to its finished inputs.
Out: a key. Equal keys mean equal bytes, so an artifact is looked up by it.

The same file is the key's content, the program's argument, the record inside the manifest, and
what one copies to repeat the stage by hand. `output` and `machine` say where, never what.
"""

import json
from pathlib import Path

from pydantic import Field, JsonValue

from artifacts.config import Config, JsonObject, assign, parse
from artifacts.digests import digest_of
from artifacts.errors import UsageError


class InputRef(Config):
    """One finished input: an artifact's directory, or data from outside (then `path` is empty)."""

    digest: str
    """Content digest; part of the key."""

    path: str = ""
    """Directory or URL of the artifact; not part of the key."""


class StageTable(Config):
    """Everything one run of a stage needs to know."""

    stage: str
    """The stage's name, for example `tokens`."""

    format_version: int
    """Raised by hand whenever the same configuration would give other bytes."""

    config: JsonObject
    """The result-defining fields, resolved: the form is the stage's own `Config`."""

    inputs: dict[str, InputRef] = Field(default_factory=dict)
    """The finished inputs by their role."""

    outside: dict[str, str] = Field(default_factory=dict)
    """Places in `config` that only say where data from outside lie, with the role those data play,
    for example `{"corpus.sources.0.path": "corpus"}`. The key holds the data's digest instead."""

    output: str
    """Directory or URL that receives the artifact."""

    machine: JsonObject = Field(default_factory=dict)
    """Where and how: workers, intervals, engine options. Cannot change a byte of the result."""

    @property
    def key(self) -> str:
        """The name under which the store looks for this stage's output: 64 hexadecimal digits."""
        inputs = {role: reference.digest for role, reference in self.inputs.items()}
        return digest_of([self.stage, self.format_version, self.keyed_config, inputs])

    @property
    def keyed_config(self) -> dict[str, JsonValue]:
        """`config` without where things lie: what the key is made of and the manifest keeps."""
        config = self.config
        for place, role in self.outside.items():
            config = assign(config, place, f"outside:{role}")
        return config

    def input_path(self, role: str) -> str:
        """Directory of the input artifact that plays `role`."""
        if role not in self.inputs or not self.inputs[role].path:
            raise UsageError(f"stage {self.stage}: input {role} is missing from the stage table")
        return self.inputs[role].path


def read_stage_table(path: str | Path) -> StageTable:
    """The stage table in a JSON file."""
    try:
        table = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such stage table; `cloze plan CONFIG` writes them") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    return parse(StageTable, table, source=path)


def write_stage_table(table: StageTable, path: str | Path) -> None:
    """Write `table` where a stage program can read it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(table.model_dump_json(indent=2) + "\n", "utf-8")
