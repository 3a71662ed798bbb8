"""The Python API: `cloze.load("demo").fill_mask("The default [MASK] is None.")`.

In:  a run's name, or the directory of a model.
Out: `model.use.load.Model`. Nothing heavy is imported before `load` is called.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.use.load import Model


def load(model: str, *, workspace: str = "runs", **options: Any) -> "Model":
    """The trained encoder called `model`.

    `model` is a run of `workspace`, an artifact's directory, or a folder in Hugging Face's layout;
    `options` (device, precision, attention) go to `model.use.load.load`.
    """
    from cloze.names import model_directory
    from flows.workspace import workspace as open_workspace
    from model.use.load import load as load_directory

    return load_directory(model_directory(model, open_workspace(workspace)), **options)
