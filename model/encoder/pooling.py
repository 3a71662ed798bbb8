"""One vector per sequence, made of the vectors of its tokens.

In:  an encoder's vectors over packed sequences.
Out: [B, H]: the mean over each sequence, its first token, or the encoder's own pooler.
"""

from typing import Literal

import torch
from torch import Tensor

from model.data.batch import PackedBatch, on
from model.encoder.encoder import Encoder

# B sequences, T tokens of all of them, H width

Pooling = Literal["mean", "cls", "pooler"]


def pooled(hidden_TH: Tensor, batch: PackedBatch, encoder: Encoder, *, pooling: Pooling) -> Tensor:
    """[B, H] of one layer's vectors; means are fp32."""
    if pooling == "pooler":
        return encoder.pooled(hidden_TH, batch)
    if pooling == "cls":
        return hidden_TH[batch.cu_seqlens[:-1].long()]
    lengths_B = on(hidden_TH.device, torch.from_numpy(batch.lengths))
    sequence_T = torch.repeat_interleave(lengths_B, output_size=batch.tokens)
    sums_BH = hidden_TH.new_zeros(len(lengths_B), hidden_TH.shape[1], dtype=torch.float32)
    sums_BH = sums_BH.index_add(0, sequence_T, hidden_TH.float())
    return sums_BH / lengths_B[:, None]
