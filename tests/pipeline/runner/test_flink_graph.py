"""What the graphs of all stages consist of, against what Beam's translator for Flink accepts.

No job has been run on Flink here; this is what can be known without. The lists were read in Beam's
Java sources of the line 2.7x (apache/beam): `FlinkStreamingPortablePipelineTranslator` of
runners/flink/2.0 (commit 90108ce), shared by Flink 2.0 to 2.2, which translates batch jobs too,
since Flink 2 has no `DataSet`; `ModelCoders`; the environments of `DefaultJobBundleFactory`.
"""

import math
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from apache_beam.portability.api import beam_runner_api_pb2 as api
from apache_beam.runners.portability.portable_runner import PortableRunner

from cloze.artifacts.progress import Progress
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.plan import Plan
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.runner import engine_job
from cloze.pipeline.runner.beam import PipelineOptions, add_job
from cloze.pipeline.runner.execution import run_inline
from cloze.pipeline.runner.graph import Build, ReportReader, Step, WorkQueue
from tests.cloze.execution.test_text_folder import text
from tests.pipeline.unrun_pipeline import unrun_pipeline

TRANSFORMS = {
    "beam:transform:impulse:v1",
    "beam:transform:flatten:v1",
    "beam:transform:group_by_key:v1",
    "beam:transform:reshuffle:v1",
}
"""Translated one by one. A ParDo becomes part of an executable stage, run by a Python worker."""

PARDO = "beam:transform:pardo:v1"

CODERS = {
    *("beam:coder:bytes:v1", "beam:coder:varint:v1", "beam:coder:kv:v1", "beam:coder:iterable:v1"),
    *("beam:coder:global_window:v1", "beam:coder:windowed_value:v1", "beam:coder:bool:v1"),
    *("beam:coder:string_utf8:v1", "beam:coder:double:v1", "beam:coder:length_prefix:v1"),
}
"""Coders that Java has too; the bytes of any other get a length in front and are passed through."""

ENVIRONMENTS = {"beam:env:external:v1", "beam:env:docker:v1", "beam:env:process:v1"}

CONFIG = {
    "name": "graphs",
    "corpus": {"sources": [{"reader": "text"}], "heldout_share": 0.2},
    "dedup": {"near_duplicates": {}},
    "vocabulary": {"size": 300},
    "examples": {"max_seq_lengths": [64], "copies": 1},
    "encoder": {"max_position_embeddings": 64},
    "pretrain": {"phases": [{"max_seq_length": 64, "share": 1.0}]},
}
EVERYTHING = {"sentences": 3, "tokens": 50}
"""Lines and all spans: as many jobs as the stage can have."""

OPTIONS = ["--environment_type=EXTERNAL", "--environment_config=localhost:50000"]
PROGRAMS = {
    "vocabulary": "cloze.pipeline.vocabulary:make_vocabulary",
    "boilerplate": "cloze.pipeline.boilerplate:make_line_list",
    "dedup": "cloze.pipeline.dedup:make_drop_list",
    "tokens": "cloze.pipeline.tokens:make_tokens",
    "examples": "cloze.pipeline.examples:make_examples",
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[api.Pipeline]]:
    """By stage: the graphs that would have been sent to a job server, one for each job."""
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "texts").mkdir()
    for number in range(20):
        (folder / "texts" / f"{number}.txt").write_text(text(number % 15, 5))
    table: dict[str, Any] = {**CONFIG, "corpus": dict(CONFIG["corpus"])}  # type: ignore[call-overload]
    source = {"reader": "text", "path": str(folder / "texts"), "boilerplate": EVERYTHING}
    table["corpus"]["sources"] = [source]
    machine = {"workspace": str(folder / "runs"), "pipeline": {"runner": "FlinkRunner"}}
    wanted = ("boilerplate", "vocabulary", "dedup", "tokens", "examples")
    plan = Plan(
        RunConfig.model_validate(table), MachineConfig.model_validate(machine), wanted=wanted
    )
    found: dict[str, list[api.Pipeline]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for stage in plan.stages.values():
            found[stage.name] = []
            patch.setattr(engine_job, "run_on_engine", recorder(found[stage.name], folder))
            make = pkgutil.resolve_name(PROGRAMS[stage.name])
            plan.finish(stage.name, make(plan.table(stage), []))
    return found


def recorder(graphs: list[api.Pipeline], folder: Path) -> Any:
    """Keeps a job's graph, and runs it in this process."""

    def run(
        build: Build,
        *,
        machine: PipelineMachine,
        options: Sequence[str],
        progress: Progress,
        output: str,
    ) -> None:
        started = Step("Started", "map", lambda item: item)
        with unrun_pipeline(OPTIONS) as pipeline:
            add_job(build(WorkQueue()), pipeline, started)
            graphs.append(PortableRunner.get_proto_pipeline(pipeline, PipelineOptions(OPTIONS)))
        (folder / "reports").touch()
        reader = ReportReader(str(folder / "reports"), progress)
        run_inline(build(WorkQueue()), reader, math.inf)

    return run


def test_every_stage_sends_jobs(graphs: dict[str, list[api.Pipeline]]) -> None:
    assert graphs.keys() == PROGRAMS.keys()
    assert all(graphs.values()), graphs


def test_all_transforms_are_translated(graphs: dict[str, list[api.Pipeline]]) -> None:
    for stage, jobs in graphs.items():
        for job in jobs:
            made = job.components.transforms.values()
            urns = {one.spec.urn for one in made if not one.subtransforms}
            assert urns <= {PARDO, *TRANSFORMS}, stage
            assert PARDO in urns


def test_no_step_has_side_inputs_state_timers_or_splits(
    graphs: dict[str, list[api.Pipeline]],
) -> None:
    for jobs in graphs.values():
        for transform in (one for job in jobs for one in job.components.transforms.values()):
            assert len(transform.inputs) <= 1
            assert len(transform.outputs) <= 1 or transform.subtransforms
            if transform.spec.urn != PARDO:
                continue
            step = api.ParDoPayload.FromString(transform.spec.payload)
            assert step.do_fn.urn == "beam:dofn:pickled_python_info:v1"
            assert not step.side_inputs
            assert not step.state_specs
            assert not step.timer_family_specs
            assert not step.restriction_coder_id
            assert not step.requests_finalization
            assert not step.requires_stable_input
            assert not step.requires_time_sorted_input


def test_keys_have_a_coder_of_both_languages(graphs: dict[str, list[api.Pipeline]]) -> None:
    for job in (job for jobs in graphs.values() for job in jobs):
        coders, collections = job.components.coders, job.components.pcollections
        for transform in job.components.transforms.values():
            if transform.spec.urn == "beam:transform:group_by_key:v1":
                (given,) = transform.inputs.values()
                pair = coders[collections[given].coder_id]
                assert pair.spec.urn == "beam:coder:kv:v1"
                assert coders[pair.component_coder_ids[0]].spec.urn == "beam:coder:varint:v1"
        others = {coder.spec.urn for coder in coders.values()} - CODERS
        assert others <= {"beam:coder:pickled_python:v1"}


def test_collections_are_bounded_in_one_window_and_need_nothing_else(
    graphs: dict[str, list[api.Pipeline]],
) -> None:
    for job in (job for jobs in graphs.values() for job in jobs):
        assert not job.requirements
        bounded = {one.is_bounded for one in job.components.pcollections.values()}
        assert bounded == {api.IsBounded.BOUNDED}
        for strategy in job.components.windowing_strategies.values():
            assert strategy.window_fn.urn == "beam:window_fn:global_windows:v1"
            assert strategy.trigger.WhichOneof("trigger") == "default"
        environments = {one.urn for one in job.components.environments.values() if one.urn}
        assert environments == {"beam:env:external:v1"} <= ENVIRONMENTS
