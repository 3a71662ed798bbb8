"""Published scores of encoders of the same size, for comparison.

In:  the published name of a task, an encoder's shape.
Out: `ReferenceScore`s, as fractions.

Base and large: Devlin et al. 2019, single models fine-tuned on the task's own data alone. Smaller
sizes: Turc et al. 2019 (github.com/google-research/bert, README). All were pre-trained on Wikipedia
and books for far longer than any small run. GLUE scores are on test only; dev usually differs by
about a point.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from artifacts.results import ReferenceScore
from model.config import PRESETS, EncoderConfig
from model.glue import GLUE

_NAMES = {
    "tiny": "BERT-Tiny",
    "mini": "BERT-Mini",
    "small": "BERT-Small",
    "medium": "BERT-Medium",
    "base": "BERT-base",
    "large": "BERT-large",
}


@dataclass(frozen=True)
class _Table:
    """A table as printed in the paper, in percent."""

    source: str
    split: Literal["dev", "test"]
    columns: tuple[tuple[str, str], ...]
    """Task and metric of each column."""

    rows: Mapping[str, tuple[float, ...]]
    """Values by preset."""


_GLUE = tuple(
    (task, GLUE[task].metrics[0])
    for task in ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE")
)
_SQUAD_1 = (("SQuAD 1.1", "exact_match"), ("SQuAD 1.1", "f1"))
_SQUAD_2 = (("SQuAD 2.0", "exact_match"), ("SQuAD 2.0", "f1"))
_SWAG = (("SWAG", "accuracy"),)
_CONLL = (("CoNLL-2003", "entity_f1"),)

_TURC = {
    "tiny": (0.0, 83.2, 81.1, 73.6, 62.2, 70.2, 81.5, 57.2),
    "mini": (0.0, 85.9, 81.1, 73.3, 66.4, 74.8, 84.1, 57.9),
    "small": (27.8, 89.7, 83.4, 77.0, 68.1, 77.6, 86.4, 61.8),
    "medium": (38.0, 89.6, 86.6, 78.4, 69.6, 80.0, 87.7, 62.2),
}
_DEVLIN = {
    "base": (52.1, 93.5, 88.9, 85.8, 71.2, 84.6, 90.5, 66.4),
    "large": (60.5, 94.9, 89.3, 86.5, 72.1, 86.7, 92.7, 70.1),
}

_TABLES = (
    _Table("Turc et al. 2019, google-research/bert README", "test", _GLUE, _TURC),
    _Table("Devlin et al. 2019, Table 1", "test", _GLUE, _DEVLIN),
    _Table(
        "Devlin et al. 2019, Table 2",
        "dev",
        _SQUAD_1,
        {"base": (80.8, 88.5), "large": (84.1, 90.9)},
    ),
    _Table("Devlin et al. 2019, Table 3", "dev", _SQUAD_2, {"large": (78.7, 81.9)}),
    _Table("Devlin et al. 2019, Table 3", "test", _SQUAD_2, {"large": (80.0, 83.1)}),
    _Table("Devlin et al. 2019, Table 4", "dev", _SWAG, {"base": (81.6,), "large": (86.6,)}),
    _Table("Devlin et al. 2019, Table 4", "test", _SWAG, {"large": (86.3,)}),
    _Table("Devlin et al. 2019, Table 7", "dev", _CONLL, {"base": (96.4,), "large": (96.6,)}),
    _Table("Devlin et al. 2019, Table 7", "test", _CONLL, {"base": (92.4,), "large": (92.8,)}),
)


def reference_scores(task: str, encoder: EncoderConfig) -> tuple[ReferenceScore, ...]:
    """Published scores of the preset with the encoder's shape; empty if there are none."""
    shape = (
        encoder.num_hidden_layers,
        encoder.hidden_size,
        encoder.num_attention_heads,
        encoder.intermediate_size,
    )
    known = PRESETS if encoder.family == "bert" else {}
    preset = next((name for name, sizes in known.items() if sizes == shape), "")
    return tuple(
        ReferenceScore(
            system=_NAMES[preset],
            metric=metric,
            value=percent / 100,
            split=table.split,
            source=table.source,
        )
        for table in _TABLES
        if preset in table.rows
        for (name, metric), percent in zip(table.columns, table.rows[preset], strict=True)
        if name == task
    )
