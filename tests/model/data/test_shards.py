"""Rows are read from the mapped files as they were written; damaged files are rejected."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.store import Artifact
from cloze.model.config import PretrainStage
from cloze.model.data.batch import ragged_indices
from cloze.model.data.micro_batches import Share
from cloze.model.data.shards import ExampleShards, select
from cloze.model.data.sources import heldout_sources
from tests.model.training.training_fixtures import TOKENIZER, WORDS, examples_artifact


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"), rows=((6, 4), (0, 5), (3, 3)))


@pytest.fixture(scope="module")
def shards(artifact: Artifact) -> ExampleShards:
    return ExampleShards(artifact, split="train", max_seq_length=32)


def test_rows_are_counted_by_copy_and_shard_from_the_manifest(shards: ExampleShards) -> None:
    assert shards.rows == ((6, 0, 3), (4, 5, 3))


def test_gathered_rows_are_those_written_in_the_order_asked(
    artifact: Artifact, shards: ExampleShards
) -> None:
    which, rows = np.array([2, 0, 1, 0, 1]), np.array([1, 3, 4, 0, 0])
    found = shards.gather(1, which, rows)
    tokens = np.split(found.input_ids, np.cumsum(found.lengths)[:-1])
    masked = np.split(found.masked_lm_ids, np.cumsum(found.masked_counts)[:-1])
    places = np.split(found.masked_lm_positions, np.cumsum(found.masked_counts)[:-1])
    for i, (shard, row) in enumerate(zip(which, rows, strict=True)):
        with pa.ipc.open_file(artifact.path(f"train-32-{shard:05}.arrow")) as reader:
            written = reader.get_batch(1).to_pylist()[row]
        assert tokens[i].tolist() == written["input_ids"]
        assert masked[i].tolist() == written["masked_lm_ids"]
        assert places[i].tolist() == written["masked_lm_positions"]
        assert found.segment_a_lengths[i] == written["segment_a_length"]
        assert found.next_sentence_labels[i] == written["next_sentence_label"]


def test_sizes_are_known_without_reading_tokens(shards: ExampleShards) -> None:
    which, rows = np.array([1, 0, 1]), np.array([2, 2, 0])
    sizes, found = shards.sizes(1, which, rows), shards.gather(1, which, rows)
    np.testing.assert_array_equal(sizes.lengths, found.lengths)
    np.testing.assert_array_equal(sizes.masked_counts, found.masked_counts)
    np.testing.assert_array_equal(sizes.next_sentence_labels, found.next_sentence_labels)


def test_selection_reorders_whole_examples(shards: ExampleShards) -> None:
    which, rows = np.array([0, 0, 2]), np.array([5, 1, 2])
    order = np.array([2, 0, 1])
    chosen = select(shards.gather(0, which, rows), order)
    asked = shards.gather(0, which[order], rows[order])
    np.testing.assert_array_equal(chosen.input_ids, asked.input_ids)
    np.testing.assert_array_equal(chosen.masked_lm_ids, asked.masked_lm_ids)
    np.testing.assert_array_equal(chosen.document_lengths, asked.document_lengths)
    assert len({*asked.document_lengths.tolist()}) > 1


def test_ragged_indices_count_up_from_each_start() -> None:
    found = ragged_indices(np.array([10, 3]), np.array([2, 3]))
    assert found.tolist() == [10, 11, 3, 4, 5]


def test_an_unknown_split_or_length_is_refused_with_what_there_is(artifact: Artifact) -> None:
    with pytest.raises(UsageError, match="no train examples of length 512; it holds heldout 32"):
        ExampleShards(artifact, split="train", max_seq_length=512)


def test_a_flipped_bit_is_refused_when_the_shard_is_first_opened(tmp_path: Path) -> None:
    artifact = examples_artifact(tmp_path, rows=((4,),))
    path = Path(artifact.path("train-32-00000.arrow"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, (1, 1))
    shards = ExampleShards(artifact, split="train", max_seq_length=32)
    with pytest.raises(IntegrityError, match=r"train-32-00000.*sha256.*the manifest says"):
        shards.gather(0, np.array([0]), np.array([0]))


def test_a_shard_with_other_rows_than_promised_is_refused(tmp_path: Path) -> None:
    artifact = examples_artifact(tmp_path, rows=((4,),))
    shards = ExampleShards(artifact, split="train", max_seq_length=32)
    shards.entries[0].statistics["copies"][0] = 3
    with pytest.raises(IntegrityError, match="copy 0 has 4 rows, the manifest says 3"):
        shards.sizes(0, np.array([0]), np.array([0]))


def test_a_shard_with_other_columns_than_promised_is_refused(tmp_path: Path) -> None:
    artifact = examples_artifact(tmp_path, rows=((4,),))
    artifact.manifest.statistics["vocabulary_size"] = 70_000  # more ids than the files' uint16
    shards = ExampleShards(artifact, split="train", max_seq_length=32)
    with pytest.raises(IntegrityError, match=r"columns are .*uint16.*run the examples stage again"):
        shards.sizes(0, np.array([0]), np.array([0]))


def test_ids_are_below_the_vocabulary_size(shards: ExampleShards) -> None:
    found = shards.gather(0, np.array([0, 2]), np.array([0, 0]))
    assert found.input_ids.max() < WORDS


@pytest.mark.parametrize(
    ("wanted", "batches"), [(16, [16]), (256, [256]), (300, [256, 44]), (2048, [256, 64])]
)
def test_every_example_that_is_asked_for_is_evaluated(
    tmp_path: Path, wanted: int, batches: list[int]
) -> None:
    artifact = examples_artifact(tmp_path, heldout=320)
    recipe = {
        "steps": 1,
        "phases": [{"max_seq_length": 32, "share": 1.0}],
        "evaluation_examples": wanted,
    }
    stage = PretrainStage.model_validate({"seed": 0, "encoder": {}, "pretrain": recipe})
    sources = heldout_sources(artifact, TOKENIZER, stage, share=Share(0, 1, 1024))
    curriculum = sources[32].curriculum
    found = [curriculum.batch(step) for step in range(curriculum.steps)]
    assert [batch.stop - batch.first for batch in found] == batches
    rows = [curriculum.lengths[32].locate(batch).rows for batch in found]
    assert len(np.unique(np.concatenate(rows))) == sum(batches)
