"""A trained encoder, ready to use.

In:  a directory: an artifact of ours or Hugging Face's layout.
Out: `Model`: fill masks, embed texts.

    model = load("runs/demo/encoder")
    model.fill_mask("numpy.zeros returns a new [MASK] of given shape", top_k=3)
    model.embed(["first text", "second text"]).shape      # (2, hidden size)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from artifacts import filesystem
from artifacts.errors import UsageError
from artifacts.manifest import MANIFEST_NAME
from artifacts.store import open_artifact
from artifacts.tokenizer import SubwordTokenizer
from model.config import EncoderConfig
from model.encoder.encoder import Pooling, shapes_alone
from model.encoder.pretraining import PretrainingModel
from model.hugging_face.encoder_files import EncoderFiles, read_encoder_files
from model.hugging_face.sentence_modules import MODULES, SentenceModules
from model.hugging_face.source import Source, artifact_source
from model.inference.embed import embeddings, normalized
from model.inference.fill_mask import Fill, filled

Precision = Literal["auto", "fp32", "bf16"]
"""`auto`: bf16 on a GPU, where fp32 has neither FlashAttention nor fast products; else fp32."""


@dataclass(frozen=True)
class Model:
    """A trained encoder on its device. Methods take texts and compute no gradients."""

    module: PretrainingModel
    tokenizer: SubwordTokenizer
    has_heads: bool
    """Whether masks can be filled."""

    has_pooler: bool
    """Whether `pooling="pooler"` is possible."""

    modules: SentenceModules | None = None
    """How sentence-transformers makes vectors with it, if it came from there."""

    @property
    def config(self) -> EncoderConfig:
        """Shape of the encoder."""
        return self.module.encoder.config

    def fill_mask(self, text: str, *, top_k: int = 5) -> list[list[Fill]]:
        """For each [MASK] of `text`, in order, its `top_k` likeliest word-pieces, best first."""
        return next(self.fill_masks([text], top_k=top_k))

    def fill_masks(self, texts: Iterable[str], *, top_k: int = 5) -> Iterator[list[list[Fill]]]:
        """`fill_mask` for a stream of texts, in their order, computed in batches by length."""
        if not self.has_heads:
            raise UsageError(
                "this encoder was not pre-trained as a masked language model, or came without "
                "that head, so it cannot fill masks; load one that was"
            )
        return filled(texts, self.module, self.tokenizer, top_k=top_k)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: Pooling = "mean",
        layers: tuple[int, ...] = (-1,),
        truncate: bool = False,
        normalize: bool = False,
    ) -> npt.NDArray[np.float32]:
        """One vector per text, [N, H × number of layers]; of a single string [1, …].

        `pooling`: `mean` over all tokens of a text, `cls` its first token, `pooler` the trained
        dense layer on it. `layers`: which hidden states, side by side; 0 is the embeddings, -1 the
        last layer, (-4, -3, -2, -1) the paper's best features (Table 7). Texts longer than the
        position table are refused unless `truncate`. `normalize` scales vectors to length 1.
        """
        listed = [texts] if isinstance(texts, str) else texts
        stream = self.embed_stream(
            listed, pooling=pooling, layers=layers, truncate=truncate, normalize=normalize
        )
        width = self.config.hidden_size * len(layers)
        return np.array(list(stream), np.float32).reshape(len(listed), width)

    def embed_stream(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling = "mean",
        layers: tuple[int, ...] = (-1,),
        truncate: bool = False,
        normalize: bool = False,
        longest: int = 0,
    ) -> Iterator[npt.NDArray[np.float32]]:
        """`embed` for a stream of texts: vectors [H × number of layers] in the texts' order.

        `longest`: maximum number of tokens of a text, if less than the number of positions.
        """
        if pooling == "pooler" and not self.has_pooler:
            raise UsageError("this encoder has no pooler; use pooling='cls' or 'mean'")
        vectors = embeddings(
            texts,
            self.module.encoder,
            self.tokenizer,
            pooling=pooling,
            layers=layers,
            truncate=truncate,
            longest=longest,
        )
        return normalized(vectors) if normalize else vectors

    def sentence_vectors(self, texts: Iterable[str]) -> Iterator[npt.NDArray[np.float32]]:
        """Vectors of length 1 [H], pooled as the model's modules say, else the mean.

        Texts are truncated to the modules' limit, or the number of positions.
        """
        return self.embed_stream(
            texts,
            pooling=self.modules.pooling if self.modules else "mean",
            truncate=True,
            normalize=True,
            longest=self.modules.max_seq_length if self.modules else 0,
        )


def load(
    location: str | Path | Source,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    attention: str = "auto",
) -> Model:
    """The trained encoder at `location`; `device` auto is CUDA where there is one."""
    files = read_encoder_files(_vectors_of(location))
    module = pretraining_model(files, attention=attention)
    where, chosen = placed(device, precision)
    module.to(device=where, dtype=torch.bfloat16 if chosen == "bf16" else torch.float32).eval()
    fills_masks = files.has_heads and files.objective == "masked_lm"
    return Model(module, files.tokenizer, fills_masks, files.has_pooler, files.modules)


def _vectors_of(location: str | Path | Source) -> str | Path | Source:
    """`location` itself; for a finetune artifact, its encoder trained to compare texts."""
    if isinstance(location, Source):
        return location
    directory = str(location).rstrip("/")
    if not filesystem.exists(filesystem.join(directory, MANIFEST_NAME)):
        return location
    artifact = open_artifact(directory)
    if artifact.manifest.stage != "finetune":
        return location
    names = [entry.name for entry in artifact.manifest.files if entry.name.endswith(f"/{MODULES}")]
    if len(names) != 1:
        raise UsageError(
            f"{directory}: holds {len(names)} encoders trained to compare texts, expected one; "
            "`cloze export` writes the one you mean into a folder"
        )
    return artifact_source(artifact, folder=names[0].removesuffix(MODULES))


def placed(device: str, precision: str) -> tuple[torch.device, str]:
    """Resolve `auto`: the device, and the precision used there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(device)
    if precision == "auto":
        precision = "fp32" if where.type == "cpu" else "bf16"
    return where, precision


def pretraining_model(files: EncoderFiles, *, attention: str = "auto") -> PretrainingModel:
    """The module with the files' weights, float32 on the CPU; missing ones are zero."""
    with shapes_alone():
        module = PretrainingModel(files.config, files.tokenizer.size, attention=attention)
    parameters = dict(files.parameters)
    for name, parameter in module.state_dict().items():
        parameters.setdefault(name, torch.zeros(parameter.shape))
    module.load_state_dict(parameters, assign=True)
    return module
