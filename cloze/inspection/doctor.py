"""`cloze doctor`: what this machine has, what it lacks, and what that means.

In:  nothing.
Out: one line per check; exit code 1 if something must be mended before Cloze can work.
"""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from cloze.answer import Answer
from cloze.options import PLACE, Place

EXTRAS = ("", "pipeline", "model", "flows")
"""Parts of the installation; `dev` is for those who change Cloze."""

TOOLS = {
    "g++": "only needed where DeepSpeed builds operators for GPUs",
    "ninja": "only needed where DeepSpeed builds operators for GPUs",
    "numactl": "only needed for --bind_cores_to_rank",
}

GIB = 1 << 30
MARKS = {"good": "✓", "note": "·", "bad": "✗"}


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    state: Literal["good", "note", "bad"]
    found: str
    """What there is, or what to do."""


def doctor(*, place: Place = PLACE) -> Answer:
    """Look at this machine."""
    checks = [
        _python(),
        *_packages(),
        _processors(),
        _device(),
        *_tools(),
        *_stale_locks(),
        _workspace(place),
    ]
    lines = [f"{MARKS[check.state]} {check.name:<15} {check.found}" for check in checks]
    sick = any(check.state == "bad" for check in checks)
    data = {"healthy": not sick, "checks": [asdict(check) for check in checks]}
    return Answer(data, "\n".join(lines), place.json, exit_code=int(sick))


def _python() -> Check:
    version = platform.python_version()
    if sys.platform != "linux":
        return Check("python", "note", f"{version} on {sys.platform}; Cloze is tested on Linux")
    return Check("python", "good", version)


def _packages() -> Iterator[Check]:
    for extra in EXTRAS:
        name = f"cloze[{extra}]" if extra else "cloze"
        wrong = [problem for wanted in _requirements(extra) if (problem := _problem(wanted))]
        if wrong:
            yield Check(name, "bad", f"{'; '.join(wrong)}: pip install '{name}'")
        else:
            yield Check(name, "good", f"{len(_requirements(extra))} packages as required")


def _requirements(extra: str) -> list[Requirement]:
    """What the installed `cloze` says it needs for `extra`."""
    wanted = [Requirement(line) for line in metadata.requires("cloze") or []]
    return [found for found in wanted if _belongs(found, extra)]


def _belongs(wanted: Requirement, extra: str) -> bool:
    if wanted.marker is None:
        return not extra
    return bool(extra) and wanted.marker.evaluate({"extra": extra})


def _problem(wanted: Requirement) -> str:
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name} is missing"
    if not wanted.specifier.contains(found, prereleases=True):
        return f"{wanted.name} is {found}, required is {wanted.specifier}"
    return ""


def _processors() -> Check:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Check("processor", "good", f"{cores} cores, {memory:.0f} GiB of memory")


def _device() -> Check:
    try:
        import torch
    except ImportError:
        return Check("accelerator", "note", "unknown: torch is not installed")
    if not torch.cuda.is_available():
        return Check("accelerator", "note", f"none; torch {torch.__version__} trains on processors")
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return Check("accelerator", "good", f"{torch.cuda.device_count()} × {', '.join(names)}")


def _tools() -> Iterator[Check]:
    for tool, purpose in TOOLS.items():
        path = shutil.which(tool)
        yield Check(tool, "good" if path else "note", path or f"not here; {purpose}")


def _stale_locks() -> Iterator[Check]:
    """A build of an operator that was killed leaves a lock, and later runs wait for it for ever."""
    base = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    for lock in Path(base).glob("**/lock"):
        remedy = f"unless a build is running now, rm {lock}, or training waits for it for ever"
        yield Check("build lock", "bad", remedy)


def _workspace(place: Place) -> Check:
    """Whether the workspace could be written; it is not made for the question."""
    space = place.space()
    existing = next(path for path in (space.local, *space.local.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Check("workspace", "bad", f"{existing} cannot be written; choose --workspace FOLDER")
    free = shutil.disk_usage(existing).free / GIB
    return Check("workspace", "good", f"{space.root}, {free:.0f} GiB free")
