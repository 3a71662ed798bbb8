"""The graphs of the stages that read the corpus, on engines other than the local one."""

import importlib.util
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from artifacts.config import parse
from artifacts.progress import Progress
from pipeline import tokens
from pipeline.config.stage_tables import DedupStage, PipelineMachine, TokensStage
from pipeline.dedup import Search, search_graph
from pipeline.readers.input_shards import input_shards
from pipeline.runner.beam import Pipeline
from pipeline.runner.beam_graph import add_job
from pipeline.runner.execution import run_graph
from pipeline.runner.job_errors import JobFailed
from pipeline.runner.work_queue import WorkQueue
from pipeline.shuffle.beam_group_by_key import BeamGroupByKey, partition_bits, partition_of
from pipeline.tokenizer.learning import Sampling
from pipeline.vocabulary import candidates_graph
from tests.pipeline.corpora import documents, given_vocabulary, source, tokens_table, write_jsonl

DATAFLOW = importlib.util.find_spec("apitools") is not None
STAGES = ["vocabulary", "dedup", "tokens"]
DRY_RUN = [
    "--dry_run=True",
    "--no_auth",
    "--project=none",
    "--region=europe-west1",
    "--staging_location=gs://bucket/staging",
    "--temp_location=gs://bucket/temp",
    "--sdk_container_image=image",
    "--sdk_location=container",
]


@pytest.fixture
def builds(tmp_path: Path):
    """Functions that add the graphs of the stages as an engine elsewhere gets them."""
    write_jsonl(tmp_path / "all.jsonl", documents(1, 40))
    vocabulary = given_vocabulary(tmp_path / "vocabulary")
    table = tokens_table(tmp_path / "out", [source(tmp_path / "all.jsonl")], vocabulary=vocabulary)
    stage = parse(TokensStage, table.config, source="test")
    work = input_shards(stage.corpus)
    job = tokens.tokens_job(table, stage)
    remote = PipelineMachine(runner="DataflowRunner")
    backend = tokens.choose_backend(work, job=job, machine=remote)
    assert isinstance(backend, BeamGroupByKey)
    sampling = Sampling(stage.corpus, stage.cleaning, 1, 1 << 64)
    wanted = {"near_duplicates": {}}
    stage_of_dedup = DedupStage.model_validate({**table.config, "dedup": wanted})
    search = Search(stage_of_dedup, "gs://bucket/dedup")
    return {
        "tokens": partial(tokens.tokens_graph, shards=work, backend=backend, job=job),
        "vocabulary": partial(
            candidates_graph, shards=work, sampling=sampling, directory="gs://bucket/work"
        ),
        "dedup": partial(search_graph, shards=work, search=search),
    }


@pytest.mark.parametrize("stage", STAGES)
def test_the_graph_is_a_chain(builds, stage: str) -> None:
    pipeline = Pipeline()
    add_job(builds[stage](WorkQueue()), pipeline)
    for transform in pipeline.to_runner_api().components.transforms.values():
        assert len(transform.inputs) <= 1
        assert len(transform.outputs) <= 1


@pytest.mark.skipif(not DATAFLOW, reason="apache-beam[gcp] is not installed")
@pytest.mark.parametrize("stage", STAGES)
def test_dataflow_translates_the_graph_offline(builds, stage: str) -> None:
    with pytest.raises(JobFailed, match="the graph was translated; a dry run submits nothing"):
        run_graph(
            builds[stage],
            machine=PipelineMachine(runner="DataflowRunner"),
            options=DRY_RUN,
            progress=Progress(stage, total=1, unit="MB"),
        )


def test_partitions_are_ranges_of_digests() -> None:
    keys = np.array([0, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 64) - 1], dtype=np.uint64)
    assert partition_of(keys, 2).tolist() == [0, 0, 0, 1, 3]
    assert partition_of(keys, 0).tolist() == [0, 0, 0, 0, 0]


def test_there_are_enough_partitions_and_not_too_many() -> None:
    assert [partition_bits(size) for size in (0, 1 << 26, 1 << 30, 1 << 50)] == [0, 0, 4, 10]
