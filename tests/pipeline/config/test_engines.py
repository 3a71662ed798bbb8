"""Options of engines and services that are refused before anything runs."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.config import parse, read_toml
from cloze.artifacts.errors import UsageError
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.plan import Plan
from cloze.pipeline.config.engines import check_engine, given_options
from cloze.pipeline.config.settings import PipelineMachine
from tests.conftest import PROJECT

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
DATAFLOW = {
    "project": "cloze-123456",
    "region": "europe-west3",
    "temp_location": "gs://cloze-123456/temp",
    "sdk_container_image": f"europe-west3-docker.pkg.dev/cloze-123456/cloze/worker:0.1.0-py{OURS}",
}
PORTABLE = {"job_endpoint": "jobs:8099", "environment_type": "EXTERNAL"}


def check(
    runner: str,
    options: dict[str, Any],
    *words: str,
    workspace: str = "gs://bucket/runs",
    path: str = "gs://bucket/texts",
) -> None:
    machine = PipelineMachine(runner=runner, options=options)
    check_engine(machine, words, workspace=workspace, files={"corpus.sources.0.path": path})


def test_options_after_the_dashes_win_and_flags_and_lists_are_kept() -> None:
    machine = PipelineMachine(
        runner="X", options={"a": 1, "flag": True, "off": False, "many": ("x", "y")}
    )
    words = ("--a=2", "--labels=k=v", "--labels", "k2=v2", "--quiet", "--last", "word")
    assert given_options(machine, words) == {
        "a": ("2",),
        "flag": ("true",),
        "many": ("x", "y"),
        "labels": ("k=v", "k2=v2"),
        "quiet": ("true",),
        "last": ("word",),
    }


@pytest.mark.parametrize("name", ["dask", "dataflow", "flink", "portable"])
def test_a_placeholder_of_our_machine_files_is_refused_by_name(name: str) -> None:
    file = PROJECT / "infra" / "machines" / f"{name}.toml"
    machine = parse(MachineConfig, read_toml(file), source=file)
    run = parse(RunConfig, read_toml(PROJECT / "configs" / "smoke.toml"), source="smoke")
    with pytest.raises(UsageError, match=r"^workspace = (gs|s3)://\S+: (MY_PROJECT|my-bucket) is"):
        Plan(run, machine)
    with pytest.raises(UsageError, match=r"^\w+ = \S+: (MY_PROJECT|(WORKER_)?HOST) is a place"):
        check_engine(machine.pipeline, (), workspace="gs://bucket/runs", files={})


def test_a_placeholder_that_is_overridden_is_no_placeholder() -> None:
    check("FlinkRunner", {"job_endpoint": "HOST:8099"}, "--job_endpoint=jobs:8099")


def test_a_cluster_beside_a_job_server_is_refused() -> None:
    with pytest.raises(UsageError, match="flink_master = c:8081 has no effect beside job_endpoint"):
        check("FlinkRunner", {"job_endpoint": "jobs:8099"}, "--flink_master=c:8081")
    check("FlinkRunner", {"job_endpoint": "j:8099"}, "--flink_master=c:8081", "--job_endpoint=")


@pytest.mark.parametrize(
    ("runner", "options", "workspace", "path"),
    [
        ("DataflowRunner", DATAFLOW, "gs://b/runs", "texts"),
        ("PortableRunner", PORTABLE, "s3://b/runs", "/data/texts"),
        ("DaskRunner", {"dask_client_address": "tcp://jobs:8786"}, "s3://b/runs", "texts"),
        (
            "PortableRunner",
            {"job_endpoint": "localhost:1", "environment_type": "DOCKER"},
            "s3://b",
            "t",
        ),
    ],
)
def test_files_that_remote_workers_cannot_reach_are_refused(
    runner: str, options: dict[str, Any], workspace: str, path: str
) -> None:
    with pytest.raises(UsageError, match=rf"corpus.sources.0.path = {path}: .*cannot reach a file"):
        check(runner, options, workspace=workspace, path=path)


@pytest.mark.parametrize(
    ("options", "workspace", "path"),
    [
        (PORTABLE, "/shared/runs", "/shared/texts"),
        (PORTABLE, "s3://b/runs", "file:///shared/texts"),
        ({"job_endpoint": "localhost:8099"}, "s3://b/runs", "texts"),
        ({"job_endpoint": "embed"}, "s3://b/runs", "texts"),
    ],
)
def test_files_that_workers_may_reach_are_left_to_them(
    options: dict[str, Any], workspace: str, path: str
) -> None:
    check("PortableRunner", options, workspace=workspace, path=path)


def test_an_image_with_another_python_is_refused() -> None:
    other = "3.9" if OURS != "3.9" else "3.10"
    options = {"job_endpoint": "jobs:1", "environment_type": "DOCKER"}
    for image in (f"apache/beam_python{other}_sdk:2.77.0", f"r.io/worker:0.1.0-py{other}"):
        with pytest.raises(UsageError, match=f"has Python {other}, this environment {OURS}"):
            check("PortableRunner", {**options, "environment_config": image})
    check("PortableRunner", {**options, "environment_config": f"r.io/worker:1-py{OURS}"})


def test_what_dataflow_accepts_is_accepted() -> None:
    check("DataflowRunner", DATAFLOW)
    check(
        "DataflowRunner",
        {
            **DATAFLOW,
            "project": "example.com:cloze-1",
            "job_name": "cloze-books-1",
            "labels": ("team=nlp", "stage="),
            "machine_type": "n2d-highmem-16",
            "num_workers": 4,
            "max_num_workers": 256,
            "disk_size_gb": 50,
            "sdk_location": "container",
            "staging_location": "gs://cloze-123456/staging",
            "worker_zone": "europe-west3-b",
            "service_account_email": "worker@cloze-123456.iam.gserviceaccount.com",
            "subnetwork": "regions/europe-west3/subnetworks/own",
            "autoscaling_algorithm": "THROUGHPUT_BASED",
        },
    )


REFUSED = {
    "project": ["", "123456789", "My Project", "ab"],
    "region": ["", "europe-west3-b", "Frankfurt", "europe"],
    "temp_location": ["", "s3://b/temp", "gs://Bucket/temp", "gs://cloze-123456", "/tmp"],
    "staging_location": ["gs://cloze-123456/", "staging"],
    "job_name": ["Cloze", "cloze_books", "cloze-", "1st"],
    "labels": ["Team=nlp", "team", "team=N L P", "=x"],
    "service_account_email": ["me@gmail.com", "worker"],
    "sdk_container_image": ["", "worker", "cloze/worker:1", "Docker.pkg.dev/X y:1"],
    "sdk_location": ["missing.tar.gz", "gs://b/cloze-0.1.whl"],
    "setup_file": ["missing.py"],
    "machine_type": ["f1-micro", "e2-small", "large", "n2-standard", "t2a-standard-4"],
    "num_workers": ["0", "many"],
    "max_num_workers": ["-1"],
    "disk_size_gb": ["10"],
    "autoscaling_algorithm": ["FAST"],
    "flexrs_goal": ["CHEAP"],
    "worker_zone": ["europe-west3", "b"],
    "subnetwork": ["own", "regions/us-east1/subnetworks/own"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_what_dataflow_refuses_is_refused_here_with_option_value_and_remedy(
    name: str, value: str
) -> None:
    shown = f"{name} = {value}" if value else f"{name} is missing"
    with pytest.raises(UsageError, match=rf"^DataflowRunner: {re.escape(shown)}: .+; expected .+"):
        check("DataflowRunner", {**DATAFLOW, name: value})


def test_more_dataflow_workers_than_the_most_or_a_zone_beside_a_region_are_refused() -> None:
    with pytest.raises(UsageError, match="num_workers = 9: max_num_workers is 4; expected at most"):
        check("DataflowRunner", {**DATAFLOW, "num_workers": 9, "max_num_workers": 4})
    with pytest.raises(UsageError, match="worker_zone = .*: worker_region is given too"):
        both = {"worker_zone": "europe-west3-b", "worker_region": "europe-west4"}
        check("DataflowRunner", {**DATAFLOW, **both})
    with pytest.raises(UsageError, match="labels = 65 of them: too many"):
        check("DataflowRunner", {**DATAFLOW, "labels": tuple(f"k{n}=v" for n in range(65))})


@pytest.mark.parametrize("workspace", ["s3://bucket/runs", "runs"])
def test_a_workspace_that_dataflow_cannot_write_is_refused(workspace: str) -> None:
    with pytest.raises(UsageError, match="workspace = .*: Dataflow's workers write there"):
        check("DataflowRunner", DATAFLOW, workspace=workspace)


def test_a_run_is_refused_before_its_first_stage(tmp_path: Path) -> None:
    run = parse(RunConfig, read_toml(PROJECT / "configs" / "smoke.toml"), source="smoke")
    table = {"workspace": str(tmp_path), "pipeline": {"runner": "DataflowRunner"}}
    plan = Plan(run, MachineConfig.model_validate(table))
    with pytest.raises(UsageError, match="DataflowRunner: project is missing"):
        plan.check()
    assert not list(tmp_path.iterdir())
