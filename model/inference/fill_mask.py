"""The likeliest word-pieces for every [MASK] of a text.

In:  texts with one or more [MASK].
Out: for each text, for each of its [MASK], the best `Fill`s.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from artifacts.errors import UsageError
from artifacts.tokenizer import MASK, SubwordTokenizer, well_formed
from model.data.batch import Example, pack
from model.encoder.pretraining import PretrainingModel
from model.inference.streaming import in_windows


@dataclass(frozen=True)
class Fill:
    """One word-piece in the place of a [MASK]."""

    token: str
    """The word-piece or byte-level token; `##` marks the continuation of a word."""

    token_id: int
    """Its id."""

    probability: float
    """The model's probability of it."""


def filled(
    texts: Iterable[str], model: PretrainingModel, tokenizer: SubwordTokenizer, *, top_k: int
) -> Iterator[list[list[Fill]]]:
    """For each text, in order, the `top_k` fills of each of its [MASK]."""
    if not 1 <= top_k <= tokenizer.size:
        raise UsageError(f"top_k {top_k}: expected 1 to {tokenizer.size}, the vocabulary")
    positions = model.encoder.config.max_position_embeddings
    device = next(model.parameters()).device

    def read(window: Sequence[str], first: int) -> list[Example]:
        return [
            masked_example(text, tokenizer, positions=positions, where=f"text {first + number + 1}")
            for number, text in enumerate(window)
        ]

    @torch.inference_mode()
    def compute(examples: Sequence[Example]) -> list[list[list[Fill]]]:
        batch = pack(examples).to(device)
        logits_MV = model.masked_lm_logits(model.encoder(batch), batch.masked_lm_positions)
        best = logits_MV.float().softmax(-1).topk(top_k, dim=-1)
        fills = iter(
            [
                Fill(tokenizer.vocabulary[token_id], token_id, probability)
                for token_id, probability in zip(ids, probabilities, strict=True)
            ]
            for ids, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
        return [[next(fills) for _ in example.masked_lm_positions] for example in examples]

    return in_windows(
        texts,
        read,
        compute,
        length=lambda example: len(example.input_ids),
        device=device,
    )


def masked_example(
    text: str, tokenizer: SubwordTokenizer, *, positions: int, where: str
) -> Example:
    """[CLS] text [SEP] with its [MASK]s as positions to predict.

    Elsewhere `[MASK]` in a text is ordinary text; here it is the special token.
    """
    pieces = tokenizer.encode_around_masks(well_formed(text))
    if len(pieces) == 1:
        raise UsageError(f"{where}: no {MASK} in {text!r}; write one where a word is wanted")
    ids, places = [tokenizer.cls_id, *pieces[0]], []
    for piece in pieces[1:]:
        places.append(len(ids))
        ids += [tokenizer.mask_id, *piece]
    ids.append(tokenizer.sep_id)
    if len(ids) > positions:
        raise UsageError(
            f"{where}: {len(ids)} tokens, the encoder has {positions} positions; shorten the text"
        )
    return Example(input_ids=ids, masked_lm_positions=places, masked_lm_ids=[0] * len(places))
