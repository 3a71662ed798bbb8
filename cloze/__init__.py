"""The Python API: encoders and fine-tuned models by a run's name or their directory.

    cloze.load("demo").fill_mask("The default [MASK] is None.")
    cloze.load_task("demo", "tagging").predict([{"words": ["numpy", "arrays"]}])
    cloze.load_batches("demo", padded=True)

In:  a run's name, or the directory of a model.
Out: `model.inference.load.Model`, `model.inference.predict.Predictor`,
     `model.data.torch_dataset.PretrainingBatches`. Nothing heavy is imported before one of the
     functions is called.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from model.data.torch_dataset import PretrainingBatches
    from model.inference.load import Model, Precision
    from model.inference.predict import Predictor

    class LoadOptions(TypedDict, total=False):
        """How an encoder is loaded; `model.inference.load.load` has the defaults."""

        device: str
        precision: Precision
        attention: str

    class BatchOptions(TypedDict, total=False):
        """Which batches; `model.data.torch_dataset.PretrainingBatches` has the defaults."""

        seed: int
        padded: bool
        rank: int
        ranks: int


def load(model: str, *, workspace: str = "runs", **options: "Unpack[LoadOptions]") -> "Model":
    """The trained encoder called `model`.

    `model` is a run of `workspace`, an artifact's directory, or a folder in Hugging Face's layout;
    of a run that has trained an encoder to compare texts it is that one.
    `options` (device, precision, attention) go to `model.inference.load.load`.
    """
    from cloze.lookup import vectors_directory
    from flows.workspace import workspace as open_workspace
    from model.inference.load import load as load_directory

    return load_directory(vectors_directory(model, open_workspace(workspace)), **options)


def load_task(
    model: str, task: str = "", *, workspace: str = "runs", **options: str
) -> "Predictor":
    """The model fine-tuned for `task`, which may be left out where there is only one.

    `model` is a run of `workspace` that kept its models (`finetune.save` is not "none"), its
    finetune artifact's directory, or a folder that `cloze export --task` wrote; `options` (device,
    precision) go to `model.inference.predict.load_predictor`.
    """
    from cloze.lookup import model_directory
    from flows.workspace import workspace as open_workspace
    from model.inference.predict import load_predictor

    directory = model_directory(model, open_workspace(workspace), stage="finetune")
    return load_predictor(directory, task=task, **options)


def load_batches(
    run: str, *, workspace: str = "runs", **options: "Unpack[BatchOptions]"
) -> "PretrainingBatches":
    """The batches that a run's pre-training reads, for a training loop of one's own.

    `options` (seed, padded, rank, ranks) go to `model.data.torch_dataset.PretrainingBatches`, which
    takes other steps, batch sizes and lengths.
    """
    from flows.config import RunConfig
    from flows.record import read_record, run_artifact
    from flows.workspace import workspace as open_workspace
    from model.data.torch_dataset import PretrainingBatches

    space = open_workspace(workspace)
    recipe = RunConfig.model_validate(read_record(space, run).config).pretrain
    examples = run_artifact(space, run, stage="examples")
    return PretrainingBatches(examples.directory, recipe, **options)
