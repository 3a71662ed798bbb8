"""`cloze export`, `cloze import`, `cloze submissions`: exchange models and predictions.

In:  a model and a new directory; with --task, a run that saved its fine-tuned models.
     For `import`, a folder with config.json and model.safetensors.
     For `submissions`, a fine-tuned run and a new directory.
Out: config.json, model.safetensors, tokenizer.json, vocab.txt and a model card; with --onnx also
     graphs for onnxruntime, with their scores and throughput.
     For `import`, an artifact that stages can start from.
     For `submissions`, predictions for unlabelled test files in the official servers' formats:
     glue/*.tsv under GLUE's file names, glue.zip of them, and TASK/*.json for SQuAD.
"""

import io
import zipfile
from pathlib import Path

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import write_bytes
from cloze.artifacts.progress import say
from cloze.artifacts.store import open_artifact
from cloze.flows.workspace import writable_workspace
from cloze.inference.input_texts import ModelName
from cloze.options import PLACE, Place, model_directory

PREFIX = "submissions/"
GLUE = "glue"
GLUE_FILES = (
    *("AX", "CoLA", "MNLI-m", "MNLI-mm", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI"),
)
"""The files that gluebenchmark.com expects in one archive."""


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

    :param directory: A new or empty directory.
    :param task: Export the model fine-tuned for this task instead of the encoder.
    :param onnx: Also write onnx/model.onnx (extra `onnx`).
    :param int8: Also write onnx/model_int8.onnx, quantised to 8-bit integers, and print the effect
        on score and speed.
    :param sample: Data to score the graphs on: a file with one text per line, or for a task a
        labelled file. By default, the descriptions of installed packages, or the task's dev file.
    """
    if (int8 or sample) and not onnx:
        raise UsageError("--int8 and --sample apply to ONNX graphs; give --onnx as well")
    if onnx:
        from cloze.model.inference.onnx import export_onnx, measured  # needs the extra `onnx`
    if task:
        from cloze.model.inference.export import export_task

        finetuned = model_directory(model, place.space(), stage="finetune")
        written = export_task(finetuned, directory, task=task)
    else:
        from cloze.model.hugging_face.model_files import read_encoder_files
        from cloze.model.inference.export import export_encoder

        written = export_encoder(
            read_encoder_files(model_directory(model, place.space())), directory
        )
    lines, data = [str(path) for path in written], {"directory": str(directory)}
    if not onnx:
        return Answer({**data, "files": lines}, "\n".join(lines), place.json)
    made = export_onnx(directory, int8=int8)
    found = measured(directory, made, sample=sample)
    paths = [*lines, *map(str, made)]
    scores = [
        {"file": str(one.path), "score": one.score, "texts_per_second": one.texts_per_second}
        for one in found
    ]
    lines += [
        f"{one.path}: score {one.score:.4f}, {one.texts_per_second:,.1f} texts/s" for one in found
    ]
    if int8:
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
    data = {"directory": artifact.directory, "digest": artifact.digest}
    return Answer(data, artifact.directory, place.json)


def submissions(run: str, directory: Path, /, *, place: Place = PLACE) -> Answer:
    """Collect submissions.

    :param run: A run, or a finetune artifact's directory.
    :param directory: A new or empty directory.
    """
    artifact = open_artifact(model_directory(run, place.space(), stage="finetune"))
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory}: already exists; choose a new or empty directory")
    found: dict[str, bytes] = {}
    for entry in artifact.manifest.files:
        task, slash, name = entry.name.removeprefix(PREFIX).partition("/")
        if entry.name.startswith(PREFIX) and slash:
            target = f"{GLUE}/{name}" if name.endswith(".tsv") else f"{task}/{name}"
            if target in found:
                raise UsageError(
                    f"{run}: two tasks have predictions for {name}; fine-tune each GLUE task once"
                )
            found[target] = artifact.read_bytes(entry.name)
    if not found:
        raise UsageError(
            f"{run}: no predictions for unlabelled test files; set `test` of the tasks"
        )
    glue = {name: content for name, content in found.items() if name.startswith(f"{GLUE}/")}
    if glue:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as into:
            for name, content in sorted(glue.items()):  # sorted, for reproducible bytes
                into.writestr(zipfile.ZipInfo(name.removeprefix(f"{GLUE}/")), content)
        found[f"{GLUE}.zip"] = archive.getvalue()
        missing = [name for name in GLUE_FILES if f"{GLUE}/{name}.tsv" not in glue]
        if missing:
            say(f"submissions: the GLUE server also expects {', '.join(missing)}")
    for name, content in found.items():
        write_bytes(str(directory / name), content)
    data = {"directory": str(directory), "files": sorted(found)}
    return Answer(data, "\n".join(str(directory / name) for name in sorted(found)), place.json)
