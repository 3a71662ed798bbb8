"""Term vectors: what the words of a collection add to the vector of a text.

In:  the tokens of texts, and their vectors by the encoder.
Out: vectors of length 1, moved towards the sum of the vectors of their terms; the files of a module
     for sentence-transformers.

A term is a token of the encoder; how often a text has it does not count. They are fitted by
model/retrieval/term_fit.py. No module of sentence-transformers adds to another's vector, so the
files contain the few lines that do, which it runs with `trust_remote_code=True`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import JsonValue
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.errors import IntegrityError
from cloze.model.data.batch import PackedBatch, on

# T tokens of a batch, B sequences, K terms, D width of a vector

TYPE = "term_vectors.TermVectors"
"""Of the module, in modules.json: the file beside it, and its class."""

CODE_NAME = "term_vectors.py"

CODE = '''\
"""Adds the vectors of a text's terms to its own; loaded by sentence-transformers.

    SentenceTransformer(FOLDER, trust_remote_code=True)
"""

import json
import os

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional


class TermVectors(torch.nn.Module):
    """normalize(vector + weight * normalize(sum of the vectors of its different terms))"""

    def __init__(self, ids, vectors, weight):
        super().__init__()
        self.register_buffer("ids", ids)
        self.register_buffer("vectors", vectors)
        self.weight = weight

    def forward(self, features, **_):
        # Sorted, so that a term that occurs again stands behind itself, and is left out.
        tokens = features["input_ids"].sort(dim=1).values
        first = torch.ones_like(tokens, dtype=torch.bool)
        first[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        place = torch.searchsorted(self.ids, tokens.contiguous()).clamp(max=len(self.ids) - 1)
        counts = (first & (self.ids[place] == tokens)).to(self.vectors.dtype)
        sums = (counts[..., None] * self.vectors[place]).sum(1)
        vectors = functional.normalize(features["sentence_embedding"], dim=-1)
        vectors = vectors + self.weight * functional.normalize(sums, dim=-1)
        features["sentence_embedding"] = functional.normalize(vectors, dim=-1)
        return features

    def save(self, output_path, *args, **kwargs):
        with open(os.path.join(output_path, "config.json"), "w") as file:
            json.dump({"weight": self.weight}, file)
        tensors = {"ids": self.ids, "vectors": self.vectors}
        save_file(tensors, os.path.join(output_path, "model.safetensors"))

    @classmethod
    def load(cls, model_name_or_path, subfolder="", **kwargs):
        folder = os.path.join(model_name_or_path, subfolder)
        with open(os.path.join(folder, "config.json")) as file:
            weight = json.load(file)["weight"]
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        return cls(tensors["ids"], tensors["vectors"], weight)
'''


@dataclass(frozen=True)
class TermVectors:
    """A module after the others."""

    kind: ClassVar[Literal["TermVectors"]] = "TermVectors"

    ids_K: Tensor
    """int64, ascending: the tokens that have a vector."""

    vectors_KD: Tensor
    """float32"""

    weight: float
    """Length of what is added to a vector of length 1."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """By name in the file."""
        return {"ids": self.ids_K, "vectors": self.vectors_KD}

    def __call__(self, vectors_BD: Tensor, batch: PackedBatch) -> Tensor:
        """The vectors of the batch's sequences after this module, of length 1."""
        device, terms = vectors_BD.device, len(self.ids_K)
        ids_K, vectors_KD = on(device, self.ids_K), on(device, self.vectors_KD)
        tokens_T = on(device, batch.input_ids)
        lengths_B = on(device, torch.from_numpy(batch.lengths))
        sequence_T = torch.repeat_interleave(lengths_B, output_size=batch.tokens)
        place_T = torch.searchsorted(ids_K, tokens_T).clamp(max=terms - 1)
        is_term_T = ids_K[place_T] == tokens_T
        # Each term of a sequence once.
        pairs = torch.unique((sequence_T * terms + place_T)[is_term_T])
        empty_BD = torch.zeros_like(vectors_BD)
        sums_BD = empty_BD.index_add(0, pairs // terms, vectors_KD[pairs % terms])
        added_BD = self.weight * functional.normalize(sums_BD, dim=-1)
        return functional.normalize(functional.normalize(vectors_BD, dim=-1) + added_BD, dim=-1)

    def renumbered(self, kept_V: Tensor) -> "TermVectors":
        """For a vocabulary of the tokens `kept_V`, ascending ids, alone."""
        place_K = torch.searchsorted(kept_V, self.ids_K).clamp(max=len(kept_V) - 1)
        is_kept_K = kept_V[place_K] == self.ids_K
        return TermVectors(place_K[is_kept_K], self.vectors_KD[is_kept_K], self.weight)

    def width(self, before: int) -> int:
        """Width of its vectors, from that of its inputs."""
        return before

    def files(self, folder: str, *, width: int) -> dict[str, bytes]:
        """Its files; `width` is that of its inputs."""
        assert width == self.vectors_KD.shape[1], "terms have vectors as wide as the encoder's"
        return {
            f"{folder}/config.json": json.dumps({"weight": self.weight}).encode(),
            f"{folder}/model.safetensors": save(dict(self.tensors), metadata={"format": "pt"}),
            CODE_NAME: CODE.encode(),
        }

    @classmethod
    def of(
        cls, settings: Mapping[str, JsonValue], tensors: Mapping[str, Tensor], *, where: str
    ) -> "TermVectors":
        """From the contents of its files in the folder `where`."""
        weight = settings.get("weight")
        if set(tensors) != {"ids", "vectors"} or not isinstance(weight, int | float):
            raise IntegrityError(
                f"{where}: weight {weight!r} and tensors {', '.join(tensors)}; expected a number, "
                "ids and vectors; copy the model again"
            )
        ids_K, vectors_KD = tensors["ids"].to(torch.int64), tensors["vectors"].to(torch.float32)
        if len(ids_K) != len(vectors_KD) or not len(ids_K) or (ids_K.diff() <= 0).any():
            raise IntegrityError(
                f"{where}: {len(ids_K)} ids and {len(vectors_KD)} vectors; expected as many of "
                "both, at least one, the ids ascending; copy the model again"
            )
        return cls(ids_K.contiguous(), vectors_KD.contiguous(), float(weight))
