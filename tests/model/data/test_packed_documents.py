"""Examples with several documents: each document is computed as if it were alone."""

from typing import Any

import numpy as np
import pytest
import torch

from cloze.artifacts.rng import Replacement
from cloze.artifacts.store import Artifact
from cloze.model.config import EncoderConfig, PhaseConfig
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.data.micro_batches import BatchSource, CostModel, Share, pack_examples
from cloze.model.data.order import Curriculum, LengthOrder
from cloze.model.data.shards import Examples, ExampleShards, select
from cloze.model.data.targets import DynamicMasking
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.pipeline.examples import make_examples
from tests.model.encoder.encoder_builders import small_config
from tests.pipeline.synthetic_tokens import (
    examples_table,
    random_documents,
    small_tokenizer,
    tokens_artifact,
    tokens_table,
)

TOKENIZER = small_tokenizer()
MODERN = {"family": "modern", "intermediate_size": 96, "max_position_embeddings": 2048}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Documents of 1 to 1,400 tokens in examples of 1,500."""
    table = tokens_table(random_documents(0, count=40), vocabulary_size=TOKENIZER.size)
    folder = tmp_path_factory.mktemp("packed")
    tokens = tokens_artifact(folder / "tokens", {("train", 0): table}, tokenizer=TOKENIZER)
    config = {"max_seq_lengths": [1500], "second_segment": "none", "pack_documents": True}
    return make_examples(examples_table(tokens, folder / "out", config=config), [])


@pytest.fixture(scope="module")
def examples(artifact: Artifact) -> Examples:
    shards = ExampleShards(artifact, split="train", max_seq_length=1500)
    return shards.gather(0, np.zeros(4, np.int64), np.array([3, 0, 4, 1]))


def apart(examples: Examples) -> list[Example]:
    """Each document as a separate example."""
    starts = np.cumsum(examples.lengths) - examples.lengths
    masked = np.repeat(starts, examples.masked_counts) + examples.masked_lm_positions
    found, first = [], 0
    for length in examples.document_lengths.tolist():
        inside = (masked >= first) & (masked < first + length)
        found.append(
            Example(
                input_ids=examples.input_ids[first : first + length].tolist(),
                masked_lm_positions=(masked[inside] - first).tolist(),
                masked_lm_ids=examples.masked_lm_ids[inside].tolist(),
            )
        )
        first += length
    return found


@pytest.mark.parametrize("family", [{}, MODERN])
def test_a_packed_example_computes_what_its_documents_compute_apart(
    examples: Examples, family: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    model = PretrainingModel(
        Encoder(small_config(**{"max_position_embeddings": 1500, **family}), TOKENIZER.size)
    ).eval()
    whole = pack_examples(examples)
    documents = apart(examples)
    assert whole.sequences == len(documents) > len(examples)
    with torch.no_grad():
        together = model.encoder(whole)
        alone = torch.cat([model.encoder(pack_sequences([document])) for document in documents])
        losses = [model(pack_sequences([document])).masked_lm_loss for document in documents]
        loss = model(whole).masked_lm_loss
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, torch.stack(losses).sum(), rtol=1e-6, atol=0)


def test_selection_keeps_each_examples_documents(artifact: Artifact, examples: Examples) -> None:
    order = np.array([2, 0])
    shards = ExampleShards(artifact, split="train", max_seq_length=1500)
    asked = shards.gather(0, np.zeros(2, np.int64), np.array([4, 3]))
    chosen = select(examples, order)
    for name, values in vars(asked).items():
        np.testing.assert_array_equal(getattr(chosen, name), values)


def test_dynamic_masks_spare_the_special_tokens_of_every_document(examples: Examples) -> None:
    masking = DynamicMasking(Replacement(TOKENIZER.mask_id, TOKENIZER.size, 1.0, 0.0))
    again = masking(examples, np.arange(len(examples)), key=1)
    ends = np.cumsum(examples.document_lengths)
    assert set(again.input_ids[ends - 1]) == {TOKENIZER.sep_id}
    assert set(again.input_ids[ends - examples.document_lengths]) == {TOKENIZER.cls_id}
    np.testing.assert_array_equal(again.masked_counts, examples.masked_counts)
    assert not np.array_equal(again.masked_lm_positions, examples.masked_lm_positions)
    assert not {TOKENIZER.cls_id, TOKENIZER.sep_id} & set(again.masked_lm_ids)


def test_ranks_divide_packed_examples_and_count_attention_within_documents(
    artifact: Artifact,
) -> None:
    shards = ExampleShards(artifact, split="train", max_seq_length=1500)
    order = LengthOrder(1500, shards.rows, 5, "digest/1")
    phase = PhaseConfig(max_seq_length=1500, share=1.0)

    def source(rank: int, ranks: int) -> BatchSource:
        return BatchSource(
            curriculum=Curriculum(2, (phase,), {1500: order}),
            shards={1500: shards},
            share=Share(rank, ranks, 1500 * 5),
            cost=CostModel.of(EncoderConfig(preset="tiny"), TOKENIZER.size),
            cls_sep=(TOKENIZER.cls_id, TOKENIZER.sep_id),
        )

    whole = source(0, 1)(0)
    (batch,) = whole.micro_batches
    assert whole.examples == 5
    assert whole.labelled == 0
    assert whole.squared_lengths == int((batch.lengths**2).sum())
    parts = [source(rank, 2)(0) for rank in range(2)]
    assert sum(micro.sequences for part in parts for micro in part.micro_batches) == batch.sequences
