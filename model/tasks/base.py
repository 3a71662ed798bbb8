"""The interface between task families and trials.

In:  a task's configuration, its tables, a tokenizer.
Out: `Problem`: the encoder's inputs, the targets of the loss, and scoring of predictions.

A family is a subclass of `Problem` in a module of its own, registered in model/task_families.py:
classification, tagging, span, multiple_choice, retrieval, reranking. Nothing outside this folder
asks which family a problem is of (but what makes files for one): training, choosing, calibration,
prediction and export ask for its attributes, each of which says below what it decides. The head is
one linear layer of `outputs`, and the headline metric is better when it is larger.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import ApproachName, TaskConfig
from cloze.model.data.batch import ragged_indices
from cloze.model.tasks.features import Places, Ragged, Sequences
from cloze.model.tasks.files.task_table import TaskTable

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]

Prediction = JsonValue
"""The prediction for one example: a label, a number, tags, or an answer with its margin."""

Gold = str | int | float | list[str] | tuple[str, ...]
"""The label of one example; a tuple holds alternative answers."""

Predicted = Literal["label", "labels", "number", "ranking", "other"]

Details = dict[str, JsonValue]
"""Fields of an answer beside its prediction, as JSON."""

Predict = Callable[[TaskTable], list[Prediction]]
Learn = Callable[[TaskTable], Predict]
"""A baseline: from the training rows to what predicts those of any table."""


@dataclass(frozen=True)
class Exported:
    """How `transformers` reads a head."""

    architecture: str = "ForSequenceClassification"
    """The class with such a head, behind the encoder's name."""

    pipeline: str = "text-classification"
    """Its name on the hub for the kind of task."""

    problem_type: str = ""
    """`multi_label_classification`: a sigmoid for each output; `regression`: outputs as they are;
    empty: a softmax over all."""


class Problem(ABC):
    """One task's data, read and tokenised."""

    required: ClassVar[tuple[str, ...]]
    """Columns that every file must contain."""

    optional: ClassVar[tuple[str, ...]] = ()
    """Columns that a file may contain; labels are optional in test files."""

    label_column: ClassVar[str] = "label"
    """The column without which a file is unlabelled."""

    unlabelled_tests: ClassVar[bool] = True
    """Whether test rows may have placeholders for labels, which are then left out."""

    default_metrics: ClassVar[tuple[str, ...]]
    """Metrics if none are configured, the headline first."""

    uneven_metrics: ClassVar[tuple[str, ...]] = ()
    """The same if one label has most of the rows and `finetune.choose` trains; empty: no others."""

    baselines: ClassVar[Mapping[str, Learn]] = {}
    """What a model is compared with, by name."""

    predicts: ClassVar[Predicted]
    """What an example is answered with: one of `labels`, any number of them, a number, passages in
    order, or anything else. Of one or several labels there are `probabilities`, which are
    calibrated, and judged; sets of labels and intervals of numbers are made for a `confidence`.
    """

    no_details: ClassVar[Details] = {}
    """The `details` of an example whose `parts` are none."""

    approaches: ClassVar[tuple[ApproachName, ...]] = ("fine_tuning",)
    """The ways to train that suit it, of which `finetune.choose` takes one. All but fine-tuning fit
    a head to one vector for each example; `class_means` and `contrastive` need as many outputs as
    labels, and `predicts = "label"`."""

    reads: ClassVar[Literal["pooled", "tokens", "vectors"]]
    """Input of the head: the pooled [CLS] of each sequence, or the vectors of some tokens.
    `vectors`: no head; the outputs are the sequence vectors themselves.
    """

    exported_as: ClassVar[Exported] = Exported()
    """How a saved model is read elsewhere; see `output_names`."""

    joint: bool = False
    """Whether the loss couples all examples of a batch, so that it is not a sum over them."""

    has_exact_targets: bool = False
    """Whether the targets are another model's, exactly: then the encoder trains without dropout."""

    head_dropout: ClassVar[bool] = True
    """Dropout before the head (reference: 0.1 for classifiers, none for spans)."""

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """A split's table in the family's canonical form."""
        return table

    @classmethod
    def columns_of(cls, text: str) -> Details:
        """The columns of a row that is given as a plain text."""
        return {"text_a": text}

    config: TaskConfig
    sequences: dict[str, Sequences]
    outputs: int
    labels: tuple[str, ...] = ()
    used_ids: Places | None = None
    """[U] original ids of a pruned vocabulary; None: the sequences contain the original ids."""

    notes: tuple[str, ...] = ()
    """Remarks on the data for the report: rows left out, texts truncated."""

    def __init__(
        self,
        config: TaskConfig,
        tables: Mapping[str, TaskTable],
        tokenizer: SubwordTokenizer | None,
    ) -> None:
        """Read and tokenise the task's tables, one per split; without a tokenizer, check them."""
        self.config = config
        self._tables = tables
        self._read()
        self._check_metrics()
        if tokenizer is not None:
            self._encode(tokenizer)

    @abstractmethod
    def _read(self) -> None:
        """Set labels and everything else that needs no tokenizer; refuse wrong cells."""

    @abstractmethod
    def _encode(self, tokenizer: SubwordTokenizer) -> None:
        """Set `sequences` and all that the other methods need, from `_tables`."""

    def _check_metrics(self) -> None:
        """Refuse configured metrics that the family, or this task, does not have."""
        known = self.known_metrics()
        for name in self.config.metrics:
            if name not in known:
                raise UsageError(
                    f"task {self.config.name}: metric {name} is not defined for {self.config.kind}"
                    f"{self._of_labels()}; expected some of {', '.join(known)}"
                )

    def _of_labels(self) -> str:
        return f" with {len(self.labels)} labels" if self.labels else ""

    def known_metrics(self) -> tuple[str, ...]:
        """Metrics that can be configured."""
        return self.default_metrics

    def prune_vocabulary(self) -> None:
        """Renumber the token ids that occur in the data from 0; `used_ids` are the original ones.

        A token that never occurs has no gradient: its moments stay 0, and AdamW only decays its
        embedding. Leaving it out changes no other number and saves its share of every update, a
        third of them for MiniLM on MRPC. `restore_rows` puts the rows back.
        """
        ids = [sequences.input_ids.values for sequences in self.sequences.values()]
        # [U] ascending, so that a token's place among them is its new id.
        self.used_ids = used = np.unique(np.concatenate(ids)).astype(np.int64)
        place = np.zeros(int(used[-1]) + 1, np.int32)
        place[used] = np.arange(len(used))
        for split, sequences in self.sequences.items():
            pruned = Ragged(place[sequences.input_ids.values], sequences.input_ids.offsets)
            self.sequences[split] = replace(sequences, input_ids=pruned)

    def restore_rows(self, whole_VH: Tensor, trained_UH: Tensor, *, decay: float) -> Tensor:
        """[V, H] word embeddings: the trained rows, and the others of `whole_VH` times `decay`."""
        if self.used_ids is None:
            return trained_UH
        # As the optimizer would have left the rows that never had a gradient: decayed, nothing
        # else.
        restored_VH = whole_VH * decay
        restored_VH[torch.from_numpy(self.used_ids)] = trained_UH.to(restored_VH)
        return restored_VH

    def start_head(self, head: nn.Linear) -> None:
        """Change a head before it is trained: its first weights, or hooks on their gradients.

        Called wherever fine-tuning makes a head. What is saved is the linear layer alone.
        """
        return

    def begin(self, outputs: Callable[[str], Logits]) -> None:
        """Learn what the loss needs to know; called before the first step of a trial.

        `outputs`: those of a split's sequences, before any training.
        """
        return

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the head's outputs in exported models; empty: they have none."""
        return self.labels

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the headline first."""
        return self.config.metrics or self.default_metrics

    @property
    def headline(self) -> str:
        """The metric for model selection."""
        return self.metrics[0]

    def units(self, split: str) -> int:
        """Number of training examples; the batch size counts these units."""
        return len(self.sequences[split])

    def unit_tokens(self, split: str) -> Places:
        """[units] tokens in each unit's sequences."""
        return self.sequences[split].lengths

    def rows(self, split: str, units: Places) -> Places:
        """Indices of these units' sequences, in order."""
        return units

    def positions(self, split: str, rows: Places) -> Places:
        """Positions in the packed tokens of `rows` that the head reads (if `reads == "tokens"`)."""
        raise NotImplementedError(f"{type(self).__name__}: the head reads whole sequences")

    def reads_of(self, split: str) -> Places:
        """[sequences] number of rows of logits for each sequence."""
        return np.ones(len(self.sequences[split]), np.int64)

    def examples(self, split: str) -> int:
        """Number of examples in the file: its rows, unless the family counts otherwise."""
        return len(self._tables[split])

    def table(self, split: str) -> TaskTable:
        """The rows of a split."""
        return self._tables[split]

    def labelled(self, split: str) -> bool:
        """Whether the split has labels."""
        return self._tables[split].has(self.label_column)

    @abstractmethod
    def gold(self, split: str) -> Sequence[Gold]:
        """The labels of a labelled split, in the file's order."""

    @abstractmethod
    def shown(self, split: str, example: int) -> str:
        """An example as readable text."""

    def thresholded(
        self, dev: Sequence[Prediction] | None, predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """Predictions after applying the threshold tuned on dev, if the family has one."""
        return list(predictions)

    def calibrated(self, dev: Sequence[Prediction] | None) -> TaskConfig:
        """The configuration for a saved model, with its labels and threshold filled in."""
        return self.config.model_copy(update={"labels": self.labels})

    def at_temperatures(self, saved: TaskConfig, temperatures: Sequence[float]) -> TaskConfig:
        """The configuration for a saved model whose logits are divided by these temperatures."""
        return saved

    @abstractmethod
    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """The targets of these units, for `loss`."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss summed over `targets`.

        logits: [rows or positions, outputs] fp32 on any device; targets: on the CPU.
        """

    @abstractmethod
    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """One prediction per example, in the file's order, from the logits of the whole split."""

    def label_logits(self, logits: Floats) -> Floats:
        """[N, L] logits of the labels from [N, outputs]; their softmax are the probabilities.

        Only asked of a family that predicts a label; by default, outputs are labels.
        """
        return logits

    def probabilities(self, logits: Logits) -> Floats:
        """[N, L] of labels: a softmax, or if there may be several, sigmoids."""
        if self.predicts == "labels":
            return 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
        found = self.label_logits(logits.astype(np.float64))
        # Shifted by the maximum, so that no power overflows.
        powers = np.exp(found - found.max(-1, keepdims=True))
        shares: Floats = powers / powers.sum(-1, keepdims=True)
        return shares

    def labels_above(
        self, logits: Logits, thresholds: Sequence[float] | Floats | float
    ) -> list[Prediction]:
        """The labels whose probability reaches its threshold: of all, of each, or by row.

        Only asked of a family that predicts any number of labels.
        """
        raise NotImplementedError(f"{type(self).__name__}: its labels have no thresholds")

    def details(
        self, split: str, logits: Logits, predictions: Sequence[Prediction]
    ) -> list[Details]:
        """What an answer has beside each prediction: probabilities, if it is a label or several."""
        if self.predicts not in ("label", "labels") or len(self.labels) < 2:
            return [{} for _ in predictions]
        # Rounded only where shown: label sets compare the exact ones with limits.
        shares = np.round(self.probabilities(logits), 6).tolist()
        found: list[Details] = []
        for share, prediction in zip(shares, predictions, strict=True):
            named = dict(zip(self.labels, share, strict=True))
            own = {"probability": named[str(prediction)]} if self.predicts == "label" else {}
            found.append({**own, "probabilities": named})
        return found

    @abstractmethod
    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Every metric, as fractions."""


class GroupedProblem(Problem):
    """A family whose units consist of several consecutive sequences each."""

    _first: dict[str, Places]
    """[units + 1] by split: the first sequence of each unit, and the number of sequences."""

    def units(self, split: str) -> int:
        """Rows of the file."""
        return len(self._first[split]) - 1

    def unit_tokens(self, split: str) -> Places:
        """Tokens in all sequences of each unit."""
        # No unit is empty, which `reduceat` relies on.
        return np.add.reduceat(self.sequences[split].lengths, self._first[split][:-1])

    def rows(self, split: str, units: Places) -> Places:
        """All sequences of these units, unit by unit."""
        return ragged_indices(self._first[split][units], np.diff(self._first[split])[units])
