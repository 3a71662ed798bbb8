"""The Python API: load encoders and fine-tuned models by a run's name or by their directory.

    cloze.load("demo").fill_mask("The default [MASK] is None.")
    cloze.load_task("demo", "tagging").predict([{"words": ["numpy", "arrays"]}])
    cloze.load_batches("demo", padded=True)
    cloze.search("demo", "documents").ask("Who owns the garden?")

In:  a run's name, or the directory of a model.
Out: `cloze.Model`, `cloze.Predictor`, `cloze.PretrainingBatches`, `cloze.Search`. What the caller
     can act on is raised as a `ClozeError`: a wrong argument or input as `UsageError`, a damaged
     artifact as `IntegrityError`. Heavy libraries are imported only when one of the functions is
     called, or one of the classes is named.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.artifacts.runtime.arguments import checked

__all__ = [
    "ClozeError",
    "IntegrityError",
    "UsageError",
    "__version__",
    "load",
    "load_batches",
    "load_task",
    "search",
]

CLASSES = {
    "Model": "cloze.model.inference.load",
    "Predictor": "cloze.model.inference.predict",
    "PretrainingBatches": "cloze.model.data.torch_dataset",
    "Search": "cloze.inference.searcher",
}
"""What the functions return, for annotations and `isinstance`, and the modules that have it. Not in
`__all__`, since `from cloze import *` would import all of them."""

if TYPE_CHECKING:
    from cloze.inference.searcher import Search as Search
    from cloze.model.data.torch_dataset import PretrainingBatches as PretrainingBatches
    from cloze.model.inference.load import Model as Model
    from cloze.model.inference.predict import Predictor as Predictor

    __version__: str
    """Version of the installed distribution."""

else:  # a type checker would take any name for one that this function knows

    def __getattr__(name: str) -> object:
        """`__version__` and the classes, which are imported only when asked for."""
        if name in CLASSES:
            with _importing():
                return getattr(import_module(CLASSES[name]), name)
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return version("cloze-encoder")


@contextmanager
def _importing() -> Iterator[None]:
    """While heavy libraries are imported: without looking for garbage, a sixth of the time."""
    # As in __main__.py: imports make hardly any, and what is imported stays until the end, so it
    # need not be looked through afterwards either.
    is_first, was_enabled = "torch" not in sys.modules, gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_first:
            gc.freeze()
        if was_enabled:
            gc.enable()


@checked
def load(
    model: str | Path,
    *,
    workspace: str | Path = "runs",
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    attention: Literal["auto", "grouped", "flash", "varlen"] = "auto",
) -> "Model":
    """Load a trained encoder.

    `model` is the name of a run in `workspace`, an artifact's directory, or a folder in Hugging
    Face's layout. For a run that trained an encoder for retrieval, it is that encoder. `device` is
    "cpu", "cuda", "cuda:1", or with "auto" a GPU if there is one; `precision` "auto" is bf16 there
    and fp32 on a CPU, where "int8" multiplies in 8-bit integers; `attention` names a backend.
    """
    with _importing():
        from cloze.flows.workspace import workspace as open_workspace
        from cloze.model.inference.load import load_model
        from cloze.named import vectors_directory

    directory = vectors_directory(str(model), open_workspace(str(workspace)))
    return load_model(directory, device=device, precision=precision, attention=attention)


@checked
def load_task(
    model: str | Path,
    task: str = "",
    *,
    workspace: str | Path = "runs",
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto",
    confidence: float | None = None,
) -> "Predictor":
    """Load the model fine-tuned for `task`, which may be omitted if there is only one.

    `model` is the name of a run in `workspace` that saved its models (`finetune.save` is not
    "none"), its finetune artifact's directory, or a folder written by `cloze export --task`.
    `device` and `precision` are those of `load`. With a `confidence`, such as 0.9, predictions also
    have the labels or the interval that hold the truth with at least this probability.
    """
    with _importing():
        from cloze.flows.workspace import workspace as open_workspace
        from cloze.model.inference.predict import load_predictor
        from cloze.named import model_directory

    directory = model_directory(str(model), open_workspace(str(workspace)), stage="finetune")
    return load_predictor(
        directory, task=task, device=device, precision=precision, confidence=confidence
    )


@checked
def load_batches(
    run: str,
    *,
    workspace: str | Path = "runs",
    seed: int | None = None,
    padded: bool = False,
    rank: int = 0,
    ranks: int = 1,
) -> "PretrainingBatches":
    """The batches of a run's pre-training, for your own training loop.

    They are those that the run itself was trained on, in its order; another `seed` gives another
    order, and with dynamic masks other masks. `padded`, `rank` and `ranks` are those of
    `cloze.model.data.torch_dataset.PretrainingBatches`, which also accepts other numbers of steps,
    batch sizes and lengths.
    """
    from cloze.flows.config import RunConfig
    from cloze.flows.workspace import read_record, run_artifact
    from cloze.flows.workspace import workspace as open_workspace
    from cloze.model.data.torch_dataset import PretrainingBatches

    space = open_workspace(str(workspace))
    config = RunConfig.model_validate(read_record(space, run).config)
    examples = run_artifact(space, run, stage="examples")
    if seed is None:
        seed = config.pretraining_seed
    return PretrainingBatches(
        examples.directory, config.mixed_recipe, seed=seed, padded=padded, rank=rank, ranks=ranks
    )


@checked
def search(  # noqa: PLR0913 - keywords, each with a default: the options of the command
    model: str | Path,
    folder: str | Path,
    *,
    workspace: str | Path = "runs",
    ranking: Literal["hybrid", "vectors", "lexical"] = "hybrid",
    weight: float | int | None = None,
    language: str = "auto",
    words: int = 100,
    overlap: int = 0,
    graph: bool = False,
    rerank: str | Path = "",
    depth: int = 50,
    rerank_weight: float | int = 0.25,
    feedback: float | int | None = None,
) -> "Search":
    """The passages of a folder, loaded once and ready to be asked, `.ask("…")`.

    `model` is as for `load`; `folder` is a file, folder, glob or URL of documents. Indexes are made
    in `workspace` unless they are there. Passages of about `words` words, each with up to `overlap`
    of the one before, are ranked by vectors,
    words (`lexical`, BM25), or both with `weight` for the vectors, by default .65 or less where
    passages hardly stand out by them; `language` is that of the
    stemmer and stopwords, `graph` for millions of passages. The model `rerank`, a run with a task
    `reranking` or a cross-encoder, adds `rerank_weight` of its score to the first `depth`,
    and `feedback` is the weight of their likeness to the first of all, by default 0.3 with it:
    `cloze.inference.searcher.How`.
    """
    with _importing():
        from cloze.flows.workspace import writable_workspace
        from cloze.inference.searcher import How, Search

    how = How(
        ranking=ranking,
        weight=weight,
        language=language,
        words=words,
        overlap=overlap,
        graph=graph,
        rerank=str(rerank),
        depth=depth,
        rerank_weight=rerank_weight,
        feedback=feedback,
    )
    return Search(str(model), str(folder), space=writable_workspace(str(workspace)), how=how)
