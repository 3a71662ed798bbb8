"""Batches: packed, equal in content however cut, their counts known on every rank."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from artifacts.store import Artifact
from model.config import EncoderConfig, PhaseConfig
from model.data.batches import BatchSource, Share, StepBatch, nothing_asked
from model.data.dynamic_masking import Masking
from model.data.micro_batches import CostModel
from model.data.order import Curriculum, LengthOrder
from model.data.shards import ExampleShards
from tests.model.training.training_fixtures import TOKENIZER, examples_artifact

MASKING = Masking(TOKENIZER.mask_id, TOKENIZER.size, 0.8, 0.1)


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"), rows=((20, 20), (13, 15)))


def _source(
    artifact: Artifact, rank: int = 0, ranks: int = 1, budget: int = 4096, redrawn: bool = False
) -> BatchSource:
    shards = ExampleShards(artifact, split="train", max_seq_length=32)
    order = LengthOrder(32, shards.rows, 8, "digest/1")
    return BatchSource(
        curriculum=Curriculum(12, (PhaseConfig(max_seq_length=32, share=1.0),), {32: order}),
        shards={32: shards},
        share=Share(rank, ranks, budget),
        cost=CostModel.of(EncoderConfig(preset="tiny"), TOKENIZER.size),
        cls_sep=(TOKENIZER.cls_id, TOKENIZER.sep_id),
        masking=MASKING if redrawn else None,
        purpose="digest/1",
    )


def _sequences(batch: StepBatch) -> list[tuple[int, ...]]:
    """Every sequence of every micro-batch with what is asked of it, sorted."""
    found = []
    for packed in batch.micro_batches:
        ends = packed.cu_seqlens.tolist()
        if not packed.masked_lm_ids.numel():
            continue  # an empty micro-batch
        for i, (start, stop) in enumerate(itertools.pairwise(ends)):
            inside = (packed.masked_lm_positions >= start) & (packed.masked_lm_positions < stop)
            found.append(
                (
                    *packed.input_ids[start:stop].tolist(),
                    -1,
                    *packed.token_type_ids[start:stop].tolist(),
                    -1,
                    *(packed.masked_lm_positions[inside] - start).tolist(),
                    -1,
                    *packed.masked_lm_ids[inside].tolist(),
                    int(packed.next_sentence_label[i]),
                )
            )
    return sorted(found)


@pytest.mark.parametrize("redrawn", [False, True])
def test_ranks_and_budgets_only_cut(artifact: Artifact, redrawn: bool) -> None:
    for step in (0, 4, 5, 9):
        whole = _source(artifact, redrawn=redrawn)(step)
        for ranks, budget in ((1, 64), (2, 4096), (3, 50)):
            parts = [_source(artifact, r, ranks, budget, redrawn)(step) for r in range(ranks)]
            together = sorted(itertools.chain.from_iterable(map(_sequences, parts)))
            assert together == _sequences(whole)
            for part in parts:
                assert part.masked == whole.masked == sum(m.masked_lm_ids.numel() for m in
                                                          whole.micro_batches)  # fmt: skip
                assert (part.examples, part.tokens) == (whole.examples, whole.tokens)
                assert len(part.micro_batches) == len(parts[0].micro_batches)


def test_an_epoch_reads_every_row_of_its_copy_once(artifact: Artifact) -> None:
    source = _source(artifact)
    steps = -(-33 // 8)
    rows = [row for step in range(steps) for row in source.rows_of(source(step))]
    assert sorted(rows) == sorted(
        [f"train-32-00000.arrow:{r}" for r in range(20)]
        + [f"train-32-00001.arrow:{r}" for r in range(13)]
    )


def test_a_rank_without_examples_computes_an_empty_micro_batch(artifact: Artifact) -> None:
    last_of_epoch = 4  # one example for three ranks
    batches = [_source(artifact, rank, 3)(last_of_epoch) for rank in range(3)]
    assert [b.examples for b in batches] == [1, 1, 1]
    assert sorted(b.micro_batches[0].masked_lm_ids.numel() > 0 for b in batches) == [0, 0, 1]


def test_an_empty_micro_batch_asks_nothing() -> None:
    empty = nothing_asked(2, 3)
    assert empty.input_ids.tolist() == [2, 3]
    assert empty.masked_lm_ids.numel() == 0
    assert empty.next_sentence_label.tolist() == [-1]


def test_positions_begin_anew_in_every_sequence(artifact: Artifact) -> None:
    packed = _source(artifact)(0).micro_batches[0]
    starts = packed.cu_seqlens[:-1].long()
    assert packed.position_ids[starts].eq(0).all()
    assert packed.max_seqlen == int(packed.position_ids.max()) + 1
    np.testing.assert_array_equal(packed.lengths.sum(), packed.tokens)


def test_redrawn_masks_follow_the_rule_and_change_with_the_epoch(artifact: Artifact) -> None:
    stored, drawn = _source(artifact), _source(artifact, redrawn=True)
    counts = np.zeros(3)
    for step in range(9):
        plain, masked = stored(step).micro_batches[0], drawn(step).micro_batches[0]
        original = plain.input_ids.clone()
        original[plain.masked_lm_positions] = plain.masked_lm_ids
        places = masked.masked_lm_positions
        assert masked.masked_lm_ids.equal(original[places]), "the answers are the text's tokens"
        elsewhere = masked.input_ids.clone()
        elsewhere[places] = masked.masked_lm_ids
        assert elsewhere.equal(original), "nothing but the masked places changes"
        special = {TOKENIZER.cls_id, TOKENIZER.sep_id}
        assert not special & set(masked.masked_lm_ids.tolist())
        assert masked.masked_lm_ids.numel() == plain.masked_lm_ids.numel()
        seen = masked.input_ids[places]
        kept = seen.eq(masked.masked_lm_ids)
        mask = seen.eq(TOKENIZER.mask_id)
        counts += [int(mask.sum()), int((kept & ~mask).sum()), int((~kept & ~mask).sum())]
    share = counts / counts.sum()
    assert share[0] == pytest.approx(0.8, abs=0.12)
    first, again = drawn(0), drawn(10)  # epochs 0 and 2 read the same copy
    assert first.address.epoch % 2 == again.address.epoch % 2 == 0
    assert _sequences(first) != _sequences(again)


def test_an_artifact_is_not_copied_to_be_read(artifact: Artifact, tmp_path: Path) -> None:
    _source(artifact)(0)
    assert not list(tmp_path.iterdir())
