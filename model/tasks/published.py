"""What papers report for encoders of the same size, to stand beside ours.

In:  a GLUE task's name, an encoder's shape.
Out: `PublishedScore`s, as fractions.

GLUE test scores of Devlin et al. 2019 (Table 1) and of the small models of Turc et al. 2019
(github.com/google-research/bert, README), all pre-trained on Wikipedia and books for far longer
than anything that a small run can do; on dev one point more or less is usual.
"""

from model.config import PRESETS, EncoderConfig
from model.tasks.glue import GLUE
from model.tasks.scores import PublishedScore

_DEVLIN = "Devlin et al. 2019, Table 1"
_TURC = "Turc et al. 2019, google-research/bert README"

_NAMES = {
    "tiny": ("BERT-Tiny", _TURC),
    "mini": ("BERT-Mini", _TURC),
    "small": ("BERT-Small", _TURC),
    "medium": ("BERT-Medium", _TURC),
    "base": ("BERT-base", _DEVLIN),
    "large": ("BERT-large", _DEVLIN),
}

# Columns: CoLA, SST-2, MRPC (F1), STS-B (Spearman), QQP (F1), MNLI matched, QNLI, RTE
_TASKS = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE")
_TEST = {
    "tiny": (0.0, 83.2, 81.1, 73.6, 62.2, 70.2, 81.5, 57.2),
    "mini": (0.0, 85.9, 81.1, 73.3, 66.4, 74.8, 84.1, 57.9),
    "small": (27.8, 89.7, 83.4, 77.0, 68.1, 77.6, 86.4, 61.8),
    "medium": (38.0, 89.6, 86.6, 78.4, 69.6, 80.0, 87.7, 62.2),
    "base": (52.1, 93.5, 88.9, 85.8, 71.2, 84.6, 90.5, 66.4),
    "large": (60.5, 94.9, 89.3, 86.5, 72.1, 86.7, 92.7, 70.1),
}


def published_scores(glue: str, encoder: EncoderConfig) -> tuple[PublishedScore, ...]:
    """The published score of the preset with the encoder's shape; empty where there is none."""
    preset = _preset_of(encoder)
    if preset is None or glue not in _TASKS:
        return ()
    name, source = _NAMES[preset]
    percent = _TEST[preset][_TASKS.index(glue)]
    return (
        PublishedScore(
            system=name,
            metric=GLUE[glue].metrics[0],
            value=percent / 100,
            split="test",
            source=source,
        ),
    )


def _preset_of(encoder: EncoderConfig) -> str | None:
    shape = (
        encoder.num_hidden_layers,
        encoder.hidden_size,
        encoder.num_attention_heads,
        encoder.intermediate_size,
    )
    return next((name for name, sizes in PRESETS.items() if sizes == shape), None)
