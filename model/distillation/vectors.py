"""An encoder with the modules that make one vector of a text, teacher or student."""

from torch import Tensor, nn
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.model.data.batch import PackedBatch
from cloze.model.encoder.models import Encoder
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.hugging_face.sentence_modules import NORMALIZE, SentenceModules


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
