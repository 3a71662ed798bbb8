"""What a head that compares two texts reads of them, beside the pooler's output.

In:  hidden states and word embeddings of sequences of two segments, packed or padded.
Out: features of each sequence, [B, 4 H].

An encoder that has seen little text does not yet carry into [CLS] whether two texts agree. Two
sights of it need no training: the mean vectors of both (InferSent, Conneau et al. 2017), and for
each word the most similar word of the other text (Parikh et al. 2016, attending to one word alone).
The first says how alike the texts are, the second what each says that the other does not.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from cloze.model.data.batch import PackedBatch

FEATURES = 4
"""How many times the hidden size they are."""

# B sequences, S tokens of the longest, T of all, H hidden size


def packed_comparison(hidden_TH: Tensor, words_TH: Tensor, batch: PackedBatch) -> Tensor:
    """`comparison` of the sequences of a packed batch, [B, 4 H]."""
    ends = batch.lengths.cumsum().tolist()[:-1]

    def padded(values_T: Tensor, value: int = 0) -> Tensor:
        parts = [*values_T.tensor_split(ends)]
        return pad_sequence(parts, batch_first=True, padding_value=value)

    types_BS = padded(batch.token_type_ids, -1)  # of neither segment
    states_BSH, words_BSH = padded(hidden_TH), padded(words_TH)
    return comparison(states_BSH, words_BSH, torch.stack((types_BS == 0, types_BS == 1), dim=1))


def comparison(states_BSH: Tensor, words_BSH: Tensor, inside_B2S: Tensor) -> Tensor:
    """Features in fp32, [B, 4 H].

    Product and distance of the mean states, which are read together; then how far the words of the
    first segment are on average from their nearest of the second, and the reverse.
    `inside_B2S`: which tokens belong to each segment; padding belongs to neither.
    """
    inside_B2S = inside_B2S.float()
    first_BH, second_BH = _unit(inside_B2S @ states_BSH.float()).unbind(1)
    means = (first_BH * second_BH, (first_BH - second_BH).abs())
    distances_B2H = _mean(_distance(_unit(words_BSH.float()), inside_B2S), inside_B2S)
    return torch.cat((*means, distances_B2H.flatten(1)), dim=-1)


def _distance(words_BSH: Tensor, inside_B2S: Tensor) -> Tensor:
    """Distance of each word from its most similar one in the other segment, [B, S, H]."""
    is_other_BSS = inside_B2S.transpose(1, 2) @ inside_B2S.flip(1) > 0
    alike_BSS = (words_BSH @ words_BSH.transpose(1, 2)).masked_fill(~is_other_BSS, -torch.inf)
    nearest_BSH = alike_BSS.argmax(-1, keepdim=True).expand_as(words_BSH)
    return (words_BSH - words_BSH.gather(1, nearest_BSH)).abs()


def _mean(values_BSH: Tensor, inside_B2S: Tensor) -> Tensor:
    """The mean of each segment's tokens, [B, 2, H]; 0 without any."""
    return inside_B2S @ values_BSH / inside_B2S.sum(-1, keepdim=True).clamp(min=1)


def _unit(vectors: Tensor) -> Tensor:
    """The vectors with length sqrt(H), so that features are of the size of the pooler's."""
    return functional.normalize(vectors, dim=-1) * math.sqrt(vectors.shape[-1])
