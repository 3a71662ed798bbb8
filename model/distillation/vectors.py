"""Vectors of texts: the encoder that makes them, teacher or student, and what a student learns.

Two losses: one minus the cosine, and the divergence between the softmax over the cosines with the
other texts of the batch, the student's from the teacher's. The first makes vectors that can be
compared with the teacher's, the second is about what they are used for. A narrower student learns
them on the directions in which the teacher's vectors vary most.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.model.data.batch import PackedBatch, on
from cloze.model.encoder.models import Encoder
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.hugging_face.sentence_modules import NORMALIZE, SentenceModules
from cloze.model.inference.load import read_sentence_encoder
from cloze.model.tasks.features import Places, Sequences

# B texts of a batch, N of all lessons, H width of the teacher's vectors, W of the student's


class VectorModel(nn.Module):
    """Vectors of length 1 that compare texts by their cosines; gradients reach the encoder."""

    def __init__(self, encoder: Encoder, modules: SentenceModules) -> None:
        super().__init__()
        self.encoder = encoder
        self.how = modules

    def forward(self, batch: PackedBatch, dropout: int | None = None) -> Tensor:
        """[B, D] fp32."""
        vectors_BD = self.how.vectors(self.encoder(batch, dropout), batch)
        return functional.normalize(vectors_BD, dim=-1)


def read_vector_teacher(location: str) -> EncoderFiles:
    """The encoder whose vectors are learnt; refuses one that was trained to do something else."""
    files = read_sentence_encoder(location)
    # With modules.json it is a sentence encoder, whatever other heads the file holds.
    if files.ignored and files.modules is None:
        raise UsageError(
            f"{location}: has {files.ignored[0]}, a task's head, and no modules.json: its vectors "
            "are not what it was trained for; expected a sentence encoder or a masked language "
            "model, or, for a task that was fine-tuned here, --task"
        )
    return files


def vector_modules(files: EncoderFiles) -> SentenceModules:
    """How the encoder's vectors are made: by its own modules, or as the mean over all tokens."""
    positions = files.config.max_position_embeddings
    return files.modules or SentenceModules(("mean",), (NORMALIZE,), positions)


def refuse_fixed_width(modules: SentenceModules) -> None:
    """Refuse a narrower student of a teacher whose modules have weights of its width."""
    if any(step.tensors for step in modules.steps):
        raise UsageError(
            "width: the teacher's modules.json has a module with weights, whose width is fixed; "
            "leave it out, and choose fewer layers"
        )


class VectorLessons:
    """What a student learns of its teacher's vectors, by text."""

    names = ("cosine", "ranking")

    def __init__(
        self, sequences: Sequences, targets_NW: Tensor, *, weight: float, temperature: float
    ) -> None:
        """`targets_NW`: of length 1, float16. `weight`: of the second loss."""
        self.sequences = sequences
        self.targets_NW = targets_NW
        self.weights = (1.0, weight)
        self.temperature = temperature

    def __len__(self) -> int:
        return len(self.sequences)

    def losses(self, computed: nn.Module, chosen: Places, *, step: int) -> tuple[Tensor, Tensor]:
        """The cosine loss and the ranking loss of a batch."""
        device = next(computed.parameters()).device
        vectors_BW = computed(self.sequences.batch(chosen).to(device), step)
        targets_BW = on(device, self.targets_NW[torch.from_numpy(chosen)]).float()
        return losses(vectors_BW, targets_BW, temperature=self.temperature)


def targets_of(vectors_NH: Tensor, *, width: int) -> Tensor:
    """[N, W] the vectors that the student learns, of length 1.

    For a narrower student, the teacher's in the directions in which they vary most.
    """
    if width == vectors_NH.shape[1]:
        return vectors_NH
    # The second moment, as for the weights (students.py): of all choices of so many directions,
    # these keep most of the products of vectors with each other.
    exact_NH = vectors_NH.float()
    _, basis_HH = torch.linalg.eigh((exact_NH.T @ exact_NH).double())
    narrow_NW = exact_NH @ basis_HH[:, -width:].float()
    return functional.normalize(narrow_NW, dim=-1).half()


def losses(vectors_BW: Tensor, targets_BW: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """The cosine loss and the ranking loss of a batch; both have length 1."""
    cosine = (1 - (vectors_BW * targets_BW).sum(-1)).mean()
    # A text is not compared with itself, which would be first in every ranking.
    itself_BB = torch.eye(len(vectors_BW), dtype=torch.bool, device=vectors_BW.device)

    def ranked(one_BW: Tensor) -> Tensor:
        scores_BB = one_BW @ one_BW.T / temperature
        # A large number rather than infinity, of which the divergence would be 0 · infinity.
        return scores_BB.masked_fill(itself_BB, -1e9).log_softmax(-1)

    ranking = functional.kl_div(
        ranked(vectors_BW), ranked(targets_BW), log_target=True, reduction="batchmean"
    )
    return cosine, ranking
