"""Programs as Kubernetes Jobs; flow and pods mount the same workspace at the same path.

In:  an argv and a job directory on the shared workspace.
Out: a Job whose pod runs the program under a supervisor; its exit code in DIRECTORY/exit.

All access to the cluster is through `kubectl`, with its user's permissions. If a pod is evicted,
its Job starts another, and the program resumes its work. A restarted flow finds its Job through
DIRECTORY/job.json.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import TypedDict

from pydantic import Field

from cloze.artifacts.config import Config
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.flows.launchers.launcher import LOST, Job, identity, packaged, supervisor_argv

QUERY_SECONDS = 5.0
"""Seconds between queries to the cluster; the file with the exit code is always checked."""

POD_GRACE_SECONDS = 30.0
"""Added to the program's grace period before the kubelet kills the pod."""

MANIFEST = "kubernetes.json.template"
SCRIPT = "kubernetes.sh.template"


class KubernetesConfig(Config):
    """Kubernetes (`jobs.launcher = "kubernetes"`); the workspace is mounted here and in pods."""

    image: str = "cloze-trainer:0.1.0"
    """Image with Cloze in it (infra/images)."""

    namespace: str = "default"
    """Namespace of the Jobs."""

    claim: str = "cloze-workspace"
    """Volume claim of the workspace (infra/kubernetes/workspace.yaml)."""

    mount: str = "/workspace"
    """Mount path of the claim, in the pods and in the flow's own pod."""

    cpu: str = "4"
    """CPUs per pod."""

    memory: str = "16Gi"
    """Memory per pod."""

    gpus: int = Field(default=0, ge=0)
    """GPUs per pod; should equal `training.ranks`."""


class KubernetesJob(Job):
    """A Job of the cluster."""

    name: str
    """Its name in the namespace."""

    identity: str
    """Digest of its argv and stage table; a Job with another digest is replaced."""


class _JobStatus(TypedDict, total=False):
    """The fields of a Job's status that we read (Kubernetes API, batch/v1 JobStatus)."""

    conditions: list[dict[str, str]] | None
    """Of each its `type`, its `status`, and more."""

    ready: int


class KubernetesLauncher:
    """Creates, watches and deletes Jobs."""

    def __init__(self, config: KubernetesConfig, *, grace: float) -> None:
        self.config = config
        self.grace = grace
        self._queried_at = 0.0
        self._status: _JobStatus | None = {}

    def start(self, argv: Sequence[str], *, job: Path) -> None:
        """Create a Job for `argv`, unless the same one exists already."""
        mount = self.config.mount
        if not Path(os.path.abspath(job)).is_relative_to(mount):
            raise UsageError(
                f"{job.name}: {job} is not below {mount} (kubernetes.mount), so its pod could not "
                f"see it; choose a workspace below {mount}, and copy artifacts there from buckets"
            )
        # An earlier flow's Job: wait for it if it is the same, replace any other.
        found = KubernetesJob.read(job)
        if found and self._query(found) is not None:
            if found.identity == identity(argv) and not (job / "exit").exists():
                return
            self.cancel(job)
        job.mkdir(parents=True, exist_ok=True)
        # An old exit code would end the wait at once.
        (job / "exit").unlink(missing_ok=True)
        name = f"cloze-{job.name}-{identity(argv)[:8]}"
        # The record first: if this flow dies in between, the next one finds a name without a Job,
        # which is harmless, instead of a Job that nobody knows of.
        KubernetesJob(name=name, identity=identity(argv)).write(job)
        self._kubectl("apply", "-f", "-", given=json.dumps(self.manifest(name, argv, job=job)))

    def poll(self, job: Path) -> int | None:
        """The exit code; None while the Job exists and has not failed."""
        # The exit code on the shared disk is what counts; the cluster is asked while there is none.
        if (job / "exit").exists():
            return int((job / "exit").read_text())
        found = KubernetesJob.read(job)
        if found is None:
            return LOST
        # The wait polls twenty times a second; each query starts a program and asks the cluster's
        # API.
        if time.monotonic() - self._queried_at >= QUERY_SECONDS:
            self._status, self._queried_at = self._query(found), time.monotonic()
        if self._status is None:
            return LOST
        conditions = self._status.get("conditions") or []
        failed = any(one["type"] == "Failed" and one["status"] == "True" for one in conditions)
        return LOST if failed else None

    def queued(self, job: Path) -> bool:
        """Whether its pod is waiting for a node."""
        return not (self._status or {}).get("ready")

    def cancel(self, job: Path) -> None:
        """Delete the Job and its pods, and wait until they are gone."""
        found = KubernetesJob.read(job)
        if found is not None:
            seconds = round(self.grace + 2 * POD_GRACE_SECONDS)
            wait = ("--cascade=foreground", "--ignore-not-found", f"--timeout={seconds}s")
            self._kubectl("delete", "job", found.name, *wait)

    def manifest(self, name: str, argv: Sequence[str], *, job: Path) -> dict[str, object]:
        """The Job's manifest."""
        config = self.config
        # Devices cannot be shared: the cluster refuses a request for them that differs from the
        # limit.
        devices = {"nvidia.com/gpu": str(config.gpus)} if config.gpus else {}
        values = {
            "name": name,
            "namespace": config.namespace,
            "labels": {"app": "cloze", "cloze-stage": job.name},
            "grace": round(self.grace + POD_GRACE_SECONDS),
            "image": config.image,
            "command": ["sh", "-c", self.script(argv, job=job)],
            "requests": {"cpu": config.cpu, "memory": config.memory, **devices},
            # No limit on CPUs: the kernel would throttle threads that have used up their share of
            # 100 ms, however idle the node is.
            "limits": {"memory": config.memory, **devices},
            "mount": config.mount,
            "claim": config.claim,
        }
        # JSON within JSON: each value is encoded before it enters the template.
        encoded = {place: json.dumps(value) for place, value in values.items()}
        return dict(json.loads(Template(packaged(MANIFEST)).substitute(encoded)))

    def script(self, argv: Sequence[str], *, job: Path) -> str:
        """The pod's shell script, which uses the image's `python`."""
        program = ["python" if word == sys.executable else word for word in argv]
        return packaged(SCRIPT).format(
            job=shlex.quote(str(job)),
            supervisor=shlex.join(supervisor_argv(job, grace=self.grace, python="python")),
            program=shlex.join(program),
        )

    def _query(self, job: KubernetesJob) -> _JobStatus | None:
        """The Job's status; None if there is no such Job."""
        found = self._kubectl("get", "job", job.name, "--ignore-not-found", "-o", "json")
        status: _JobStatus | None = json.loads(found).get("status", {}) if found.strip() else None
        return status

    def _kubectl(self, *arguments: str, given: str = "") -> str:
        argv = ("kubectl", "--namespace", self.config.namespace, *arguments)
        try:
            done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise ClozeError("kubectl not found; install it, or set jobs.launcher") from None
        if done.returncode:
            raise ClozeError(f"kubectl {arguments[0]}: {done.stderr.strip()}")
        return done.stdout
