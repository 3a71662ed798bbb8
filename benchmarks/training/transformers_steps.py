"""Hugging Face's side of the training benchmarks: its models, its batches, its training step.

In:  a workload; the side: `padding_free`, `grouped`, or any other for plain padding.
Out: BertForPreTraining or ModernBertForMaskedLM; micro-batches as its collators make them; one
     update with bf16 autocast, fused AdamW and gradient clipping.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.training.workload import VOCABULARY, Workload, cut
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, PackedBatch, pack_sequences
from cloze.model.hugging_face.layout import hugging_face_config

LEARNING_RATE = 1e-4
Inputs = dict[str, torch.Tensor | int]
Update = Callable[[Sequence[Inputs]], torch.Tensor]
"""From the micro-batches of a step to its loss."""


def hugging_face_model(
    config: EncoderConfig,
    *,
    vocabulary_size: int = VOCABULARY,
    packed: bool = False,
    headless: bool = False,
) -> torch.nn.Module:
    """A model drawn from a seed; `packed`: for sequences without padding (flash-attn)."""
    import transformers

    torch.manual_seed(0)
    table = {
        **hugging_face_config(config, vocabulary_size),
        "attn_implementation": "flash_attention_2" if packed else "sdpa",
    }
    model: torch.nn.Module
    if config.family == "modern":
        settings = transformers.ModernBertConfig(**table, sparse_prediction=True)
        of_modern = transformers.ModernBertModel if headless else transformers.ModernBertForMaskedLM
        model = of_modern(settings)
    else:
        # without padding there is one row, so a next-sentence head would see one sequence only
        of_bert = transformers.BertForMaskedLM if packed else transformers.BertForPreTraining
        model = of_bert(transformers.BertConfig(**table))
    return model


def update_of(model: torch.nn.Module, *, device: str, bf16: bool, compiled: bool) -> Update:
    """The model's training step."""
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, eps=1e-6, weight_decay=0.01, fused=True
    )

    def update(parts: Sequence[Inputs]) -> torch.Tensor:
        total = torch.zeros((), device=device)
        for inputs in parts:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
                # A mean of means, where ours divides by the counts of the whole batch: other
                # gradients, but at the same cost, which is what is compared.
                loss = forward(**inputs).loss / len(parts)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return update


def micro_batches(side: str, work: Workload, batch: Sequence[Example], budget: int) -> list[Inputs]:
    """Micro-batches of at most `budget` tokens, padding included, as the side collates them."""
    if side == "padding_free":
        parts = cut(batch, budget)
    else:
        if side == "grouped":
            batch = sorted(batch, key=lambda one: len(one.input_ids))
        # Padded sequences count with their whole width.
        rows = max(1, budget // work.longest)
        parts = [list(batch[at : at + rows]) for at in range(0, len(batch), rows)]
    return [collated(side, work, part) for part in parts]


def collated(side: str, work: Workload, part: Sequence[Example]) -> Inputs:
    """A micro-batch as the side's collator makes it."""
    packed = pack_sequences(part)
    if side == "padding_free":  # one row, as transformers' DataCollatorWithFlattening makes it
        return {
            "input_ids": packed.input_ids[None],
            "token_type_ids": packed.token_type_ids[None],
            "position_ids": packed.position_ids[None],
            "labels": labels_of(packed)[None],
            **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), packed.cu_seqlens),
            **dict.fromkeys(("max_length_q", "max_length_k"), packed.max_seqlen),
        }
    width = work.longest
    if side == "grouped":  # the longest sequence, rounded up to a multiple of 8
        width = -(-packed.max_seqlen // 8) * 8
    inputs: Inputs = dict(padded_inputs(packed, width=width))
    if work.is_modern:  # it has neither segments nor next sentences, and full batches need no mask
        del inputs["token_type_ids"], inputs["next_sentence_label"]
        if torch.as_tensor(inputs["attention_mask"]).all():
            del inputs["attention_mask"]
    return inputs


def labels_of(packed: PackedBatch) -> torch.Tensor:
    """[T] the masked tokens' ids; -100 where no token is masked."""
    labels = torch.full_like(packed.input_ids, -100)
    labels[packed.masked_lm_positions] = packed.masked_lm_ids
    return labels


def padded_inputs(packed: PackedBatch, *, width: int) -> dict[str, torch.Tensor]:
    """[B, width] as a padding collator makes it."""
    inside = np.arange(width) < packed.lengths[:, None]
    columns = {
        "input_ids": (packed.input_ids, 0),
        "token_type_ids": (packed.token_type_ids, 0),
        "attention_mask": (1, 0),
        "labels": (labels_of(packed), -100),
    }
    inputs = {}
    # The places inside sequences, row by row, are in the order of the packed tokens.
    for name, (values, padding) in columns.items():
        padded = np.full(inside.shape, padding)
        padded[inside] = values
        inputs[name] = torch.from_numpy(padded)
    return {**inputs, "next_sentence_label": packed.next_sentence_label}
