"""What the names that users give stand for: artifacts and models.

In:  a name, such as `demo`, `demo/examples` or `runs/artifacts/examples/1f…`; the workspace.
Out: the artifact, or the model's directory.
"""

import os
import re

from cloze.artifacts import filesystem
from cloze.artifacts.config import flat
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import located
from cloze.artifacts.manifest import MANIFEST_NAME
from cloze.artifacts.progress import say
from cloze.artifacts.store import Artifact, open_artifact
from cloze.flows.workspace import (
    ADAPTED,
    RECORD_NAME,
    RunRecord,
    Workspace,
    list_runs,
    read_record,
    run_artifact,
)
from cloze.model.task_families import TASK_FAMILIES

TASK_KIND = re.compile(r"finetune\.tasks\.\d+\.kind")
"""The fields of a configuration with the kinds of its tasks."""

DISTILLED = "distill"
"""The student that `cloze distill` made."""


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
    """Like `model_directory`, but for a run that trained an encoder for retrieval, that encoder.

    After `cloze adapt` it is the one that was kept.
    """
    if name in list_runs(workspace):
        record = read_record(workspace, name)
        if kept := _kept(record):
            return run_artifact(workspace, name, stage=kept).directory
        # As it is written: another version's record need not be one of this version's, and the
        # classes of a run's configuration take longer to import than this to read.
        settings = flat(record.config)
        kinds = (str(kind) for place, kind in settings.items() if TASK_KIND.fullmatch(place))
        families = filter(None, map(TASK_FAMILIES.get, kinds))
        saved = "finetune" in record.stages and settings.get("finetune.save") != "none"
        if saved and any(family.compares_vectors for family in families):
            return run_artifact(workspace, name, stage="finetune").directory
    return model_directory(name, workspace)


def _kept(record: RunRecord) -> str:
    """The stage whose encoder a run's name stands for, if it is not that of pre-training."""
    return next((stage for stage in (ADAPTED, DISTILLED) if stage in record.stages), "")


def lasting_name(model: str, workspace: Workspace) -> str:
    """`model` as it can be written to a file: a run's name, or a path from wherever it is read."""
    return model if not model or model in list_runs(workspace) else located(model)


def model_directory(name: str, workspace: Workspace, *, stage: str = "pretrain") -> str:
    """The directory of a model: the output of a run's `stage`, or the directory `name` itself."""
    if not name.strip():
        raise UsageError("no model is named; expected a run's name or a model's directory")
    # A run comes before a folder of the same name.
    if name in list_runs(workspace):
        record = read_record(workspace, name)
        if stage == "pretrain" and (kept := _kept(record)):
            return run_artifact(workspace, name, stage=kept).directory
        if stage == "finetune" and stage not in record.stages and DISTILLED in record.stages:
            return run_artifact(workspace, name, stage=DISTILLED).directory
        given = flat(record.config).get("finetune.encoder")
        if stage == "pretrain" and given:  # a run without a corpus, which started from this encoder
            say(f"{name}: the encoder that the run started from; its tasks' models need --task")
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
        f"runs there: {', '.join(list_runs(workspace)) or 'none'}; models are never downloaded"
    )
