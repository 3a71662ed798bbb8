"""Jobs that read the corpus, on engines other than the local one."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cloze.artifacts.config import parse
from cloze.artifacts.progress import Progress
from cloze.pipeline import tokens
from cloze.pipeline.config import settings
from cloze.pipeline.config.settings import DedupStage, PipelineMachine, TokensStage
from cloze.pipeline.dedup import DuplicateSearch, write_candidates
from cloze.pipeline.readers import input_shards as input_shards_module
from cloze.pipeline.readers.input_shards import input_shards
from cloze.pipeline.runner.beam import add_job
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import JobFailed, WorkQueue, for_each
from cloze.pipeline.shuffle import beam_group_by_key as shuffle
from cloze.pipeline.shuffle.beam_group_by_key import (
    BeamGroupByKey,
    ShufflePlan,
    packed_ranges,
    unpack,
)
from cloze.pipeline.shuffle.buckets import Cardinality
from cloze.pipeline.vocabulary import sample_shard
from tests.pipeline.corpora import documents, given_vocabulary, source, tokens_table, write_jsonl
from tests.pipeline.unrun_pipeline import DRY_RUN, unrun_pipeline

DATAFLOW = importlib.util.find_spec("apitools") is not None
STAGES = ["vocabulary", "dedup", "tokens"]


@pytest.fixture
def builds(tmp_path: Path):
    """Functions that build the stages' jobs for a remote engine."""
    write_jsonl(tmp_path / "all.jsonl", documents(1, 40))
    vocabulary = given_vocabulary(tmp_path / "vocabulary")
    table = tokens_table(tmp_path / "out", [source(tmp_path / "all.jsonl")], vocabulary=vocabulary)
    stage = parse(TokensStage, table.config, source="test")
    work = input_shards(stage.corpus)
    job = tokens.tokens_job(table, stage)
    remote = Runner(PipelineMachine(runner="DataflowRunner"), options=[], output="")
    backend = tokens.choose_backend(work, job=job, runner=remote)
    assert isinstance(backend, BeamGroupByKey)
    known = {name: one for name, one in table.config.items() if name in DedupStage.model_fields}
    stage_of_dedup = DedupStage.model_validate({**known, "dedup": {"near_duplicates": {}}})
    search = DuplicateSearch(stage_of_dedup, "gs://bucket/dedup")
    return {
        "tokens": partial(backend.graph, work),
        "vocabulary": for_each(
            work,
            partial(sample_shard, stage=stage, limit=1 << 64, directory="gs://bucket/work"),
            label="Sample",
        ),
        "dedup": for_each(work, partial(write_candidates, search=search), label="DuplicateSearch"),
    }


@pytest.mark.parametrize("stage", STAGES)
def test_the_graph_is_a_chain(builds, stage: str) -> None:
    with unrun_pipeline() as pipeline:
        add_job(builds[stage](WorkQueue()), pipeline)
        components = pipeline.to_runner_api().components
    for transform in components.transforms.values():
        assert len(transform.inputs) <= 1
        assert len(transform.outputs) <= 1


@pytest.mark.skipif(not DATAFLOW, reason="apache-beam[gcp] is not installed")
@pytest.mark.parametrize("stage", STAGES)
def test_dataflow_translates_the_graph_offline(builds, stage: str, tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="the graph was translated; nothing was submitted"):
        remote = Runner(
            PipelineMachine(runner="DataflowRunner"), options=DRY_RUN, output=str(tmp_path)
        )
        remote.run(builds[stage], Progress(stage, total=1, unit="MB"))


TEXTS = documents(2, 2_000)
FREQUENT = " ".join(documents(3, 12))
"""A text of 2 kB that is in every shard."""
MANY = [
    text
    for number, text in enumerate(TEXTS)
    for text in ([text, FREQUENT][: 1 + (not number % 25)])
]


@pytest.mark.parametrize(
    "corpus",
    [
        {"huge": (MANY, 1, {}), "held out": (documents(4, 30), 1, {"heldout": "small"})},
        {"a file each": (MANY[:300], 300, {}), "rest": (MANY[300:], 3, {})},
        {"held out": (MANY, 4, {"heldout": "large"}), "trains": (MANY[::7], 2, {})},
    ],
    ids=["a huge source beside a small held-out one", "many small files", "a held-out majority"],
)
def test_no_key_gathers_more_than_some_buckets_of_a_skewed_corpus(
    corpus: dict[str, tuple[list[str], int, dict[str, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The digest equals that of the local runner."""
    monkeypatch.setattr(settings, "BUCKET_BYTES", 8_000)
    monkeypatch.setattr(settings, "DOCUMENTS_PER_BUCKET", 40)
    monkeypatch.setattr(input_shards_module, "BLOCK_BYTES", 6_000)
    monkeypatch.setattr(shuffle, "SAMPLED_BYTES", 500)  # always samples the frequent text
    sources = []
    for name, (texts, files, options) in corpus.items():
        for number in range(files):
            write_jsonl(tmp_path / name / f"{number}.jsonl", texts[number::files])
        sources.append(source(tmp_path / name, **options))
    vocabulary = given_vocabulary(tmp_path / "vocabulary")
    table = partial(tokens_table, sources=sources, vocabulary=vocabulary, heldout_share=0.01)
    here = tokens.make_tokens(table(tmp_path / "here"), [])
    gathered: list[int] = []
    write = shuffle.write_buckets

    def measured(values, *, backend):
        key, blobs = values[0], list(values[1])
        if key < len(backend.plan().buckets):
            gathered.append(sum(map(len, blobs)))
        return write((key, blobs), backend=backend)

    def engine_shuffle(shards, *, job, runner):
        return BeamGroupByKey(job, f"{job.output}/work", len(shards))

    monkeypatch.setattr(shuffle, "write_buckets", measured)
    monkeypatch.setattr(tokens, "choose_backend", engine_shuffle)
    assert tokens.make_tokens(table(tmp_path / "there"), []).digest == here.digest
    assert len(gathered) > 20
    assert max(gathered) < 24_000  # 88,000 to 131,000 if each shard sent the frequent text


def test_packed_documents_are_the_documents() -> None:
    ids = [[1, 2, 3], [4], [5, 6]]
    rows = pa.table(
        {
            "document_digest": pa.array([bytes([n]) * 16 for n in range(3)], pa.binary(16)),
            "source": pa.array([0, 1, 2], pa.uint16()),
            "file": pa.array([7, 8, 9], pa.uint32()),
            "position": pa.array([1 << 40, 0, 5], pa.int64()),
            "text_bytes": pa.array([11, 12, 13], pa.uint32()),
            "token_ids": pa.array(ids, pa.list_(pa.uint16())),
            "sentence_lengths": pa.array([[2, 1], [1], [2]], pa.list_(pa.uint32())),
            "split": pa.array([0, 2, 0], pa.uint8()),
        }
    )
    stretches = list(packed_ranges(rows, np.array([True, False, True]), [2, 3]))
    found = unpack(reversed(stretches), vocabulary_size=100)
    assert found["token_ids"].to_pylist() == [ids[2], ids[0], []]
    assert found["sentence_lengths"].to_pylist() == [[2], [2, 1], []]
    assert found["key"].to_pylist() == [n * 0x0101010101010101 for n in (2, 0, 1)]
    for name in ("document_digest", "source", "file", "position", "text_bytes", "split"):
        assert found[name].to_pylist() == [rows[name].to_pylist()[n] for n in (2, 0, 1)]
    assert unpack([], vocabulary_size=100).num_rows == 0


def test_the_shard_that_sends_a_frequent_text_does_not_depend_on_who_counted_first() -> None:
    once, frequent, held = (0, b"a" * 16), (0, b"b" * 16), (1, b"b" * 16)
    samples = [(frequent, "f00d"), (once, "0000"), (held, "cafe"), (frequent, "beef")]
    samples += [(held, "dead"), (frequent, "d00d")]
    expected = {frequent: "beef", held: "cafe"}
    assert shuffle.carriers(samples) == shuffle.carriers(samples[::-1]) == expected


def test_a_plan_survives_its_file(builds) -> None:
    smallest = Cardinality(np.array([3, (1 << 64) - 1], dtype=np.uint64), np.array([5, 6]))
    job = builds["tokens"].func.__self__.job
    plan = ShufflePlan(job, (smallest, smallest), {(1, b"d" * 16): "shard"})
    again = ShufflePlan.from_json(plan.to_json(), job)
    assert again.carriers == plan.carriers
    assert again.smallest[1].keys_D.tolist() == [3, (1 << 64) - 1]
    assert again.smallest[1].bytes_D.tolist() == [5, 6]
