"""The rows of the paper's ablation tables, at whatever size a run has.

In:  a run's configuration and the tables wanted.
Out: a configuration for every row; rows with equal settings are one.

Table 5 asks what bidirectionality and next sentences are worth, Table 6 what size is, Table 8 what
stands in the place of a predicted token. Every row is a run of its own that shares whatever it can
with the others: the store sees to that.
"""

from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from artifacts.config import assign, parse
from flows.config import RunConfig

Table = Literal["objective", "size", "masking"]

Settings = dict[str, JsonValue]
"""Values by their dotted place in the configuration."""

OBJECTIVE: dict[str, Settings] = {
    "base": {},
    "no-nsp": {"pretrain.next_sentence_loss": False},
    "left-to-right": {
        "pretrain.next_sentence_loss": False,
        "encoder.attention_direction": "left_to_right",
    },
    "left-to-right-bilstm": {
        "pretrain.next_sentence_loss": False,
        "encoder.attention_direction": "left_to_right",
        "finetune.bilstm": True,
    },
}
"""Paper, Table 5: BERT, without NSP, left-to-right without NSP, and that under a BiLSTM."""

MASKING: dict[str, Settings] = {
    f"mask{mask}-same{same}-random{random}": {
        "examples.masking.mask_share": mask / 100,
        "examples.masking.random_share": random / 100,
    }
    for mask, same, random in (
        (80, 10, 10),
        (100, 0, 0),
        (80, 0, 20),
        (80, 20, 0),
        (0, 20, 80),
        (0, 0, 100),
    )
}
"""Paper, Table 8: how the predicted tokens are replaced, in percent."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    table: Table
    name: str
    run: RunConfig


def rows(run: RunConfig, tables: tuple[Table, ...]) -> list[Row]:
    """The rows of `tables` for `run`."""
    settings = {"objective": OBJECTIVE, "size": _sizes(run), "masking": MASKING}
    return [
        Row(table, name, changed(run, f"{table}-{name}", places))
        for table in tables
        for name, places in settings[table].items()
    ]


def changed(run: RunConfig, name: str, places: Settings) -> RunConfig:
    """`run` with other values at some places, under a name of its own."""
    table = run.model_dump(mode="json")
    for place, value in places.items():
        table = assign(table, place, value)
    table = assign(table, "name", f"{run.name}-{name}")
    return parse(RunConfig, table, source=f"ablation {name}")


def _sizes(run: RunConfig) -> dict[str, Settings]:
    """Paper, Table 6, relative to the run's encoder: half as deep, half as wide, both, as it is."""
    encoder = run.encoder
    layers, heads = encoder.num_hidden_layers, encoder.num_attention_heads
    width, inner = encoder.hidden_size, encoder.intermediate_size
    shapes = [
        (max(1, layers // 2), width, heads, inner),
        (layers, width // 2, max(1, heads // 2), inner // 2),
        (max(1, layers // 2), width // 2, max(1, heads // 2), inner // 2),
        (layers, width, heads, inner),
    ]
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    return {
        f"{shape[0]}x{shape[1]}": {
            "encoder.preset": None,
            **{f"encoder.{name}": size for name, size in zip(names, shape, strict=True)},
        }
        for shape in dict.fromkeys(shapes)
    }
