"""Linear heads on sentence vectors, for tasks with few labels.

In:  a problem whose head reads whole sequences, an encoder.
Out: vectors of length 1, computed once per text; a head fitted to those of the training rows:
     logistic regression, ridge regression or class means.

Vectors are shifted to mean 0 and scaled to a mean squared length of 1 before a head is fitted to
them, so that its penalty means the same for every encoder; shift and scale become part of the head.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cloze.model.config import ApproachName
from cloze.model.encoder.models import Encoder, SentenceModel, TaskModel
from cloze.model.encoder.precision import computed_in
from cloze.model.finetune.approaches import FineTuning
from cloze.model.finetune.trainer import Advance, TrialResult, trial_result
from cloze.model.tasks.base import Problem
from cloze.model.tasks.features import Sequences, batches_by_length, tokens_at_once

# N rows, H width of a vector, L outputs

Vectors = NDArray[np.float32]
VectorPooling = Literal["mean", "cls"]

INVERSE_PENALTIES = (1.0, 5.0, 15.0)
"""C of scikit-learn, the strongest penalty first: half the squared length of the weights, divided
by it. Few rows, or labels that are hard to tell apart, want the first, 77 labels the last."""

INVERSE_PENALTY = 10.0
"""That of numbers, and of labels of which several may be true."""

PENALTY_FOLDS, PENALTY_ROWS = 4, 4000
"""Parts of the rows, and most rows, by which a penalty is chosen."""

UNSEEN = 10.0
"""The logit of a label without training rows is this much below the lowest of the others."""


class VectorCache:
    """Sentence vectors of a frozen encoder, each computed once."""

    def __init__(self, encoder: Encoder, *, pooling: VectorPooling, precision: str) -> None:
        """`encoder`: with its whole vocabulary, on the device that computes."""
        self.model = SentenceModel(encoder, pooling=pooling).eval()
        self._computed = computed_in(precision, self.model)
        self._known: dict[bytes, Vectors] = {}

    def of(self, problem: Problem, split: str) -> Vectors:
        """[N, H] vectors of length 1 of a split's sequences, in the file's order."""
        return self.of_sequences(whole_vocabulary(problem, split))

    def of_sequences(self, sequences: Sequences) -> Vectors:
        """[N, H] vectors of length 1, of ids of the whole vocabulary."""
        keys = [sequence_key(sequences, row) for row in range(len(sequences))]
        # Backwards, so that of equal sequences the first row stays in the dictionary.
        first = {key: row for row, key in reversed(list(enumerate(keys))) if key not in self._known}
        missing = np.array(sorted(first.values()), np.int64)
        device = next(self.model.parameters()).device
        budget = tokens_at_once(device)
        with torch.inference_mode():
            # Not the rows of the split in order: a batch of similar lengths pads nothing, and the
            # results are put back by key.
            for places in batches_by_length(sequences.lengths[missing], token_budget=budget):
                rows = missing[places]
                if not len(rows):
                    continue
                found = self._computed(sequences.batch(rows).to(device), None, None).cpu().numpy()
                self._known |= {keys[row]: one for row, one in zip(rows, found, strict=True)}
        return np.stack([self._known[key] for key in keys])


def whole_vocabulary(problem: Problem, split: str) -> Sequences:
    """A split's sequences with the tokenizer's ids, whether the vocabulary is pruned or not."""
    sequences = problem.sequences[split]
    if problem.used_ids is None:
        return sequences
    ids = problem.used_ids[sequences.input_ids.values].astype(np.int32)
    given = sequences.input_ids
    return Sequences(type(given)(ids, given.offsets), sequences.segment_a_lengths)


def sequence_key(sequences: Sequences, row: int) -> bytes:
    """What tells a sequence from every other."""
    # Ids alone do not tell a text from a pair whose ids are the same: the border counts, too.
    border = int(sequences.segment_a_lengths[row]).to_bytes(4)
    return sequences.input_ids.row(row).tobytes() + border


@dataclass(frozen=True)
class LinearHead:
    """Logits of a vector."""

    weight: NDArray[np.float64]
    """[L, H]."""

    bias: NDArray[np.float64]
    """[L]."""

    def __call__(self, vectors: Vectors) -> NDArray[np.float32]:
        """[N, L]."""
        logits: NDArray[np.float32] = (vectors @ self.weight.T + self.bias).astype(np.float32)
        return logits

    def install(self, model: TaskModel) -> None:
        """Make it the head of `model`."""
        model.head.install(torch.from_numpy(self.weight), torch.from_numpy(self.bias))


def fit_head(
    problem: Problem,
    vectors: Vectors,
    *,
    means: bool = False,
    inverse_penalty: float | None = None,
) -> LinearHead:
    """The head fitted to the training rows' vectors; `means`: to the mean of each class.

    inverse_penalty: that of `chosen_penalty` for these rows or more; None: it is chosen here.
    """
    targets = problem.targets("train", np.arange(len(vectors)))
    # The head is fitted to z = (x - shift) / scale, and then rewritten for x itself: w·z + b = (w /
    # scale)·x + (b - (w / scale)·shift). Nothing but a linear layer is saved.
    scaled, shift, scale = _standardised(vectors)
    if means:
        weight, bias = _class_means(problem, scaled, targets)
    else:
        penalty = inverse_penalty or _penalty(problem, scaled, targets)
        weight, bias = _regression(problem, scaled, targets, penalty)
    weight = weight / scale
    return LinearHead(weight, bias - weight @ shift)


def chosen_penalty(problem: Problem, vectors: Vectors) -> float:
    """The inverse penalty for the training rows' vectors, for `fit_head` on parts of them.

    Logits of a strong penalty are several times smaller than those of a weak one. If every fold of
    a cross-validation chose its own, the temperature fitted to their logits would be that of
    neither, and wrong for the model trained on all rows.
    """
    targets = problem.targets("train", np.arange(len(vectors)))
    return _penalty(problem, _standardised(vectors)[0], targets)


def _standardised(vectors: Vectors) -> tuple[Vectors, NDArray[np.float64], float]:
    """The vectors around 0, of mean squared length 1; the shift and the scale."""
    shift = vectors.mean(0, dtype=np.float64)
    centred = vectors - shift
    scale = math.sqrt(float((centred**2).sum(-1).mean())) or 1.0
    return centred / scale, shift, scale


Fitted = tuple[NDArray[np.float64], NDArray[np.float64]]


def _class_means(problem: Problem, vectors: Vectors, targets: NDArray[np.generic]) -> Fitted:
    """The nearest mean wins: half its squared distance, without the part that all labels share."""
    seen = np.unique(targets)
    # -|x - m|² / 2 = m·x - |m|² / 2 - |x|² / 2, and the last term is the same for all labels, so
    # the nearest mean is a linear head.
    means = np.stack([vectors[targets == label].mean(0) for label in seen])
    return _placed(problem.outputs, seen, means, -(means**2).sum(-1) / 2)


def _penalty(problem: Problem, vectors: Vectors, targets: NDArray[np.generic]) -> float:
    """The inverse penalty for these vectors: chosen if each text has one label."""
    if problem.predicts != "label" or problem.outputs != len(problem.labels):
        return INVERSE_PENALTY
    return inverse_penalty(vectors, targets, partial(_logistic, problem))


def _logistic(
    problem: Problem, inputs: Vectors, answers: NDArray[np.generic], inverse_penalty: float
) -> Fitted:
    """Of answers with at least two values: a row of weights for each, or one for two."""
    import sklearn.linear_model  # takes longer to import than torch; prediction needs none

    balanced = problem.config.class_weights == "balanced"
    found = sklearn.linear_model.LogisticRegression(
        C=inverse_penalty, max_iter=1000, class_weight="balanced" if balanced else None
    ).fit(inputs, answers)
    return found.coef_, found.intercept_


def _regression(
    problem: Problem, vectors: Vectors, targets: NDArray[np.generic], penalty: float
) -> Fitted:
    """Logistic regression of each label, or of all; ridge regression of numbers."""
    if problem.predicts == "number":
        import sklearn.linear_model

        ridge = sklearn.linear_model.Ridge(alpha=1 / penalty).fit(vectors, targets)
        return ridge.coef_[None], np.array([ridge.intercept_])
    if problem.predicts == "label" and problem.outputs != len(problem.labels):
        return _by_its_loss(problem, vectors, targets, penalty)
    if problem.predicts == "label":
        seen = np.unique(targets)
        weight, bias = _logistic(problem, vectors, targets, penalty)
        # One row of weights, w, says how much likelier the second label is. As two logits, -w/2 and
        # w/2 have this difference, and a model for two labels has two outputs.
        if len(seen) == 2:
            weight, bias = np.concatenate((-weight, weight)) / 2, np.concatenate((-bias, bias)) / 2
        return _placed(problem.outputs, seen, weight, bias)
    weights, biases = np.zeros((problem.outputs, vectors.shape[1])), np.zeros(problem.outputs)
    for label in range(problem.outputs):
        answers = targets[:, label]
        # No training row has the label, or all have: nothing to fit, and the answer is known.
        if len(np.unique(answers)) == 1:
            biases[label] = UNSEEN if answers[0] else -UNSEEN
        else:
            weight, bias = _logistic(problem, vectors, answers, penalty)
            weights[label], biases[label] = weight[0], bias[0]
    return weights, biases


def _by_its_loss(
    problem: Problem, vectors: Vectors, targets: NDArray[np.generic], penalty: float
) -> Fitted:
    """The head where the family's own loss and the penalty are smallest, as `start_head` binds."""
    with torch.inference_mode(False), torch.enable_grad():
        inputs, answers = torch.tensor(vectors).double(), torch.tensor(targets)
        head = nn.Linear(inputs.shape[1], problem.outputs, dtype=torch.float64)
        nn.init.zeros_(head.weight)
        problem.start_head(head)
        solver = torch.optim.LBFGS(head.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            solver.zero_grad()
            # The same penalty as scikit-learn's, whose loss is a sum over rows as well.
            found = problem.loss(head(inputs), answers) + (head.weight**2).sum() / (2 * penalty)
            torch.autograd.backward(found)
            return found

        solve: Callable[[Callable[[], Tensor]], object] = solver.step
        solve(loss)
    weight, bias = (one.detach().numpy() for one in (head.weight, head.bias))
    return weight, bias


def inverse_penalty(
    vectors: Vectors,
    targets: NDArray[np.generic],
    fit: Callable[[Vectors, NDArray[np.generic], float], Fitted],
) -> float:
    """The strongest penalty that is not clearly worse than the best, by cross-validation.

    Clearly: by two standard errors of the difference, over the same rows. So the few rows that
    cannot tell penalties apart get the strongest, which is the safest for them.
    """
    # Rows of a label stand together, and are dealt to the parts like cards.
    rows = np.argsort(targets, kind="stable")
    rows = rows[:: -(-len(rows) // PENALTY_ROWS)]
    vectors, targets = vectors[rows], targets[rows]
    part = np.arange(len(rows)) % PENALTY_FOLDS
    right = np.zeros((len(INVERSE_PENALTIES), len(rows)))
    for fold in range(PENALTY_FOLDS):
        held = part == fold
        seen = np.unique(targets[~held])
        if len(seen) < 2 or not held.any():
            continue
        for number, candidate in enumerate(INVERSE_PENALTIES):
            weight, bias = fit(vectors[~held], targets[~held], candidate)
            logits = vectors[held] @ weight.T + bias
            guesses = logits.argmax(-1) if len(seen) > 2 else (logits[:, 0] > 0).astype(np.int64)
            right[number, held] = seen[guesses] == targets[held]
    lost = right[right.mean(-1).argmax()] - right
    bound = 2 * lost.std(-1) / math.sqrt(len(rows))
    return INVERSE_PENALTIES[int((lost.mean(-1) <= bound).argmax())]


def _placed(
    outputs: int, seen: NDArray[np.generic], weight: NDArray[np.float64], bias: NDArray[np.float64]
) -> Fitted:
    """Weights of all outputs from those of the labels seen in training."""
    weights = np.zeros((outputs, weight.shape[1]))
    # A label without training rows gets weights of 0, so that only its bias speaks for it.
    biases = np.full(outputs, float(bias.min()) - UNSEEN)
    weights[seen], biases[seen] = weight, bias
    return weights, biases


class HeadTrainer:
    """A trial that fits a head to vectors; the interface of `TrialTrainer`."""

    def __init__(
        self,
        problem: Problem,
        model: TaskModel,
        vectors: Callable[[str], Vectors],
        *,
        means: bool = False,
        inverse_penalty: float | None = None,
    ) -> None:
        """`model` has the encoder that computes `vectors`, [N, H] of each split.

        inverse_penalty: as for `fit_head`.
        """
        self.problem = problem
        self._inverse_penalty = inverse_penalty
        self.approach = FineTuning(problem, model)
        self._model, self._vectors, self._means = model, vectors, means

    def missed_decay(self, result: TrialResult) -> float:
        """1: the embeddings are not trained."""
        return 1.0

    def run(self, advance: Advance) -> TrialResult:
        """Fit the head; the logits of all splits but train."""
        started = time.monotonic()
        head = fit_head(
            self.problem,
            self._vectors("train"),
            means=self._means,
            inverse_penalty=self._inverse_penalty,
        )
        head.install(self._model)
        logits = {
            split: head(self._vectors(split))
            for split in self.problem.sequences
            if split != "train"
        }
        found = trial_result(self.problem, logits)
        return TrialResult(
            0, found.scores, found.predictions, logits, seconds=time.monotonic() - started
        )


def approaches_for(problem: Problem, wanted: tuple[ApproachName, ...]) -> tuple[ApproachName, ...]:
    """Those of the wanted approaches that the problem can be trained by, the cheapest first."""
    order: tuple[ApproachName, ...] = ("class_means", "linear", "contrastive", "fine_tuning")
    # A single label has no other one to be told from.
    alone = ("class_means", "contrastive") if len(problem.labels) == 1 else ()
    possible = [name for name in problem.approaches if name not in alone]
    return tuple(name for name in order if name in wanted and name in possible)
