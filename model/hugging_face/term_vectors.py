"""Term vectors: what the words of a collection add to the vector of a text.

In:  the tokens of texts, and their vectors by the encoder.
Out: vectors of length 1, moved towards the sum of the vectors of their terms; the files of a module
     for sentence-transformers.

A term is a token of the encoder; how often a text has it does not count. They are fitted by
model/retrieval/term_fit.py. The less of a text the collection has, weighed by rarity, the less it
moves: the known words of a text about something new lead to what was there before. No module of
sentence-transformers adds to another's vector, so the files contain the few lines that do, which it
runs with `trust_remote_code=True`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast

import torch
from pydantic import JsonValue
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.errors import IntegrityError
from cloze.model.data.batch import PackedBatch, on

# T tokens of a batch, B sequences, N different tokens of each, K terms, D width

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
    """normalize(vector + weight * known ** 2 * normalize(sum of the vectors of its terms))

    known: the share of the terms that have a vector, by the squares of their rarities.
    """

    def __init__(self, ids, vectors, rarities, weight, rarity):
        super().__init__()
        self.register_buffer("ids", ids)
        self.register_buffer("vectors", vectors)
        self.register_buffer("rarities", rarities)
        self.weight = weight
        self.rarity = rarity  # of terms without a vector

    def forward(self, features, **_):
        # Sorted, so that a term that occurs again stands behind itself, and is left out.
        tokens = features["input_ids"].sort(dim=1).values
        first = torch.ones_like(tokens, dtype=torch.bool)
        first[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
        place = torch.searchsorted(self.ids, tokens.contiguous()).clamp(max=len(self.ids) - 1)
        here = self.ids[place] == tokens
        counts = (first & here).to(self.vectors.dtype)
        sums = (counts[..., None] * self.vectors[place]).sum(1)
        ours = (counts * self.rarities[place] ** 2).sum(1)
        others = (first & ~here).sum(1) * self.rarity**2
        known = ours / (ours + others).clamp(min=1e-9)
        added = self.weight * known[:, None] ** 2 * functional.normalize(sums, dim=-1)
        vectors = functional.normalize(features["sentence_embedding"], dim=-1) + added
        features["sentence_embedding"] = functional.normalize(vectors, dim=-1)
        return features

    def save(self, output_path, *args, **kwargs):
        with open(os.path.join(output_path, "config.json"), "w") as file:
            json.dump({"weight": self.weight, "rarity": self.rarity}, file)
        tensors = {"ids": self.ids, "vectors": self.vectors, "rarities": self.rarities}
        save_file(tensors, os.path.join(output_path, "model.safetensors"))

    @classmethod
    def load(cls, model_name_or_path, subfolder="", **kwargs):
        folder = os.path.join(model_name_or_path, subfolder)
        with open(os.path.join(folder, "config.json")) as file:
            settings = json.load(file)
        tensors = load_file(os.path.join(folder, "model.safetensors"))
        return cls(**tensors, **settings)
'''


@dataclass(frozen=True)
class TermVectors:
    """A module after the others."""

    kind: ClassVar[Literal["TermVectors"]] = "TermVectors"

    ids_K: Tensor
    """int64, ascending: the tokens that are known, special ones among them."""

    vectors_KD: Tensor
    """float32; of special tokens 0"""

    rarities_K: Tensor
    """float32: the logarithm by which BM25 weighs a term; of special tokens 0."""

    weight: float
    """Length of what is added to a vector of length 1, if all terms of the text are known."""

    rarity: float
    """Of all other tokens."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """By name in the file."""
        return {"ids": self.ids_K, "vectors": self.vectors_KD, "rarities": self.rarities_K}

    @property
    def settings(self) -> dict[str, float]:
        """The others."""
        return {"weight": self.weight, "rarity": self.rarity}

    def __call__(self, vectors_BD: Tensor, batch: PackedBatch) -> Tensor:
        """The vectors of the batch's sequences after this module, of length 1."""
        device, terms = vectors_BD.device, len(self.ids_K)
        ids_K, vectors_KD, squares_K = (
            on(device, one) for one in (self.ids_K, self.vectors_KD, self.rarities_K**2)
        )
        tokens_T = on(device, batch.input_ids).long()
        lengths_B = on(device, torch.from_numpy(batch.lengths))
        sequence_T = torch.repeat_interleave(lengths_B, output_size=batch.tokens)
        # Each token of a sequence once.
        every = int(torch.maximum(tokens_T.max(), ids_K.max())) + 1
        pairs_N = torch.unique(sequence_T * every + tokens_T)
        sequence_N, tokens_N = pairs_N // every, pairs_N % every
        place_N = torch.searchsorted(ids_K, tokens_N).clamp(max=terms - 1)
        here_N = ids_K[place_N] == tokens_N
        sums_BD = torch.zeros_like(vectors_BD)
        sums_BD.index_add_(0, sequence_N[here_N], vectors_KD[place_N[here_N]])
        known_N = here_N * squares_K[place_N]
        every_N = known_N + ~here_N * self.rarity**2
        known_B, every_B = (
            torch.zeros_like(sums_BD[:, 0]).index_add_(0, sequence_N, one)
            for one in (known_N, every_N)
        )
        share_B = known_B / every_B.clamp(min=1e-9)
        added_BD = self.weight * share_B[:, None] ** 2 * functional.normalize(sums_BD, dim=-1)
        return functional.normalize(functional.normalize(vectors_BD, dim=-1) + added_BD, dim=-1)

    def renumbered(self, kept_V: Tensor) -> "TermVectors":
        """For a vocabulary of the tokens `kept_V`, ascending ids, alone."""
        place_K = torch.searchsorted(kept_V, self.ids_K).clamp(max=len(kept_V) - 1)
        is_kept_K = kept_V[place_K] == self.ids_K
        return replace(
            self,
            ids_K=place_K[is_kept_K],
            vectors_KD=self.vectors_KD[is_kept_K],
            rarities_K=self.rarities_K[is_kept_K],
        )

    def width(self, before: int) -> int:
        """Width of its vectors, from that of its inputs."""
        return before

    def files(self, folder: str, *, width: int) -> dict[str, bytes]:
        """Its files; `width` is that of its inputs."""
        assert width == self.vectors_KD.shape[1], "terms have vectors as wide as the encoder's"
        return {
            f"{folder}/config.json": json.dumps(self.settings).encode(),
            f"{folder}/model.safetensors": save(dict(self.tensors), metadata={"format": "pt"}),
            CODE_NAME: CODE.encode(),
        }

    @classmethod
    def of(
        cls, settings: Mapping[str, JsonValue], tensors: Mapping[str, Tensor], *, where: str
    ) -> "TermVectors":
        """From the contents of its files in the folder `where`."""
        weight, rarity = settings.get("weight"), settings.get("rarity")
        names = {"ids", "vectors", "rarities"}
        if set(tensors) != names or not all(isinstance(x, int | float) for x in (weight, rarity)):
            raise IntegrityError(
                f"{where}: weight {weight!r}, rarity {rarity!r} and tensors {', '.join(tensors)}; "
                f"expected two numbers, {', '.join(sorted(names))}; copy the model again, or adapt "
                "again if an earlier version made it"
            )
        ids_K, vectors_KD = tensors["ids"].to(torch.int64), tensors["vectors"].to(torch.float32)
        rarities_K = tensors["rarities"].to(torch.float32)
        counts = {len(ids_K), len(vectors_KD), len(rarities_K)}
        if len(counts) > 1 or not len(ids_K) or (ids_K.diff() <= 0).any():
            raise IntegrityError(
                f"{where}: {len(ids_K)} ids, {len(vectors_KD)} vectors and {len(rarities_K)} "
                "rarities; expected as many of each, at least one, the ids ascending; copy the "
                "model again"
            )
        return cls(
            ids_K.contiguous(),
            vectors_KD.contiguous(),
            rarities_K.contiguous(),
            float(cast(float, weight)),
            float(cast(float, rarity)),
        )
