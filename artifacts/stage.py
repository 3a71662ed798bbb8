"""The stage table: everything a stage is given, and the key under which its output is stored.

In:  the result-defining configuration of a stage, and references to its finished inputs.
Out: a key. Equal keys mean equal bytes, so an artifact is looked up by its key. The one exception
     is in the key: `minutes`, a time limit, whose effect the artifact records.

The same file defines the key, is the program's argument and the record in the manifest, and can be
copied to repeat the stage by hand. `output` and `machine` change where and how it runs, never the
result.
"""

import json
from pathlib import Path

from pydantic import Field, JsonValue

from cloze.artifacts.config import Config, JsonObject, assign, parse
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import UsageError


class InputRef(Config):
    """A finished input: an artifact, or external data (then `path` is empty)."""

    digest: str
    """Content digest, part of the key."""

    path: str = ""
    """Directory or URL of the artifact, not part of the key."""


class StageTable(Config):
    """Everything that a run of a stage needs."""

    stage: str
    """The stage's name, for example `tokens`."""

    format_version: int
    """Increased by hand whenever the same configuration would produce different bytes."""

    config: JsonObject
    """The resolved result-defining fields: the stage's own `Config`."""

    inputs: dict[str, InputRef] = Field(default_factory=dict)
    """Finished inputs by role."""

    outside: dict[str, str] = Field(default_factory=dict)
    """Dotted keys of `config` that only locate external data, with the role of the data: for
    example `{"corpus.sources.0.path": "corpus"}`. The key contains the data's digest instead."""

    output: str
    """Directory or URL of the artifact to make."""

    machine: JsonObject = Field(default_factory=dict)
    """Workers, intervals, engine options: settings that cannot change the result."""

    @property
    def key(self) -> str:
        """The key of this stage's output in the store: 64 hexadecimal digits."""
        inputs = {role: reference.digest for role, reference in self.inputs.items()}
        return digest_of([self.stage, self.format_version, self.keyed_config, inputs])

    @property
    def keyed_config(self) -> dict[str, JsonValue]:
        """`config` without the locations of external data, as used in the key and the manifest."""
        config = self.config
        # Where data lies must not matter, only what it is, which is in `inputs`.
        for place, role in self.outside.items():
            config = assign(config, place, f"outside:{role}")
        return config

    def input_path(self, role: str) -> str:
        """Directory of the input artifact with this `role`."""
        if role not in self.inputs or not self.inputs[role].path:
            raise UsageError(f"stage {self.stage}: input {role} is missing from the stage table")
        return self.inputs[role].path


def read_stage_table(path: str | Path) -> StageTable:
    """Read a stage table from a JSON file."""
    try:
        table = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such stage table; `cloze plan CONFIG` writes them") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON: {error}") from None
    return parse(StageTable, table, source=path)


def write_stage_table(table: StageTable, path: str | Path) -> None:
    """Write a stage table for a stage program to read."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(table.model_dump_json(indent=2) + "\n", "utf-8")
