"""Contrastive tuning on few labels: texts of a class are to be close to each other.

In:  a problem with one label per text, the frozen encoder.
Out: the encoder with its upper layers tuned (Tunstall et al. 2022: SetFit; here over all pairs of a
     batch, by the loss of Khosla et al. 2020), and its vectors.

A label's name is one more text of its class, where names say which rows are whose: `positive` is
worth several of eight examples.

The embeddings and the first layers stay as they are. The token vectors that they give are computed
once for a text, however many steps and folds of a cross-validation meet it.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.data.batch import PackedBatch, on
from cloze.model.encoder.models import Encoder
from cloze.model.encoder.precision import computed_in
from cloze.model.finetune.approaches import split_logits
from cloze.model.finetune.sentence_heads import (
    VectorCache,
    VectorPooling,
    Vectors,
    sequence_key,
    whole_vocabulary,
)
from cloze.model.finetune.trainer import Recipe, TrialTrainer
from cloze.model.tasks.base import Problem
from cloze.model.tasks.classification import Classification
from cloze.model.tasks.features import Places, Sequences, encode, joined
from cloze.model.training.distributed import World

# B sequences, T tokens of all of them, H width of a vector

STEPS = 12
"""Steps of a tuning, or one pass over the rows if that is more. Eight gave 1.3 points less
(standard error 0.4, eleven draws of eight rows a class), and twenty no more than twelve."""

TEMPERATURE = 0.1
"""Cosines are divided by it (Khosla et al. 2020)."""

BATCH, ROWS_PER_LABEL = 64, 4
"""Rows per batch: at least so many, and so many for every label."""

FROZEN_SHARE = 1 / 6
"""Layers that stay as they are, with the embeddings. With half of them, eight rows a class of TREC
gave four points less in eight steps."""

LEAST_AGREEMENT = 0.2
"""Names of labels are trained on if the nearest name is the right one in so large a share of the
rows, beyond chance. On four draws each of eight rows a class, names gave 5 points on SST-2 and 1 on
AG (agreement .4), and cost 2 on TREC (.1), whose names are abbreviations."""

MOST_TOKENS = 1 << 18
"""Tokens whose vectors are kept: 200 MB of MiniLM's in bf16."""


class LowerLayers(nn.Module):
    """The embeddings and the first layers of an encoder."""

    def __init__(self, encoder: Encoder, depth: int) -> None:
        super().__init__()
        self.embeddings, self.layers = encoder.embeddings, encoder.layers[:depth]
        # In a tuple, it is no submodule: only what is listed above is rounded.
        self._encoder, self._depth = (encoder,), depth

    def forward(self, batch: PackedBatch) -> Tensor:
        """Vectors of all tokens, [T, H]."""
        return self._encoder[0].state_after(batch, self._depth)


class UpperLayers(nn.Module):
    """The other layers of an encoder."""

    def __init__(self, encoder: Encoder, depth: int, pooling: VectorPooling) -> None:
        super().__init__()
        self.layers, self.layer_norm = encoder.layers[depth:], encoder.layer_norm
        self._encoder, self._depth, self._pooling = (encoder,), depth, pooling

    def forward(self, state_TH: Tensor, batch: PackedBatch) -> Tensor:
        """Vectors of length 1, [B, H] fp32, from what the lower layers give."""
        (encoder,) = self._encoder
        # Without dropout: in so few steps, its noise costs more than it prevents.
        hidden_TH = encoder.continued(state_TH, batch, self._depth)
        pooled_BH = encoder.pooled(hidden_TH, batch, pooling=self._pooling)
        return functional.normalize(pooled_BH.float(), dim=-1)


class FrozenLayers:
    """What the lower layers of an encoder make of texts; of the first ones, it is kept."""

    def __init__(self, encoder: Encoder, *, pooling: VectorPooling, precision: str) -> None:
        """`encoder`: with its whole vocabulary, on the device that computes."""
        self.encoder = encoder
        self.pooling: VectorPooling = pooling
        self.precision = precision
        self.depth = round(FROZEN_SHARE * len(encoder.layers))
        self.lower = LowerLayers(encoder, self.depth).eval()
        self._computed = computed_in(precision, self.lower)
        self._known: dict[bytes, Tensor] = {}
        self._tokens = 0

    def of(self, sequences: Sequences, rows: Places) -> Tensor:
        """[T, H] of these sequences, one after the other."""
        keys = [sequence_key(sequences, row) for row in rows.tolist()]
        found = {key: self._known[key] for key in keys if key in self._known}
        missing = rows[[key not in found for key in keys]]
        if len(missing):
            device = next(self.encoder.parameters()).device
            # Not in inference mode, even if the caller is: autograd refuses what is made there, and
            # a text held out in one fold is trained on in the next.
            with torch.inference_mode(False), torch.no_grad():
                states = self._computed(sequences.batch(missing).to(device))
            parts = states.split(sequences.lengths[missing].tolist())
            for row, part in zip(missing.tolist(), parts, strict=True):
                key = sequence_key(sequences, row)
                found[key] = part
                if key not in self._known and self._tokens + len(part) <= MOST_TOKENS:
                    self._tokens += len(part)
                    # A copy: a part would keep the vectors of the whole batch.
                    self._known[key] = part.clone()
        return torch.cat([found[key] for key in keys])


class UpperTuning:
    """An approach: the upper layers are trained, on what the lower layers give."""

    def __init__(self, problem: Problem, frozen: FrozenLayers, trained: Sequences) -> None:
        """The upper layers are copied, and the lower ones shared with the frozen encoder.

        trained: the training rows, and more after them.
        """
        shared = {id(parameter): parameter for parameter in frozen.lower.parameters()}
        self.encoder: Encoder = copy.deepcopy(frozen.encoder, shared)
        self.module: nn.Module = UpperLayers(self.encoder, frozen.depth, frozen.pooling)
        self.computed = computed_in(frozen.precision, self.module)
        self._frozen = frozen
        self._sequences = {split: whole_vocabulary(problem, split) for split in problem.sequences}
        self._sequences["train"] = trained

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """Vectors of these sequences, [B, H]."""
        sequences = self._sequences[split]
        state_TH = self._frozen.of(sequences, rows)
        vectors_BH: Tensor = self.computed(state_TH, sequences.batch(rows).to(state_TH.device))
        return vectors_BH


class Contrast(Classification):
    """The training texts, and names of labels, are to be close to those of their class."""

    joint = True

    def __init__(self, problem: Problem, names: Sequences | None) -> None:
        """Its texts are not read again; `names`: of all labels, or of none."""
        # A view with another loss: reading and encoding again would double the time of small tasks.
        self.__dict__.update(problem.__dict__)
        texts = whole_vocabulary(problem, "train")
        targets = problem.targets("train", np.arange(len(texts)))
        if names is not None:
            texts = joined(texts, names)
            targets = np.concatenate((targets, np.arange(len(names))))
        self.used_ids = None
        self.sequences = {"train": texts}
        self._targets = {"train": targets}

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Summed over rows: -log of the share of their class among all others, by similarity."""
        targets = on(logits.device, targets)
        # A row is always most similar to itself; it must be neither an answer nor an alternative.
        others = ~torch.eye(len(logits), dtype=torch.bool, device=logits.device)
        alike = (targets[:, None] == targets[None]) & others
        cosines = (logits @ logits.T / TEMPERATURE).masked_fill(~others, -math.inf)
        logs = functional.log_softmax(cosines, dim=-1).masked_fill(~alike, 0.0)
        # The mean over a row's class, so that frequent classes do not dominate the sum. A row that
        # is alone in its class in this batch has nothing to come closer to, and counts 0.
        counts = alike.sum(-1)
        return -(logs.sum(-1) / counts.clamp_min(1)).sum()

    def recipe(self, recipe: Recipe) -> Recipe:
        """`recipe` with the batches and passes of contrastive tuning."""
        rows = self.units("train")
        # Every row is compared with all others of its batch, so batches are as large as a class
        # needs to meet itself, and the number of steps follows from them.
        size = min(rows, max(BATCH, ROWS_PER_LABEL * len(self.labels)))
        passes = max(1, round(STEPS / -(-rows // size)))
        task = recipe.task.model_copy(update={"batch_size": size, "epochs": passes})
        return replace(recipe, task=task, shortened=(), deadline=None)


def telling_names(
    problem: Problem, vectors: VectorCache, tokenizer: SubwordTokenizer
) -> Sequences | None:
    """The labels' names, if the encoder finds the classes of the training rows by them; else None.

    tokenizer: that of the whole vocabulary.
    """
    texts = problem.sequences["train"]
    # What relates two texts, `entailment`, is like neither of them.
    if (texts.segment_a_lengths < texts.lengths).any():
        return None
    spelt = [name.replace("_", " ").replace("-", " ") for name in problem.labels]
    names = encode(tokenizer, spelt, max_seq_length=problem.config.max_seq_length)
    return names if agreement(problem, vectors, names) >= LEAST_AGREEMENT else None


def agreement(problem: Problem, vectors: VectorCache, names: Sequences) -> float:
    """How often the name nearest to a training row is that of its label; 0: by chance, 1: always.

    The mean over labels, so that the name of a large class is worth no more than others
    (scikit-learn's `balanced_accuracy_score(adjusted=True)`).
    """
    cosines = vectors.of(problem, "train") @ vectors.of_sequences(names).T
    targets = problem.targets("train", np.arange(len(cosines)))
    right = cosines.argmax(-1) == targets
    found = float(np.mean([right[targets == label].mean() for label in np.unique(targets)]))
    chance = 1.0 / len(names)
    return (found - chance) / (1.0 - chance)


def tuned_by_contrast(
    problem: Problem, frozen: FrozenLayers, recipe: Recipe, world: World, names: Sequences | None
) -> tuple[Encoder, Callable[[str], Vectors]]:
    """An encoder for which the training texts of a class are close; the vectors of a split.

    names: those of the labels, to train on as well.
    """
    view = Contrast(problem, names)
    approach = UpperTuning(problem, frozen, view.sequences["train"])
    TrialTrainer(view, approach, view.recipe(recipe), world).run(lambda steps: None)
    return approach.encoder, partial(split_logits, problem, approach)
