"""One vector per text.

In:  texts.
Out: float32 vectors, [H × number of layers] each, in the texts' order.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from artifacts.errors import UsageError
from artifacts.tokenizer import WordPieceTokenizer, well_formed
from model.encoder.batch import Example, PackedBatch, pack
from model.encoder.encoder import Encoder
from model.inference.streaming import in_windows

# B texts, T tokens of all of them, H width

Pooling = Literal["mean", "cls", "pooler"]
Vector = npt.NDArray[np.float32]


def embeddings(
    texts: Iterable[str],
    encoder: Encoder,
    tokenizer: WordPieceTokenizer,
    *,
    pooling: Pooling,
    layers: tuple[int, ...],
    truncate: bool,
) -> Iterator[Vector]:
    """One vector per text; `Model.embed` describes the options."""
    depth = encoder.config.num_hidden_layers + 1
    wrong = [layer for layer in layers if not -depth <= layer < depth]
    if wrong or not layers:
        raise UsageError(f"layers {layers}: expected numbers from {-depth} to {depth - 1}")
    positions = encoder.config.max_position_embeddings

    def read(window: Sequence[str], first: int) -> list[Example]:
        texts = [well_formed(text) for text in window]
        ids = [encoding.ids[1:-1] for encoding in tokenizer.backend.encode_batch_fast(texts)]
        if not truncate:
            _refuse_long(ids, positions=positions, first=first)
        return [
            Example([tokenizer.cls_id, *text[: positions - 2], tokenizer.sep_id]) for text in ids
        ]

    def compute(examples: Sequence[Example]) -> list[Vector]:
        return list(_embed(pack(examples), encoder, pooling=pooling, layers=layers))

    return in_windows(texts, read, compute, length=lambda example: len(example.input_ids))


@torch.inference_mode()
def _embed(
    batch: PackedBatch, encoder: Encoder, *, pooling: Pooling, layers: tuple[int, ...]
) -> Vector:
    device = next(encoder.parameters()).device
    batch = batch.to(device)
    states = encoder.hidden_states(batch)
    vectors = [pooled(states[layer], batch, encoder, pooling=pooling) for layer in layers]
    return torch.cat(vectors, dim=-1).float().cpu().numpy()


def pooled(hidden_TH: Tensor, batch: PackedBatch, encoder: Encoder, *, pooling: Pooling) -> Tensor:
    """[B, H] of one layer's vectors."""
    if pooling == "pooler":
        return encoder.pooled(hidden_TH, batch)
    if pooling == "cls":
        return hidden_TH[batch.cu_seqlens[:-1].long()]
    lengths_B = torch.from_numpy(batch.lengths).to(hidden_TH.device)
    sequence_T = torch.repeat_interleave(lengths_B)
    sums_BH = hidden_TH.new_zeros(len(lengths_B), hidden_TH.shape[1], dtype=torch.float32)
    sums_BH.index_add_(0, sequence_T, hidden_TH.float())
    return sums_BH / lengths_B[:, None]


def _refuse_long(ids: Sequence[Sequence[int]], *, positions: int, first: int) -> None:
    for number, text in enumerate(ids, start=first + 1):
        if len(text) + 2 > positions:
            raise UsageError(
                f"text {number}: {len(text) + 2} tokens, the encoder has {positions} positions; "
                "cut it into parts, or allow truncation"
            )
