"""`cloze doctor`: check this machine's installation, hardware and workspace.

In:  nothing.
Out: one line per check; exit code 1 if a problem prevents Cloze from working.
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
from cloze.flows.expected import cores
from cloze.inspection.bytecode import without_bytecode
from cloze.model.hardware import machine_precision
from cloze.options import PLACE, Place

EXTRAS = ("", "pipeline", "model", "flows")
"""The extras to check; `dev` is for developers of Cloze."""

TOOLS = {
    "gcc": "compiles kernels for this processor, and Triton's launchers on machines with a GPU",
    "g++": "only needed if DeepSpeed compiles operators for GPUs",
    "ninja": "only needed if DeepSpeed compiles operators for GPUs",
    "numactl": "only needed for --bind_cores_to_rank",
}

GIB = 1 << 30
MARKS = {"good": "✓", "note": "·", "bad": "✗"}


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    name: str
    state: Literal["good", "note", "bad"]
    found: str
    """The finding, or what to do."""


def doctor(*, place: Place = PLACE) -> Answer:
    """Check this machine."""
    checks = [*_installation(), *_hardware()]
    for tool, purpose in TOOLS.items():
        path = shutil.which(tool)
        state: Literal["good", "note"] = "good" if path else "note"
        checks.append(Check(tool, state, path or f"not found; {purpose}"))
    # if the build of an operator is killed, its lock remains, and later runs wait for it forever
    base = os.environ.get("TORCH_EXTENSIONS_DIR") or os.path.expanduser("~/.cache/torch_extensions")
    for lock in Path(base).glob("**/lock"):
        remedy = f"unless a build is running now, rm {lock}, or training waits for it forever"
        checks.append(Check("build lock", "bad", remedy))
    space = place.space()  # need not exist
    existing = next(path for path in (space.local, *space.local.parents) if path.exists())
    if os.access(existing, os.W_OK):
        free = shutil.disk_usage(existing).free / GIB
        checks.append(Check("workspace", "good", f"{space.root}, {free:.0f} GiB free"))
    else:
        remedy = f"{existing} is not writable; choose --workspace FOLDER"
        checks.append(Check("workspace", "bad", remedy))
    lines = [f"{MARKS[check.state]} {check.name:<15} {check.found}" for check in checks]
    healthy = all(check.state != "bad" for check in checks)
    data = {"healthy": healthy, "checks": [asdict(check) for check in checks]}
    return Answer(data, "\n".join(lines), place.json, exit_code=0 if healthy else 1)


def _installation() -> Iterator[Check]:
    """The Python version, and for each extra whether its requirements are met."""
    version = platform.python_version()
    if sys.platform == "linux":
        yield Check("python", "good", version)
    else:
        yield Check("python", "note", f"{version} on {sys.platform}; Cloze is tested on Linux")
    required = [Requirement(line) for line in metadata.requires("cloze-encoder") or []]
    for extra in EXTRAS:
        name = f"cloze-encoder[{extra}]" if extra else "cloze-encoder"
        # Requirements of an extra have a marker that names it.
        wanted = [
            one
            for one in required
            if (one.marker.evaluate({"extra": extra}) if one.marker else not extra)
        ]
        wrong = []
        for one in wanted:
            try:
                found = metadata.version(one.name)
            except metadata.PackageNotFoundError:
                wrong.append(f"{one.name} is missing")
                continue
            if not one.specifier.contains(found, prereleases=True):
                wrong.append(f"{one.name} is {found}, expected {one.specifier}")
        if wrong:
            yield Check(name, "bad", f"{'; '.join(wrong)}: pip install '{name}'")
        else:
            yield Check(name, "good", f"{len(wanted)} packages as required")
    if uncompiled := without_bytecode():
        yield Check(
            "bytecode",
            "note",
            f"none of {', '.join(uncompiled)}, so every process compiles them again; "
            f"{sys.executable} -P -m cloze.inspection.bytecode writes it",
        )
    else:
        yield Check("bytecode", "good", "the packages are compiled")


def _hardware() -> Iterator[Check]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    yield Check("processor", "good", f"{cores()} cores, {memory:.0f} GiB of memory")
    precision, reason = machine_precision()
    state: Literal["good", "note"] = "good" if precision == "bf16" else "note"
    yield Check("precision", state, f'"auto" is {precision} here: {reason}')
    try:
        import torch
    except ImportError:
        yield Check("accelerator", "note", "unknown: torch is not installed")
        return
    if not torch.cuda.is_available():
        yield Check("accelerator", "note", f"none; torch {torch.__version__} trains on the CPU")
        return
    count = torch.cuda.device_count()
    names = {torch.cuda.get_device_name(index) for index in range(count)}
    yield Check("accelerator", "good", f"{count} × {', '.join(names)}")
