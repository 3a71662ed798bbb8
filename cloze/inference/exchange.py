"""`cloze export`, `cloze import`: exchange models.

In:  a model and a new directory; with --task, a run that saved its fine-tuned models.
     For `import`, a folder with config.json and model.safetensors.
Out: config.json, model.safetensors, tokenizer.json, vocab.txt and a model card; with --onnx also
     graphs for onnxruntime, with their scores and throughput.
     For `import`, an artifact that stages can start from.
"""

from pathlib import Path

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.flows.workspace import writable_workspace
from cloze.inference.input_texts import ModelName
from cloze.options import PLACE, Place, model_directory, reading_artifacts

SHOWN_TENSORS = 4


@reading_artifacts
def export_model(
    model: ModelName,
    directory: Path,
    /,
    *,
    task: str = "",
    onnx: bool = False,
    int8: bool = False,
    sample: str = "",
    place: Place = PLACE,
) -> Answer:
    """Export a model, also as ONNX graphs for programs without torch.

    :param directory: A new or empty directory, or one in which an export was interrupted.
    :param task: Export the model fine-tuned for this task instead of the encoder.
    :param onnx: Also write onnx/model.onnx (extra `onnx`).
    :param int8: Also write onnx/model_int8.onnx, quantised to 8-bit integers, and print the effect
        on score and speed.
    :param sample: Data to score the graphs on: a file with one text per line, or for a task a
        labelled file. By default, the descriptions of installed packages, or the task's dev file.
    """
    if (int8 or sample) and not onnx:
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
    made = export_onnx(directory, int8=int8)
    # Until now the folder counts as unfinished, so that repeating the command empties it.
    finish_export(directory)
    found = measured(directory, made, sample=sample)
    paths = [*lines, *map(str, made)]
    scores = [
        {"file": str(one.path), "score": one.score, "texts_per_second": one.texts_per_second}
        for one in found
    ]
    lines += [
        f"{one.path}: score {one.score:.4f}, {one.texts_per_second:,.1f} texts/s" for one in found
    ]
    if int8 and found:
        whole, small = found
        loss = (whole.score - small.score) / whole.score if whole.score else 0.0
        gain = small.texts_per_second / whole.texts_per_second
        lines.append(f"int8: {loss:.2%} of the score lost, {gain:.2f} times as fast")
    return Answer({**data, "files": paths, "scores": scores}, "\n".join(lines), place.json)


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
