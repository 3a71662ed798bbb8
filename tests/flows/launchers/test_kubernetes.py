"""Kubernetes Jobs, through a `kubectl` that runs the pod's command here."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.artifacts.errors import UsageError
from cloze.flows.launchers.kubernetes import KubernetesConfig, KubernetesJob, KubernetesLauncher
from tests.waiting import wait_for

KUBECTL = f"""#!{sys.executable}
import contextlib, json, os, pathlib, signal, subprocess, sys
folder = pathlib.Path(__file__).parent
verb = sys.argv[3]
if verb == "apply":
    manifest = json.load(sys.stdin)
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    pod = subprocess.Popen(container["command"], start_new_session=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (folder / manifest["metadata"]["name"]).write_text(str(pod.pid))
elif verb == "get":
    pod = folder / sys.argv[5]
    if pod.exists():
        print(json.dumps({{"status": {{"ready": 1}}}}))
elif verb == "delete":
    pod = folder / sys.argv[5]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int(pod.read_text()), signal.SIGTERM)
    pod.unlink()
"""


@pytest.fixture
def config(tmp_path: Path) -> KubernetesConfig:
    return KubernetesConfig(mount=str(tmp_path))


@pytest.fixture
def launcher(
    config: KubernetesConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> KubernetesLauncher:
    (tmp_path / "bin").mkdir()
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    # this interpreter stands for the image's
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    return KubernetesLauncher(config, grace=2.0)


def python(source: str) -> list[str]:
    return [sys.executable, "-P", "-c", source]


def test_a_job_leaves_its_output_and_its_exit_code(
    launcher: KubernetesLauncher, tmp_path: Path
) -> None:
    job = tmp_path / "pretrain"
    launcher.start(python("print('done'); raise SystemExit(2)"), job=job)
    wait_for(lambda: launcher.poll(job) is not None)
    assert (launcher.poll(job), (job / "log").read_text()) == (2, "done\n")


def test_a_cancelled_job_is_gone(launcher: KubernetesLauncher, tmp_path: Path) -> None:
    job = tmp_path / "pretrain"
    launcher.start(python("import time; print('begun', flush=True); time.sleep(300)"), job=job)
    wait_for(lambda: (job / "log").exists() and (job / "log").read_text())
    launcher.cancel(job)
    found = KubernetesJob.read(job)
    assert found
    assert not (tmp_path / "bin" / found.name).exists()


def test_a_flow_that_died_finds_its_job_again(
    config: KubernetesConfig, launcher: KubernetesLauncher, tmp_path: Path
) -> None:
    job, enough = tmp_path / "pretrain", tmp_path / "enough"
    argv = python(
        "import pathlib, time\n"
        f"while not pathlib.Path({str(enough)!r}).exists(): time.sleep(0.05)\n"
        "print('once')"
    )
    launcher.start(argv, job=job)
    again = KubernetesLauncher(config, grace=2.0)
    again.start(argv, job=job)
    enough.touch()
    wait_for(lambda: again.poll(job) is not None)
    assert (again.poll(job), (job / "log").read_text()) == (0, "once\n")


def test_a_job_that_nobody_knows_any_more_is_lost(
    launcher: KubernetesLauncher, tmp_path: Path
) -> None:
    job = tmp_path / "pretrain"
    launcher.start(python("import time; time.sleep(300)"), job=job)
    found = KubernetesJob.read(job)
    assert found
    pod = tmp_path / "bin" / found.name
    process = int(pod.read_text())
    pod.unlink()
    code = launcher.poll(job)
    os.killpg(process, signal.SIGTERM)
    assert code is not None
    assert code < 0


def test_a_job_that_no_pod_would_see_is_refused(tmp_path: Path) -> None:
    """As for a workspace in a bucket, whose jobs are on the flow's own disk."""
    job = tmp_path / "pretrain"
    with pytest.raises(UsageError, match=r"pretrain is not below /workspace \(kubernetes.mount\)"):
        KubernetesLauncher(KubernetesConfig(), grace=2.0).start(python(""), job=job)
    assert not job.exists()


@pytest.mark.parametrize("gpus", [0, 8])
def test_the_manifest_is_valid_to_the_letter(tmp_path: Path, gpus: int) -> None:
    validator = Path(sys.executable).parent / "kubernetes-validate"
    launcher = KubernetesLauncher(KubernetesConfig(gpus=gpus), grace=30.0)
    manifest = launcher.manifest("cloze-pretrain-12345678", ["python"], job=Path("/workspace/j"))
    (tmp_path / "job.json").write_text(json.dumps(manifest))
    argv = [str(validator), "--strict", str(tmp_path / "job.json")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
