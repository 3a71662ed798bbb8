"""A task that one word decides, and the configuration that fine-tunes a tiny encoder on it."""

from pathlib import Path

from tests.cloze.tiny_model import write_model


def configuration(task: str, *, settings: str = "") -> str:
    """The run `names`, with one task; `settings` are further lines of `[finetune]`."""
    return f"""
name = "names"

[finetune]
encoder = "encoder"
seeds = [1, 2]
precision = "fp32"
{settings}
[[finetune.tasks]]
name = "{task}"
kind = "classification"
train = "train.csv"
dev = "dev.csv"
max_seq_length = 16
batch_size = 8
epochs = 20
learning_rate = 5e-3
"""


def write_encoder_and_rows(folder: Path) -> None:
    """The folder `encoder`, and the files of the task."""
    write_model(folder / "encoder")
    rows = [f"{words},{label}" for words, label in (("the list", "yes"), ("a b", "no"))]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("text_a,label\n" + "\n".join(rows * 20) + "\n")
