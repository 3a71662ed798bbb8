"""Evaluation of ONNX graphs: their scores and speeds side by side.

In:  the graphs of an exported folder; a text file, or of a task its labelled file.
Out: for each graph its score and its speed.

An encoder's score is its top-1 accuracy on masked tokens; that of an encoder of sentence vectors,
or of one without heads, is nDCG@10 of retrieving the second half of each text by the first.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Self

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional

from artifacts.errors import UsageError
from artifacts.rng import address
from artifacts.tokenizer import SubwordTokenizer, well_formed
from model.data.batch import Example, PackedBatch, pack, padded
from model.hugging_face.encoder_files import CONFIG, read_shape
from model.hugging_face.sentence_modules import MODULES
from model.hugging_face.source import open_source
from model.inference.predict import Predictor, load_predictor
from model.tasks.features import batches_by_length
from model.tasks.metrics.ranking_metrics import measure_ranking
from model.tasks.retrieval import best_passages
from model.tasks.task_table import TaskTable

# B sequences, T tokens of all together, S tokens of the longest, N texts, H width

TEXTS, MOST_ROWS = 400, 1000
"""Maximum size of the sample."""

FEWEST_TEXTS = 8

FEWEST_WORDS, MOST_WORDS = 12, 80

TOKENS_AT_ONCE = 1024
"""Their logits over 30,000 words take 120 MB."""

MASKED_PERCENT = 15

ROUNDS = 2
"""The best time of each graph counts: the first round warms up, and cores may be shared."""


@dataclass(frozen=True)
class Measured:
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
        """Its output: `logits`, `sentence_embedding` or `last_hidden_state`."""

        self.seconds = 0.0
        """Time spent in the graph."""

        self.place = nn.Parameter(torch.zeros(1), requires_grad=False)
        """Tells the device: users of a model look at its parameters."""

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None = None
    ) -> Tensor:
        """The graph's output for the sequences, or for the tokens at `positions` of the T."""
        inside_BS = padded(torch.ones_like(batch.input_ids), batch)
        given = {
            "input_ids": padded(batch.input_ids, batch),
            "attention_mask": inside_BS,
            "token_type_ids": padded(batch.token_type_ids, batch),
        }
        arrays = {name: value.numpy() for name, value in given.items() if name in self._inputs}
        started = time.perf_counter()
        (output,) = self._session.run(None, arrays)
        self.seconds += time.perf_counter() - started
        found = torch.from_numpy(output)
        return found if positions is None else found[inside_BS.bool()][positions]


@dataclass(frozen=True)
class LabelledRows:
    """A task's own file with its labels."""

    predictor: Predictor
    rows: TaskTable

    @classmethod
    def of(cls, folder: Path, sample: str) -> Self:
        """The file `sample`, or the dev file of the task in `folder`."""
        predictor = load_predictor(folder, device="cpu")
        path = sample or predictor.saved.task.dev
        if not path or not Path(path).is_file():
            raise UsageError(
                f"task {predictor.saved.task.name}: its dev file is not here, by which the graphs "
                "are scored; name a file with labels: --sample FILE"
            )
        rows = predictor.read(path)
        return cls(predictor, rows.take(range(min(len(rows), MOST_ROWS))))

    @property
    def size(self) -> int:
        """Rows."""
        return len(self.rows)

    def score(self, model: OnnxModel) -> float:
        """The task's first metric."""
        asked = replace(self.predictor, model=model)
        return next(iter(asked.score(self.rows, list(asked.table(self.rows))).values()))


@dataclass(frozen=True)
class MaskedTexts:
    """Texts with some tokens masked."""

    examples: Sequence[Example]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: SubwordTokenizer, *, longest: int) -> Self:
        """Masked at deterministic positions."""
        examples = []
        for number, ids in enumerate(_encoded(texts, tokenizer, longest=longest)):
            places = [
                place
                for place in range(1, len(ids) - 1)
                if address("masked", number, place) % 100 < MASKED_PERCENT
            ] or [1]
            hidden = np.array(ids)
            hidden[places] = tokenizer.mask_id
            asked = [ids[place] for place in places]
            examples.append(
                Example(hidden.tolist(), masked_lm_positions=places, masked_lm_ids=asked)
            )
        return cls(examples)

    @property
    def size(self) -> int:
        """Texts."""
        return len(self.examples)

    def score(self, model: OnnxModel) -> float:
        """Top-1 accuracy on the masked tokens."""
        right = asked = 0
        for _, batch in _batches(self.examples):
            logits_MV = model(batch, batch.masked_lm_positions)
            right += int((logits_MV.argmax(-1) == batch.masked_lm_ids).sum())
            asked += len(batch.masked_lm_ids)
        return right / asked


@dataclass(frozen=True)
class TextHalves:
    """First halves of texts, then the second halves in the same order."""

    examples: Sequence[Example]

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: SubwordTokenizer, *, longest: int) -> Self:
        """Each text split in the middle, between words."""
        words = [text.split() for text in texts]
        halves = [" ".join(one[: len(one) // 2]) for one in words]
        halves += [" ".join(one[len(one) // 2 :]) for one in words]
        return cls([Example(ids) for ids in _encoded(halves, tokenizer, longest=longest)])

    @property
    def size(self) -> int:
        """Halves."""
        return len(self.examples)

    def score(self, model: OnnxModel) -> float:
        """nDCG@10 of retrieving the second half by the first, among all second halves."""
        vectors: dict[int, Tensor] = {}
        for rows, batch in _batches(self.examples):
            states = model(batch, None)
            if states.ndim == 3:  # an encoder alone: the mean of its tokens
                inside_BS = padded(torch.ones_like(batch.input_ids), batch)
                states = (states * inside_BS[:, :, None]).sum(1) / inside_BS.sum(1, keepdim=True)
            vectors.update(zip(rows, functional.normalize(states, dim=-1), strict=True))
        every_NH = torch.stack([vectors[row] for row in range(self.size)]).numpy()
        queries, passages = np.split(every_NH, 2)
        ranked = best_passages(queries, passages)
        relevant = [{row} for row in range(len(queries))]
        return measure_ranking(["ndcg@10"], ranked, relevant)["ndcg@10"]


def measured(folder: Path, graphs: Sequence[Path], *, sample: str = "") -> list[Measured]:
    """The graphs of an exported `folder` on `sample`: a task's labelled file, or lines of text.

    By default a task's own dev file, or the descriptions of the installed packages.
    """
    models = {graph: OnnxModel(graph) for graph in graphs}
    exam: LabelledRows | MaskedTexts | TextHalves
    config, tokenizer = read_shape(folder)
    source = open_source(folder)
    if "cloze_task" in source.read_table(CONFIG) and MODULES not in source.names:
        exam = LabelledRows.of(folder, sample)
    else:
        texts, longest = _texts(sample), config.max_position_embeddings
        exam_of = MaskedTexts if models[graphs[0]].output == "logits" else TextHalves
        exam = exam_of.of(texts, tokenizer, longest=longest)
    found: dict[Path, Measured] = {}
    for _ in range(ROUNDS):
        for graph, model in models.items():
            model.seconds = 0.0
            now = Measured(graph, exam.score(model), exam.size / model.seconds)
            best = found.get(graph, now)
            found[graph] = max(now, best, key=lambda one: one.texts_per_second)
    return [*found.values()]


def _texts(sample: str) -> list[str]:
    """Lines that are neither short nor long."""
    if sample:
        lines = Path(sample).read_text("utf-8", "replace").splitlines()
    else:
        said = (one.metadata.json.get("description") for one in metadata.distributions())
        lines = [line for text in said for line in str(text).splitlines()]
    found = [line for line in lines if FEWEST_WORDS <= len(line.split()) <= MOST_WORDS]
    if len(found) < FEWEST_TEXTS:
        raise UsageError(
            f"{sample or 'the installed packages'}: {len(found)} lines of {FEWEST_WORDS} to "
            f"{MOST_WORDS} words, by which the graphs are scored; name a file of some hundred: "
            "--sample FILE"
        )
    return sorted(set(found), key=lambda line: address("sample", line))[:TEXTS]


def _encoded(
    texts: Sequence[str], tokenizer: SubwordTokenizer, *, longest: int
) -> Iterator[list[int]]:
    encodings = tokenizer.backend.encode_batch_fast(
        [well_formed(text) for text in texts], add_special_tokens=False
    )
    for encoding in encodings:
        yield [tokenizer.cls_id, *encoding.ids[: longest - 2], tokenizer.sep_id]


def _batches(examples: Sequence[Example]) -> Iterator[tuple[list[int], PackedBatch]]:
    lengths = np.array([len(example.input_ids) for example in examples])
    for rows in batches_by_length(lengths, token_budget=TOKENS_AT_ONCE):
        yield rows.tolist(), pack([examples[row] for row in rows])
