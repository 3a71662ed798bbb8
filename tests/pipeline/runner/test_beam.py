"""Jobs on remote engines: translated offline, or run if one is available."""

import importlib.util
import os
from functools import partial

import pytest

from cloze.artifacts.progress import Progress
from cloze.pipeline.config.settings import ExamplesConfig, ExamplesStage, PipelineMachine
from cloze.pipeline.examples import ExamplesPlaces, buckets_of, recipe_of, write_examples
from cloze.pipeline.runner.beam import add_job
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import JobFailed, WorkQueue, for_each
from tests.pipeline.synthetic_tokens import (
    random_documents,
    small_tokenizer,
    tokens_artifact,
    tokens_table,
)
from tests.pipeline.unrun_pipeline import DRY_RUN, unrun_pipeline

DATAFLOW = importlib.util.find_spec("apitools") is not None
JOB_SERVER = os.environ.get("FLINK_JOB_SERVER_JAR", "")


def build_of(tokens, tokenizer, output):
    stage = ExamplesStage(seed=1, examples=ExamplesConfig(max_seq_lengths=(64,), copies=2))
    buckets = list(buckets_of(tokens, stage.examples))
    recipe = recipe_of(stage, tokenizer)
    places = ExamplesPlaces(tokens.directory, str(output))
    write = partial(write_examples, recipe=recipe, places=places)
    return for_each(buckets, write, label="WriteExamples")


@pytest.fixture(scope="module")
def tokenizer():
    return small_tokenizer()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory, tokenizer):
    tables = {
        ("train", bucket): tokens_table(
            random_documents(bucket, count=20), vocabulary_size=tokenizer.size
        )
        for bucket in range(3)
    }
    return tokens_artifact(tmp_path_factory.mktemp("tokens"), tables, tokenizer=tokenizer)


def test_the_graph_is_a_chain(tokens, tokenizer, tmp_path):
    """One input, one output, no tags: the graphs that every engine supports."""
    with unrun_pipeline() as pipeline:
        add_job(build_of(tokens, tokenizer, tmp_path)(WorkQueue()), pipeline)
        components = pipeline.to_runner_api().components
    for transform in components.transforms.values():
        assert len(transform.inputs) <= 1
        assert len(transform.outputs) <= 1


@pytest.mark.skipif(not DATAFLOW, reason="apache-beam[gcp] is not installed")
def test_dataflow_translates_the_graph_offline(tokens, tokenizer, tmp_path):
    with pytest.raises(JobFailed, match="the graph was translated; nothing was submitted"):
        Runner(
            PipelineMachine(runner="DataflowRunner"),
            options=DRY_RUN,
            output=str(tmp_path),
        ).run(
            build_of(tokens, tokenizer, "gs://bucket/examples"),
            Progress("examples", total=1, unit="MB"),
        )


@pytest.mark.skipif(not JOB_SERVER, reason="FLINK_JOB_SERVER_JAR names no Flink job server")
def test_flink_makes_the_same_files(tokens, tokenizer, tmp_path):
    local = PipelineMachine(worker_mode="inline")
    flink = PipelineMachine(runner="FlinkRunner")
    options = [
        f"--flink_job_server_jar={JOB_SERVER}",
        "--flink_master=[local]",
        "--environment_type=LOOPBACK",
    ]
    for name, machine, given in (("local", local, []), ("flink", flink, options)):
        Runner(machine, options=given, output=str(tmp_path / name)).run(
            build_of(tokens, tokenizer, tmp_path / name),
            Progress("examples", total=1, unit="MB"),
        )
    names = [sorted(p.name for p in (tmp_path / n).glob("*.arrow")) for n in ("local", "flink")]
    assert names[0] == names[1]
    assert names[0]
