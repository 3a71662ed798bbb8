"""Pre-training batches as a `torch.utils.data` dataset, for custom training loops.

In:  an examples artifact.
Out: dictionaries of tensors, packed or padded; the same arguments give the same batches anywhere.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from cloze.artifacts.errors import UsageError
from cloze.artifacts.runtime.arguments import checked
from cloze.artifacts.store import open_artifact
from cloze.model.config import EncoderConfig, PretrainConfig, PretrainStage
from cloze.model.data.batch import padded
from cloze.model.data.micro_batches import Share
from cloze.model.data.sources import suited_tokenizer, training_source

IGNORED = -100
"""Label that PyTorch's cross-entropy ignores."""


class PretrainingBatches(IterableDataset[dict[str, Tensor]]):
    """The batches of pre-training, in its order.

    Packed, B sequences with T tokens in total, M of them masked: input_ids, token_type_ids,
    position_ids [T], cu_seqlens [B+1] int32, masked_lm_positions, masked_lm_ids [M],
    next_sentence_label [B]. Padded, as `transformers` expects them: input_ids, token_type_ids,
    attention_mask, labels [B, S], next_sentence_label [B].

    Pass it to `DataLoader(batches, batch_size=None, num_workers=…)`. Workers share the steps; each
    rank gets an equal part of every batch.
    """

    @checked
    def __init__(
        self,
        directory: str,
        recipe: PretrainConfig,
        *,
        seed: int = 0,
        padded: bool = False,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        """Uses steps, batch_size, phases (with prepared lengths) and masks of `recipe`.

        `seed` decides the order, and the masks if they are dynamic: a run's own is
        `pretrain.seed`, else `seed`, which `cloze.load_batches` looks up.
        """
        super().__init__()
        if not 0 <= rank < ranks <= recipe.batch_size:
            raise UsageError(
                f"rank {rank} of {ranks}: expected 0 ≤ rank < ranks ≤ {recipe.batch_size}, "
                "the batch size"
            )
        longest = max(phase.max_seq_length for phase in recipe.phases)
        # Of this encoder, only the number of positions is checked, and its costs balance the ranks.
        # The budget holds any share of a batch, so there is always exactly one micro-batch.
        shape = EncoderConfig(preset="base", max_position_embeddings=longest)
        stage = PretrainStage(seed=seed, encoder=shape, pretrain=recipe)
        share = Share(rank, ranks, token_budget=recipe.batch_size * longest)
        artifact = open_artifact(directory)
        tokenizer = suited_tokenizer(artifact, stage)
        self.steps = recipe.steps
        self.padded = padded
        self._source = training_source(artifact, tokenizer, stage, share=share)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        # A DataLoader asks its workers in turn, so that batches arrive in order of their steps if
        # worker i of n makes steps i, i + n, …
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for step in range(first, self.steps, stride):
            (batch,) = self._source(step).micro_batches
            if not self.padded:
                yield batch.tensors()
                continue
            labels = torch.full_like(batch.input_ids, IGNORED)
            labels[batch.masked_lm_positions] = batch.masked_lm_ids
            yield {
                "input_ids": padded(batch.input_ids, batch),
                "token_type_ids": padded(batch.token_type_ids, batch),
                "attention_mask": padded(torch.ones_like(batch.input_ids), batch),
                "labels": padded(labels, batch, fill=IGNORED),
                "next_sentence_label": batch.next_sentence_label,
            }
