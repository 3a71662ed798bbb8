"""Every file in infra/ passes its validator, holds no secret, and is described."""

import ast
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

import hcl2
import pytest
import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.events.schemas.automations import AutomationCore
from prefect.workers.process import ProcessJobConfiguration
from prefect_kubernetes.settings import KubernetesSettings
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from cloze.artifacts.config import parse, read_toml
from cloze.flows.config import MachineConfig, RunConfig

PROJECT = Path(__file__).resolve().parent.parent
INFRA = PROJECT / "infra"
TOOLS = Path(sys.executable).parent
SCRIPTS = [PROJECT / ".ci" / "run", PROJECT / "benchmarks" / "gpu_first_hour.sh"]
SECRET = re.compile(r"(password|api.?key|token|secret)\s*[:=]\s*[\"']?[A-Za-z0-9+/]{12,}", re.I)


def files(pattern: str) -> list[Path]:
    found = sorted(INFRA.rglob(pattern))
    assert found, f"no {pattern} in infra/"
    return found


def passes(tool: str, *arguments: str) -> None:
    run = subprocess.run(
        [TOOLS / tool, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def named(path: Path) -> str:
    return str(path.relative_to(INFRA))


@pytest.mark.parametrize("path", files("*.Dockerfile"), ids=named)
def test_images_pass_hadolint_and_run_as_an_ordinary_user(path: Path) -> None:
    passes("hadolint", str(path))
    users = re.findall(r"^USER (.+)$", path.read_text(), re.M)
    assert users and users[-1] not in {"0", "root"}


def test_every_image_that_is_named_is_built_once() -> None:
    built = re.findall(r"-t (\S+)", (INFRA / "images" / "README.md").read_text())
    assert len(built) == len(set(built))
    text = "\n".join(path.read_text() for path in [*files("*.yaml"), *files("*.toml")])
    assert set(re.findall(r"^\s*image\s*[:=]\s*\"?(cloze[^\s\"]*)", text, re.M)) <= set(built)


def test_compose_file_fits_its_schema() -> None:
    passes(
        "check-jsonschema", "--builtin-schema", "vendor.compose-spec",
        str(INFRA / "compose" / "compose.yaml"),
    )  # fmt: skip


@pytest.mark.skipif(os.getuid() != 0, reason="wants root, to become the user of the image")
@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("service", ["worker", "server"])
def test_a_service_of_compose_ends_where_it_cannot_read_its_password(
    service: str, mode: int
) -> None:
    compose = yaml.safe_load((INFRA / "compose" / "compose.yaml").read_text())
    (command,) = compose["services"][service]["command"]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for secret, found in compose["secrets"].items():
            assert found["file"] == f"./secrets/{secret}"
            (Path(folder) / secret).write_text("of-the-team\n")
            (Path(folder) / secret).chmod(mode)
        shell = command.replace("$$", "$").replace("/run/secrets", folder)
        shell = re.sub(r"exec prefect.*", "exec env", shell)
        as_user = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups"]
        done = subprocess.run(
            [*as_user, "sh", "-c", shell], capture_output=True, text=True, check=False, cwd="/"
        )
    readable = mode == 0o644
    assert (done.returncode == 0) == readable, done.stderr
    assert ("API_AUTH_STRING=team:of-the-team\n" in done.stdout) == readable


def test_workers_in_kubernetes_know_the_servers_password_and_watch_their_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    containers = {
        path.stem: made["spec"]["template"]["spec"]["containers"][0]
        for path in files("kubernetes/prefect-*.yaml") + files("kubernetes/pool-worker.yaml")
        for made in yaml.safe_load_all(path.read_text())
        if made["kind"] == "Deployment"
    }
    environments = {
        name: {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}
        for name, container in containers.items()
    }
    secret = {"secretKeyRef": {"name": "cloze-prefect", "key": "auth-string"}}
    assert environments["prefect-server"]["PREFECT_SERVER_API_AUTH_STRING"] == secret
    for name in ("prefect-worker", "pool-worker"):
        assert environments[name]["PREFECT_API_AUTH_STRING"] == secret
        assert environments[name]["PREFECT_API_URL"] == "http://cloze-prefect-server:4200/api"
    namespace = {"fieldRef": {"fieldPath": "metadata.namespace"}}
    pool = environments["pool-worker"]
    assert pool["PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES"] == namespace
    settings = {name: value for name, value in pool.items() if isinstance(value, str)}
    settings["PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES"] = "a"
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    read = KubernetesSettings()
    assert read.observer.namespaces == {"a"}
    assert read.worker.api_auth_string_secret_name == "cloze-prefect"
    assert read.worker.api_auth_string_secret_key == "auth-string"


@pytest.mark.parametrize("path", files("kubernetes/*.yaml"), ids=named)
def test_kubernetes_objects_are_valid_strictly(path: Path) -> None:
    passes("kubernetes-validate", "--strict", str(path))


def test_a_flow_of_the_kubernetes_pool_is_a_valid_job_of_an_ordinary_user(tmp_path: Path) -> None:
    template = json.loads((INFRA / "kubernetes" / "pool.json").read_text())
    deployment = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"][0]
    values = {**deployment["work_pool"]["job_variables"], "memory_limit": "32Gi"}
    nobody = PrefectClient("http://127.0.0.1:9/api")  # the template refers to nothing on a server
    form = KubernetesWorkerJobConfiguration.from_template_and_values
    job = asyncio.run(form(template, values, client=nobody))
    job.prepare_for_flow_run(FlowRun(flow_id=uuid4(), name="smoke"))
    pod = job.job_manifest["spec"]["template"]["spec"]
    for misplaced in (
        "completions",
        "parallelism",
    ):  # Prefect wants them there, a server drops them
        assert pod.pop(misplaced) == 1
    metadata = job.job_manifest["metadata"]
    metadata["name"] = metadata.pop("generateName") + "0"  # as the server does
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job.job_manifest))
    passes("kubernetes-validate", "--strict", str(manifest))
    (container,) = pod["containers"]
    assert [*container["command"], *container["args"]] == ["env", "prefect", "flow-run", "execute"]
    assert {"name": "PYTHONSAFEPATH", "value": "1"} in container["env"]
    assert container["resources"]["limits"] == {"memory": "32Gi"}
    assert container["workingDir"] == container["volumeMounts"][0]["mountPath"] == "/workspace"
    assert pod["securityContext"]["runAsNonRoot"]


@pytest.mark.parametrize("path", [*files("*.yaml"), PROJECT / "prefect.yaml"], ids=str)
def test_yaml_is_tidy(path: Path) -> None:
    passes("yamllint", "-c", str(PROJECT / ".yamllint.yaml"), "--strict", str(path))


@pytest.mark.parametrize("path", [*files("*.sbatch"), *files("*.sh"), *SCRIPTS], ids=str)
def test_shell_scripts_pass_shellcheck(path: Path) -> None:
    passes("shellcheck", str(path))


def test_jobs_that_train_start_their_ranks_through_the_supervisor() -> None:
    jobs = [*files("slurm/pretrain*.sbatch"), INFRA / "kubernetes" / "pretrain.yaml"]
    for path in jobs:
        lines = [
            line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")
        ]
        words = " ".join(lines).replace("- ", " ").split()
        place = words.index("cloze.model.training.supervisor")
        assert any(word.startswith("--ranks") for word in words[place:]), path
        assert "deepspeed" not in words, f"{path}: ranks without their environment"


def test_gpus_train_with_whole_parameters_and_the_image_compiles_their_layers() -> None:
    machine = read_toml(INFRA / "machines" / "gpus.toml")
    training = parse(MachineConfig, machine, source="gpus.toml").training
    assert (training.zero_stage, training.compile_layers) == (0, "auto")
    image = (INFRA / "images" / "cloze.Dockerfile").read_text()
    assert {"gcc", "libc6-dev"} <= set(re.findall(r"(\S+)=", image))


@pytest.mark.parametrize("path", files("*.tf"), ids=named)
def test_terraform_parses_and_is_formatted(path: Path) -> None:
    text = path.read_text()
    assert hcl2.loads(text)
    for number, line in enumerate(text.splitlines(), start=1):
        indent = len(line) - len(line.lstrip(" "))
        assert "\t" not in line and line == line.rstrip() and indent % 2 == 0, f"line {number}"


@pytest.mark.skipif(not shutil.which("terraform"), reason="wants terraform")
def test_terraform_would_format_nothing() -> None:
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-diff", "-recursive", str(INFRA)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_terraform_variables_are_described_and_used() -> None:
    text = "\n".join(path.read_text() for path in files("*.tf"))
    declared = re.findall(r'^variable "(\w+)"', text, re.M)
    assert declared
    assert len(re.findall(r"^  description\s+=", text, re.M)) >= len(declared)
    for name in declared:
        assert f"var.{name}" in text, f"{name} is declared and never used"


@pytest.mark.parametrize("path", files("prefect/*.yaml"), ids=named)
def test_automations_fit_prefects_own_form(path: Path) -> None:
    text = path.read_text().replace("BLOCK_ID", str(uuid4()))
    automation = AutomationCore.model_validate(yaml.safe_load(text))
    assert automation.enabled and automation.actions and automation.description


def test_every_deployment_names_a_flow_that_is_there() -> None:
    found = yaml.safe_load((PROJECT / "prefect.yaml").read_text())
    entries = [entry["entrypoint"].rpartition(".") for entry in found["deployments"]]
    assert len(entries) == 6
    for module, _, function in entries:
        tree = ast.parse((PROJECT / f"{module.replace('.', '/')}.py").read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    shown = found["definitions"]["common"]["parameters"]
    parse(RunConfig, shown["run"], source="prefect.yaml")


def test_flows_run_where_their_worker_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = yaml.safe_load((PROJECT / "prefect.yaml").read_text())
    for deployment in found["deployments"]:
        job = ProcessJobConfiguration.model_validate(deployment["work_pool"]["job_variables"])
        assert job.working_dir
        assert job.working_dir.resolve() == tmp_path
        assert job.env == {"PYTHONSAFEPATH": "1"}


@pytest.mark.parametrize("path", files("machines/*.toml"), ids=named)
def test_machine_files_are_valid(path: Path) -> None:
    parse(MachineConfig, read_toml(path), source=path)


@pytest.mark.parametrize(
    "folder", sorted(path for path in INFRA.iterdir() if path.is_dir()), ids=named
)
def test_every_folder_says_command_cost_and_how_to_take_it_down(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert "```" in text
    for word in ("cost", "down"):
        assert word in text


@pytest.mark.parametrize("path", [path for path in files("*") if path.is_file()], ids=named)
def test_no_file_holds_a_secret(path: Path) -> None:
    assert not SECRET.search(path.read_text())
