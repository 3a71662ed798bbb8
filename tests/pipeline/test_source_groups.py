"""Examples of sources with names: each is of one source, and the manifest says where they are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import SOURCE_FIELD
from cloze.model.data.shards import ExampleShards
from cloze.pipeline.examples import make_examples
from tests.pipeline.synthetic_tokens import (
    document_digest,
    examples_table,
    small_tokenizer,
    tokens_artifact,
    tokens_table,
)

WORDS = 400
RANGES = {0: (5, 105), 1: (105, 205), 2: (205, 305)}
"""The word-pieces of each source, by which its text is recognised."""

NAMES = ("wiki", "guides", "wiki")
PAIRED = {"max_seq_lengths": [32, 64], "copies": 2}
PACKED = {**PAIRED, "second_segment": "none", "pack_documents": True}


def tokens(directory: Path, counts: dict[str, Sequence[int]], *, named: bool = True) -> Artifact:
    """Two buckets of training and one of held-out text, with documents of three sources."""
    tokenizer = small_tokenizer(WORDS)
    buckets = {}
    for number, place in enumerate([("train", 0), ("train", 1), ("heldout", 0)]):
        rng = np.random.default_rng(number)
        documents = [
            [rng.integers(*RANGES[source], rng.integers(3, 20)).tolist() for _ in range(8)]
            for source, count in enumerate(counts[place[0]])
            for _ in range(count)
        ]
        table = tokens_table(documents, vocabulary_size=tokenizer.size)
        first = {document_digest(document): document[0][0] for document in documents}
        sources = [(first[digest] - 5) // 100 for digest in table["document_digest"].to_pylist()]
        if named:
            table = table.append_column(SOURCE_FIELD, pa.array(sources, pa.uint16()))
        buckets[place] = table
    return tokens_artifact(directory / "tokens", buckets, tokenizer=tokenizer)


def examples(directory: Path, made: Artifact, config: dict[str, object]) -> Artifact:
    table: StageTable = examples_table(made, directory / "examples", config=config)
    named = {**table.config, "names": list(NAMES)}
    return make_examples(table.model_copy(update={"config": named}), [])


EVENLY = {"train": (9, 6, 3), "heldout": (2, 2, 1)}


@pytest.mark.parametrize("config", [PAIRED, PACKED])
def test_every_example_is_of_one_source_and_where_the_manifest_says(
    tmp_path: Path, config: dict[str, object]
) -> None:
    made = examples(tmp_path, tokens(tmp_path, EVENLY), config)
    assert made.manifest.statistics["sources"] == ["wiki", "guides"]
    for length in (32, 64):
        shards = ExampleShards(made, split="train", max_seq_length=length)
        seen, counted = 0, dict.fromkeys(("wiki", "guides"), 0)
        for name, other in (("wiki", RANGES[1]), ("guides", RANGES[0])):
            rows, begins = shards.of_source(name)
            for copy, shard in np.ndindex(2, 2):
                count, begin = rows[copy][shard], begins[copy][shard]
                found = shards.gather(copy, np.full(count, shard), begin + np.arange(count))
                ids = found.input_ids.astype(int)
                ids[found.masked_places] = found.masked_lm_ids
                assert not ((ids >= other[0]) & (ids < other[1])).any()
                seen += count
                counted[name] += len(ids)
        assert seen == sum(map(sum, shards.rows))
        assert shards.source_tokens == counted


def test_a_copy_of_a_source_is_in_random_order(tmp_path: Path) -> None:
    made = examples(tmp_path, tokens(tmp_path, EVENLY), {**PAIRED, "second_segment": "none"})
    shards = ExampleShards(made, split="train", max_seq_length=32)
    (first, *_), _ = shards.of_source("wiki")
    orders = [
        shards.gather(copy, np.zeros(first[0], np.int64), np.arange(first[0])).masked_lm_ids
        for copy in (0, 1)
    ]
    assert all((np.diff(order.astype(int)) < 0).any() for order in orders)
    assert not np.array_equal(*(order[:20] for order in orders))


def test_a_single_document_of_a_source_takes_random_sentences_from_others_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"train": (9, 1, 0), "heldout": (2, 0, 0)}
    made = examples(tmp_path, tokens(tmp_path, counts), {**PAIRED, "copies": 4})
    shards = ExampleShards(made, split="train", max_seq_length=32)
    rows, begins = shards.of_source("guides")
    labels = set()
    for copy, shard in np.ndindex(4, 2):
        own = begins[copy][shard] + np.arange(rows[copy][shard])
        labels |= {*shards.sizes(copy, np.full(len(own), shard), own).next_sentence_labels.tolist()}
    assert labels == {0, 1}
    told = capsys.readouterr().err
    assert "source guides has 2 documents for training: its examples lie in few files" in told
    assert "random next sentences may come from other sources; split the text" in told
    assert "source guides has no held-out document, so its held-out loss is not known" in told
    assert "source wiki" not in told


def test_tokens_that_do_not_tell_sources_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="does not say which source .* run the tokens stage"):
        examples(tmp_path, tokens(tmp_path, EVENLY, named=False), PAIRED)


def test_without_names_rows_are_those_of_tokens_without_sources(tmp_path: Path) -> None:
    digests = set()
    for named in (False, True):
        directory = tmp_path / str(named)
        made = tokens(directory, EVENLY, named=named)
        table = examples_table(made, directory / "examples", config=PAIRED)
        digests.add(make_examples(table, []).digest)
    assert len(digests) == 1
