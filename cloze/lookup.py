"""Resolve runs, artifacts and models by name or by path.

In:  `demo`, `demo/examples`, `runs/artifacts/examples/1f…`.
Out: the artifact, or the model's directory.
"""

import os

from artifacts import filesystem
from artifacts.config import flat
from artifacts.errors import UsageError
from artifacts.manifest import MANIFEST_NAME
from artifacts.store import Artifact, open_artifact
from flows.config import RunConfig
from flows.workspace import RECORD_NAME, Workspace, list_runs, read_record, run_artifact


def named_artifact(name: str, workspace: Workspace) -> Artifact:
    """The artifact in the directory `name`, or the one named `RUN/STAGE`."""
    path = os.path.expanduser(name)
    if filesystem.exists(filesystem.join(path, MANIFEST_NAME)):
        return open_artifact(path)
    run, slash, stage = name.partition("/")
    if slash and run in list_runs(workspace):
        return run_artifact(workspace, run, stage=stage)
    if name in list_runs(workspace):
        stages = ", ".join(f"{name}/{stage}" for stage in read_record(workspace, name).stages)
        raise UsageError(
            f"{name}: this is a run; name one of its artifacts: {stages or 'it has none yet'}"
        )
    raise UsageError(
        f"{name}: neither the directory of a finished artifact nor RUN/STAGE; "
        f"runs in {workspace.root}: {', '.join(list_runs(workspace)) or 'none'}"
    )


def vectors_directory(name: str, workspace: Workspace) -> str:
    """Like `model_directory`, but for a run that trained an encoder for retrieval, that encoder."""
    if name in list_runs(workspace):
        record = read_record(workspace, name)
        run = RunConfig.model_validate(record.config)
        kinds = {task.kind for task in run.finetune.tasks}
        if "retrieval" in kinds and "finetune" in record.stages and run.finetune.save != "none":
            return run_artifact(workspace, name, stage="finetune").directory
    return model_directory(name, workspace)


def model_directory(name: str, workspace: Workspace, *, stage: str = "pretrain") -> str:
    """The directory of a model: the output of a run's `stage`, or the directory `name` itself."""
    if name in list_runs(workspace):
        given = flat(read_record(workspace, name).config).get("finetune.encoder")
        if stage == "pretrain" and given:  # a run without a corpus, which started from this encoder
            return str(given)
        return run_artifact(workspace, name, stage=stage).directory
    path = os.path.expanduser(name)
    if filesystem.exists(filesystem.join(path, RECORD_NAME)):
        folder, run = os.path.split(os.path.normpath(path))
        raise UsageError(
            f"{name}: a run's folder, which contains no model; use the run's name, {run}, "
            f"with --workspace {folder or '.'} if that is not {workspace.root}"
        )
    if filesystem.exists(path):
        return path
    raise UsageError(
        f"{name}: no run of this name in {workspace.root}, and no such directory; "
        f"runs there: {', '.join(list_runs(workspace)) or 'none'}"
    )
