"""`cloze export`, `cloze import`: exchange models.

In:  a model and a new directory; with --task, a run that saved its fine-tuned models.
     For `import`, a folder with config.json and model.safetensors.
Out: config.json, model.safetensors, tokenizer.json, vocab.txt and a model card; with --onnx also
     graphs for onnxruntime, with their scores and throughput.
     For `import`, an artifact that stages can start from.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.flows.workspace import writable_workspace
from cloze.inference.input_texts import ModelName
from cloze.named import model_directory
from cloze.options import PLACE, Place, reading_artifacts

if TYPE_CHECKING:
    from cloze.model.inference.onnx import MeasuredGraph

SHOWN_TENSORS = 4

MOST_LOSS = 0.004
"""Share of the score that int8 may lose."""


@Parameter(name="*")
@dataclass(frozen=True)
class Graphs:
    """Which ONNX graphs to write, and how they are scored."""

    onnx: bool = False
    """Also write onnx/model.onnx (extra `onnx`)."""

    int8: bool = False
    """Also write onnx/model_int8.onnx, quantised to 8-bit integers, and print the effect on score
    and speed."""

    most_loss: float = MOST_LOSS
    """Share of the score that int8 may lose; if it loses more, its graph is removed and the export
    refused."""

    sample: str = ""
    """Data to score the graphs on: a file with one text per line, or for a task a labelled file. By
    default, the descriptions of installed packages, or the task's dev file."""


GRAPHS = Graphs()


@reading_artifacts
def export_model(
    model: ModelName,
    directory: Path,
    /,
    *,
    task: str = "",
    graphs: Graphs = GRAPHS,
    place: Place = PLACE,
) -> Answer:
    """Export a model, also as ONNX graphs for programs without torch.

    :param directory: A new or empty directory, or one in which an export was interrupted.
    :param task: Export the model fine-tuned for this task instead of the encoder.
    """
    onnx = graphs.onnx
    if (graphs.int8 or graphs.sample) and not onnx:
        raise UsageError("--int8 and --sample apply to ONNX graphs; give --onnx as well")
    # Imported first: a missing extra is reported before anything is written.
    if onnx:
        from cloze.model.inference.export import finish_export
        from cloze.model.inference.onnx import export_onnx, measured  # needs the extra `onnx`
    if task:
        from cloze.model.inference.export import export_task

        finetuned = model_directory(model, place.space(), stage="finetune")
        written = export_task(finetuned, directory, task=task, is_all=not onnx)
    else:
        from cloze.model.hugging_face.model_files import read_encoder_files
        from cloze.model.inference.export import export_encoder

        written = export_encoder(
            read_encoder_files(model_directory(model, place.space())), directory, is_all=not onnx
        )
    lines, data = [str(path) for path in written], {"directory": str(directory)}
    if not onnx:
        return Answer({**data, "files": lines}, "\n".join(lines), place.json)
    made = export_onnx(directory, int8=graphs.int8)
    found = measured(directory, made, sample=graphs.sample)
    # Until now the folder counts as unfinished, so that repeating the command, after a kill or with
    # another --sample, empties it.
    finish_export(directory)
    paths = [*lines, *map(str, made)]
    scores = [
        {"file": str(one.path), "score": one.score, "texts_per_second": one.texts_per_second}
        for one in found
    ]
    lines += [
        f"{one.path}: score {one.score:.4f}, {one.texts_per_second:,.1f} texts/s" for one in found
    ]
    if graphs.int8 and found:
        lines.append(_effect(*found, most_loss=graphs.most_loss))
    return Answer({**data, "files": paths, "scores": scores}, "\n".join(lines), place.json)


def _effect(whole: "MeasuredGraph", small: "MeasuredGraph", *, most_loss: float) -> str:
    """The effect of int8; if it loses too much, its graph is removed."""
    loss = (whole.score - small.score) / whole.score if whole.score else 0.0
    if loss > most_loss:
        small.path.unlink()
        raise UsageError(
            f"{small.path}: int8 loses {loss:.2%} of the score ({whole.score:.4f} without), more "
            f"than {most_loss:.2%}, so it was removed; the rest is exported. Allow more with "
            "--most-loss, give texts of your own with --sample, or use `--precision int8` of "
            "`cloze embed` and `cloze predict`, which quantises every token by itself"
        )
    gain = small.texts_per_second / whole.texts_per_second
    return f"int8: {loss:.2%} of the score lost, {gain:.2f} times as fast"


@reading_artifacts
def import_model(folder: Path, /, *, place: Place = PLACE) -> Answer:
    """Import a model.

    :param folder: A folder with config.json and model.safetensors.
    """
    from cloze.model.inference.export import import_encoder

    space = writable_workspace(place.machine().workspace)
    artifact = import_encoder(folder, space.store)
    left_out = artifact.manifest.statistics["ignored"]
    if left_out:
        say(
            f"import: the encoder alone; {len(left_out)} tensors of a task's head are left out: "
            f"{', '.join(left_out[:SHOWN_TENSORS])}"
        )
    data = {"directory": artifact.directory, "digest": artifact.digest, "left_out": left_out}
    return Answer(data, artifact.directory, place.json)
