"""`cloze submissions`: predictions for unlabelled test files, for the official servers.

In:  a fine-tuned run and a new directory.
Out: glue/*.tsv under GLUE's file names, glue.zip of them, and TASK/*.json for SQuAD.
"""

import io
import zipfile
from pathlib import Path

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import write_bytes
from cloze.artifacts.progress import say
from cloze.artifacts.store import open_artifact
from cloze.named import model_directory
from cloze.options import PLACE, Place, reading_artifacts

PREFIX = "submissions/"
GLUE = "glue"
GLUE_FILES = (
    *("AX", "CoLA", "MNLI-m", "MNLI-mm", "MRPC", "QNLI", "QQP", "RTE", "SST-2", "STS-B", "WNLI"),
)
"""The files that gluebenchmark.com expects in one archive."""


@reading_artifacts
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
            # All GLUE tasks go into one archive.
            target = f"{GLUE}/{name}" if name.endswith(".tsv") else f"{task}/{name}"
            if target in found:
                raise UsageError(
                    f"{run}: two tasks have predictions for {name}; fine-tune each GLUE task once"
                )
            found[target] = artifact.read_bytes(entry.name)
    if not found:
        raise UsageError(
            f"{run}: no predictions for unlabelled test files; set `test` of the tasks, or for "
            "those with `glue` add test.tsv to their folders, and fine-tune again"
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
