"""An exported model as ONNX graphs for programs without torch, and their scores and speeds.

In:  a folder in Hugging Face's layout, as written by `export`; to score the graphs, lines of text,
     or for a task a labelled file.
Out: `onnx/model.onnx` in that folder and, on request, `onnx/model_int8.onnx`. Inputs: `input_ids`,
     `attention_mask` and, for BERT, `token_type_ids`, [B, S] int64. Output: `sentence_embedding`
     [B, H] if the folder has sentence-transformers' modules, else `logits` of a task's head or of
     the masked-language-model head, else `last_hidden_state`. The score and speed of each graph.

The graph is traced from the class of `transformers` in the folder's config.json: ours packs
sequences without padding, with kernels that ONNX lacks, and gives the same results
(tests/model/encoder). int8 is onnxruntime's dynamic quantisation: weights are quantised ahead of
time, activations at run time.

The score of an encoder is its top-1 accuracy on masked tokens. For a sentence encoder, or an
encoder without heads, it is nDCG@10 of retrieving the second half of each text by the first.
"""

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime reports to its maker

import numpy as np
import onnxruntime
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.rng import address
from cloze.artifacts.tokenizer import SubwordTokenizer, well_formed
from cloze.model.data.batch import Example, PackedBatch, pack_sequences, padded
from cloze.model.encoder.comparison import comparison
from cloze.model.encoder.models import TaskModel
from cloze.model.finetune.approaches import FineTuning, split_logits
from cloze.model.hugging_face.model_files import BILSTM, head_pooling, read_model
from cloze.model.hugging_face.sentence_modules import (
    MODULES,
    NORMALIZE,
    SentenceModules,
    read_sentence_modules,
)
from cloze.model.hugging_face.source import (
    CONFIG,
    open_source,
    read_shape,
)
from cloze.model.inference.predict import load_predictor
from cloze.model.inference.task_file import SPLIT, scored
from cloze.model.tasks.features import batches_by_length, encode
from cloze.model.tasks.problems import load_problem, load_tables, read_split
from cloze.model.tasks.ranking import measure_ranking
from cloze.model.tasks.retrieval import best_passages

# B sequences, T tokens of all sequences, S tokens of the longest, N texts, H width

TEXTS, MOST_ROWS = 400, 1000
"""Maximum size of the sample."""

FEWEST_TEXTS = 8

FEWEST_WORDS, MOST_WORDS = 12, 80

TOKENS_AT_ONCE = 1024
"""Their logits over 30,000 tokens take 120 MB."""

MASKED_PERCENT = 15

ROUNDS = 2
"""The best time of each graph counts: the first round is a warm-up, and cores may be shared."""

GRAPH, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Above 1, since the exporter takes a dimension of size 1 for one that is always 1.
EXAMPLE = (2, 8)
"""B and S of the traced inputs; both are dynamic in the graph."""


def mean_of(states_BSH: Tensor, inside_BS: Tensor) -> Tensor:
    """[B, H] mean over the tokens inside each sequence."""
    inside_BS1 = inside_BS[:, :, None].to(states_BSH.dtype)
    return (states_BSH * inside_BS1).sum(1) / inside_BS1.sum(1)


class Traced(nn.Module):
    """A model of `transformers` with tensors as inputs and a single output tensor."""

    def __init__(
        self,
        model: transformers.PreTrainedModel,
        modules: SentenceModules | None,
        head: nn.Module | None = None,
    ) -> None:
        """`head`: what a few-label model computes from a sentence's vector."""
        super().__init__()
        self.model = model
        self.modules_after = modules
        self.head = head

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Logits, hidden states, or one vector per sequence."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            given["token_type_ids"] = token_type_ids
        # one choice per question: scores alone matter
        if type(self.model).__name__.endswith("ForMultipleChoice"):  # [B, choices, S]
            given = {name: value[:, None] for name, value in given.items()}
        found = self.model(**given)
        if hasattr(found, "start_logits"):
            return torch.stack((found.start_logits, found.end_logits), dim=-1)
        states: Tensor = found[0]
        if self.modules_after is None and self.head is not None and token_type_ids is not None:
            segments = torch.stack((1 - token_type_ids, token_type_ids), dim=1)
            inside_B2S = attention_mask[:, None] * segments
            words = self.model.get_input_embeddings()(input_ids)
            compared = comparison(states, words, inside_B2S)
            logits: Tensor = self.head(torch.cat((found.pooler_output, compared), dim=-1))
            return logits
        if self.modules_after is None:
            return states
        is_cls = self.modules_after.single_pooling == "cls"
        vectors = states[:, 0] if is_cls else mean_of(states, attention_mask)
        is_normal = NORMALIZE in self.modules_after.steps
        vectors = functional.normalize(vectors, dim=-1) if is_normal else vectors
        return vectors if self.head is None else self.head(vectors)


def export_onnx(folder: Path, *, int8: bool = False) -> list[Path]:
    """Write the graphs of the model in `folder`; return the paths written."""
    config, tokenizer = read_shape(folder)
    source = open_source(folder)
    named = source.read_table(CONFIG)["architectures"]
    architecture = str(named[0]) if isinstance(named, list) else ""
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        tensors = weights.keys()
    has_bilstm = any(name.startswith(BILSTM) for name in tensors)
    if config.attention_direction != "bidirectional" or has_bilstm:
        raise UsageError(
            f"{folder}: has unidirectional attention or a BiLSTM, which `transformers` would not "
            "compute, and its graph is the one exported; leave out --onnx"
        )
    modules = read_sentence_modules(source, tokenizer, positions=config.max_position_embeddings)
    if modules is not None and modules.single_pooling is None:
        raise UsageError(
            f"{folder}: its modules.json has a Dense, LayerNorm or TermVectors module, another "
            "pooling than mean or cls, or lowercases, which the graph would not contain; leave out "
            "--onnx"
        )
    head = None
    if (pooling := head_pooling(source)) != "pooler":
        trained, _, _ = read_model(source)
        head = trained.head if isinstance(trained, TaskModel) else None
        if pooling == "comparison" and config.family != "bert":
            raise UsageError(
                f"{folder}: its head compares two texts, and a graph of the modern family is not "
                "told where the second begins; leave out --onnx"
            )
        if pooling != "comparison":
            modules = SentenceModules((pooling,), (NORMALIZE,), config.max_position_embeddings)
    transformers.logging.set_verbosity_error()  # no warning about the unused next-sentence head
    transformers.logging.disable_progress_bar()
    # The class with the one head that the graph needs.
    name = architecture.replace("ForPreTraining", "ForMaskedLM")
    bare_class = modules is not None or head is not None
    their_class = transformers.AutoModel if bare_class else getattr(transformers, name)
    names = INPUTS if config.family == "bert" else INPUTS[:2]
    is_bare = architecture.endswith("Model") and head is None
    output = "last_hidden_state" if is_bare else "logits"
    graph = folder / GRAPH
    graph.parent.mkdir(exist_ok=True)  # stays where an export was interrupted
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    # The exporter and the quantiser warn about their own internals.
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                Traced(their_class.from_pretrained(folder), modules, head).eval(),
                tuple(torch.ones(EXAMPLE, dtype=torch.int64) for _ in names),
                graph,
                input_names=names,
                output_names=["sentence_embedding" if modules and not head else output],
                dynamic_shapes=tuple(free for _ in names),
                external_data=False,
                verbose=False,
            )
            if int8:
                quantize_dynamic(
                    graph, folder / INT8, weight_type=QuantType.QInt8, per_channel=True
                )
    finally:
        logging.disable(logging.NOTSET)
    return [graph, folder / INT8] if int8 else [graph]


@dataclass(frozen=True)
class MeasuredGraph:
    """Score and speed of one graph."""

    path: Path
    score: float
    texts_per_second: float


class OnnxModel(nn.Module):
    """A graph with the interface of the model it was exported from."""

    bilstm = None

    def __init__(self, path: Path) -> None:
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {given.name for given in self._session.get_inputs()}
        self.output = str(self._session.get_outputs()[0].name)
        """Name of its output: `logits`, `sentence_embedding` or `last_hidden_state`."""

        self.seconds = 0.0
        """Time spent computing the graph."""

        self.place = nn.Parameter(torch.zeros(1), requires_grad=False)
        """Shows callers the model's device, which they take from its parameters."""

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None = None
    ) -> Tensor:
        """The graph's output for the sequences, or for the tokens at `positions` among the T."""
        inside_BS = padded(torch.ones_like(batch.input_ids), batch)
        given = {
            # [B, S]: the graph has no packed sequences
            "input_ids": padded(batch.input_ids, batch),
            "attention_mask": inside_BS,
            "token_type_ids": padded(batch.token_type_ids, batch),
        }
        arrays = {name: value.numpy() for name, value in given.items() if name in self._inputs}
        started = time.perf_counter()
        (output,) = self._session.run(None, arrays)
        self.seconds += time.perf_counter() - started
        found = torch.from_numpy(output)
        # Back to packed tokens: those inside their sequences, in order.
        return found if positions is None else found[inside_BS.bool()][positions]


@dataclass(frozen=True)
class ScoredInputs:
    """Inputs that every graph computes, and how its outputs are scored."""

    size: int
    """Rows or texts."""

    score: Callable[[OnnxModel], float]


def labelled_rows(folder: Path, path: str) -> ScoredInputs | None:
    """The labelled file `path`, or the dev rows of the task in `folder`; the task's headline.

    None if neither is on this machine.
    """
    _, saved, tokenizer = read_model(open_source(folder))
    task = saved.task
    path = path or task.dev
    if path and Path(path).is_file():
        rows = read_split(task, SPLIT, path)
    elif task.train and not task.dev and Path(task.train).is_file():
        rows = load_tables(task)["dev"]  # those held out
    else:
        return None
    rows = rows.take(range(min(len(rows), MOST_ROWS)))
    if task.family.reranks:
        problem = load_problem(task, tokenizer, {SPLIT: rows})

        def rank(model: OnnxModel) -> float:
            logits = split_logits(problem, FineTuning(problem, model), SPLIT)
            return problem.score(SPLIT, problem.predictions(SPLIT, logits))[problem.headline]

        return ScoredInputs(len(rows), rank)
    predictor = load_predictor(folder, device="cpu")

    def score(model: OnnxModel) -> float:
        graph = replace(predictor, model=model)
        return next(iter(scored(task, rows, list(graph.table(rows))).values()))

    return ScoredInputs(len(rows), score)


def masked_texts(
    texts: Sequence[str], tokenizer: SubwordTokenizer, *, longest: int
) -> ScoredInputs:
    """Texts with tokens masked at deterministic positions; top-1 accuracy on these."""
    sequences = encode(tokenizer, texts, max_seq_length=longest)
    examples = []
    for number in range(len(sequences)):
        ids = sequences.input_ids.row(number)
        places = [
            place
            for place in range(1, len(ids) - 1)
            # deterministic, so that all graphs are asked for the same tokens; at least one per text
            if address("masked", number, place) % 100 < MASKED_PERCENT
        ] or [1]
        masked, labels = ids.tolist(), ids[places].tolist()
        for place in places:
            masked[place] = tokenizer.mask_id
        examples.append(Example(masked, masked_lm_positions=places, masked_lm_ids=labels))

    def score(model: OnnxModel) -> float:
        correct = total = 0
        for rows in batches_by_length(sequences.lengths, token_budget=TOKENS_AT_ONCE):
            batch = pack_sequences([examples[row] for row in rows])
            logits_MV = model(batch, batch.masked_lm_positions)
            correct += int((logits_MV.argmax(-1) == batch.masked_lm_ids).sum())
            total += len(batch.masked_lm_ids)
        return correct / total

    return ScoredInputs(len(examples), score)


def text_halves(texts: Sequence[str], tokenizer: SubwordTokenizer, *, longest: int) -> ScoredInputs:
    """Texts split in the middle, between words; nDCG@10 of finding the second half by the first."""
    words = [text.split() for text in texts]
    halves = [" ".join(one[: len(one) // 2]) for one in words]
    # First all first halves, then all second ones: half i belongs to text i in both.
    halves += [" ".join(one[len(one) // 2 :]) for one in words]
    sequences = encode(tokenizer, halves, max_seq_length=longest)

    def score(model: OnnxModel) -> float:
        vectors: dict[int, Tensor] = {}
        for rows in batches_by_length(sequences.lengths, token_budget=TOKENS_AT_ONCE):
            batch = sequences.batch(rows)
            states = model(batch, None)
            if states.ndim == 3:  # an encoder without modules: the mean over its tokens
                states = mean_of(states, padded(torch.ones_like(batch.input_ids), batch))
            vectors.update(zip(rows.tolist(), functional.normalize(states, dim=-1), strict=True))
        every_NH = torch.stack([vectors[row] for row in range(len(sequences))]).numpy()
        queries, passages = np.split(every_NH, 2)
        relevant = [{row: 1.0} for row in range(len(queries))]
        ranked = best_passages(queries, passages)
        return measure_ranking(["ndcg@10"], ranked, relevant)["ndcg@10"]

    return ScoredInputs(len(sequences), score)


def measured(folder: Path, graphs: Sequence[Path], *, sample: str = "") -> list[MeasuredGraph]:
    """Score and speed of the graphs of an exported `folder` on the file `sample`.

    By default on a task's own dev rows, or on descriptions of the installed packages. Empty if the
    dev rows are not on this machine.
    """
    models = {graph: OnnxModel(graph) for graph in graphs}
    config, tokenizer = read_shape(folder)
    source = open_source(folder)
    inputs: ScoredInputs | None
    if "cloze_task" in source.read_table(CONFIG) and MODULES not in source.names:
        inputs = labelled_rows(folder, sample)
        if inputs is None:
            say(
                f"{folder}: not scored, since its task's dev rows are not on this machine; name a "
                "file with labels: --sample FILE"
            )
            return []
    else:
        make = masked_texts if models[graphs[0]].output == "logits" else text_halves
        inputs = make(sample_texts(sample), tokenizer, longest=config.max_position_embeddings)
    found: dict[Path, MeasuredGraph] = {}
    # Graphs in turn, so that a busy machine slows all of them down alike.
    for _ in range(ROUNDS):
        for graph, model in models.items():
            model.seconds = 0.0
            now = MeasuredGraph(graph, inputs.score(model), inputs.size / model.seconds)
            best = found.get(graph, now)
            found[graph] = max(now, best, key=lambda one: one.texts_per_second)
    return [*found.values()]


def sample_texts(path: str) -> list[str]:
    """Lines of medium length of the file `path`, or of the descriptions of installed packages."""
    if path:
        lines = Path(path).read_text("utf-8", "replace").splitlines()
    else:
        texts = (one.metadata.json.get("description") for one in metadata.distributions())
        lines = [line for text in texts for line in str(text).splitlines()]
    found = [line for line in lines if FEWEST_WORDS <= len(line.split()) <= MOST_WORDS]
    if len(found) < FEWEST_TEXTS:
        raise UsageError(
            f"{path or 'the installed packages'}: {len(found)} lines of {FEWEST_WORDS} to "
            f"{MOST_WORDS} words to score the graphs on; name a file with a few hundred: "
            "--sample FILE"
        )
    # A random sample by hash: the same on every machine with the same lines.
    chosen = sorted(set(found), key=lambda line: address("sample", line))[:TEXTS]
    return [well_formed(line) for line in chosen]
