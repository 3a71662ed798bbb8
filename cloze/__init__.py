"""The Python API: encoders and fine-tuned models by a run's name or their directory.

    cloze.load("demo").fill_mask("The default [MASK] is None.")
    cloze.load_task("demo", "tagging").predict([{"words": ["numpy", "arrays"]}])

In:  a run's name, or the directory of a model.
Out: `model.use.load.Model`, `model.tasks.predict.Predictor`. Nothing heavy is imported before one
     of the two functions is called.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model.tasks.predict import Predictor
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


def load_task(
    model: str, task: str = "", *, workspace: str = "runs", **options: Any
) -> "Predictor":
    """The model fine-tuned for `task`, which may be left out where there is only one.

    `model` is a run of `workspace` whose configuration says `finetune.save = "best"`, its finetune
    artifact's directory, or a folder that `cloze export --task` wrote; `options` (device,
    precision) go to `model.tasks.predict.load_predictor`.
    """
    from cloze.names import model_directory
    from flows.workspace import workspace as open_workspace
    from model.tasks.predict import load_predictor

    directory = model_directory(model, open_workspace(workspace), stage="finetune")
    return load_predictor(directory, task=task, **options)
