"""The Python API: load encoders and fine-tuned models by a run's name or by their directory.

    cloze.load("demo").fill_mask("The default [MASK] is None.")
    cloze.load_task("demo", "tagging").predict([{"words": ["numpy", "arrays"]}])
    cloze.load_batches("demo", padded=True)

In:  a run's name, or the directory of a model.
Out: `cloze.model.inference.load.Model`, `cloze.model.inference.predict.Predictor`,
     `cloze.model.data.torch_dataset.PretrainingBatches`. What the caller can act on is raised as a
     `ClozeError`: a wrong argument or input as `UsageError`, a damaged artifact as
     `IntegrityError`. Heavy libraries are imported only when one of the functions is called.
"""

from typing import TYPE_CHECKING

from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError

__all__ = [
    "ClozeError",
    "IntegrityError",
    "UsageError",
    "__version__",
    "load",
    "load_batches",
    "load_task",
]

if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    from cloze.model.data.torch_dataset import PretrainingBatches
    from cloze.model.encoder.precision import Precision
    from cloze.model.inference.load import Model
    from cloze.model.inference.predict import Predictor

    class LoadOptions(TypedDict, total=False):
        """How to load an encoder; defaults: those of `cloze.model.inference.load.load_model`."""

        device: str
        precision: Precision
        attention: str

    class BatchOptions(TypedDict, total=False):
        """Which batches; the defaults are those of `PretrainingBatches`."""

        seed: int
        padded: bool
        rank: int
        ranks: int

    __version__: str
    """Version of the installed distribution."""


def __getattr__(name: str) -> str:
    """`__version__`, which is read only when asked for."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version("cloze-encoder")


def load(model: str, *, workspace: str = "runs", **options: "Unpack[LoadOptions]") -> "Model":
    """Load a trained encoder.

    `model` is the name of a run in `workspace`, an artifact's directory, or a folder in Hugging
    Face's layout. For a run that trained an encoder for retrieval, it is that encoder.
    `options` (device, precision, attention) go to `cloze.model.inference.load.load_model`.
    """
    from cloze.flows.workspace import workspace as open_workspace
    from cloze.model.inference.load import load_model as load_directory
    from cloze.options import vectors_directory

    return load_directory(vectors_directory(model, open_workspace(workspace)), **options)


def load_task(
    model: str, task: str = "", *, workspace: str = "runs", **options: str
) -> "Predictor":
    """Load the model fine-tuned for `task`, which may be omitted if there is only one.

    `model` is the name of a run in `workspace` that saved its models (`finetune.save` is not
    "none"), its finetune artifact's directory, or a folder written by `cloze export --task`.
    `options` (device, precision) go to `cloze.model.inference.predict.load_predictor`.
    """
    from cloze.flows.workspace import workspace as open_workspace
    from cloze.model.inference.predict import load_predictor
    from cloze.options import model_directory

    directory = model_directory(model, open_workspace(workspace), stage="finetune")
    return load_predictor(directory, task=task, **options)


def load_batches(
    run: str, *, workspace: str = "runs", **options: "Unpack[BatchOptions]"
) -> "PretrainingBatches":
    """The batches of a run's pre-training, for your own training loop.

    `options` (seed, padded, rank, ranks) go to `cloze.model.data.torch_dataset.PretrainingBatches`,
    which also accepts other numbers of steps, batch sizes and lengths.
    """
    from cloze.flows.config import RunConfig
    from cloze.flows.workspace import read_record, run_artifact
    from cloze.flows.workspace import workspace as open_workspace
    from cloze.model.data.torch_dataset import PretrainingBatches

    space = open_workspace(workspace)
    recipe = RunConfig.model_validate(read_record(space, run).config).pretrain
    examples = run_artifact(space, run, stage="examples")
    return PretrainingBatches(examples.directory, recipe, **options)
