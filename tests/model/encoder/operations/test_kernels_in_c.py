"""The kernels as a program of their own, against float64: here, and on an emulated Arm."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from cloze.model.encoder.operations.native_kernels import FLAGS, SOURCES

PROGRAM = Path(__file__).with_name("kernels_against_float64.c")

EVERYWHERE = [flag for flag in FLAGS if not flag.startswith("-m")]
"""The product's flags, without those that are for the processor at hand."""

PROCESSORS = {
    "this one": ("gcc", [], []),
    # Emulated, so that only results can be tested, no speed.
    "Arm": ("aarch64-linux-gnu-gcc", ["-march=armv8-a"], ["qemu-aarch64"]),
}
if platform.machine() == "x86_64":
    PROCESSORS["one with nothing but SSE2"] = ("gcc", ["-march=x86-64"], [])


@pytest.mark.slow  # compiles five files with all optimisations
@pytest.mark.parametrize("reals", ["-DFLOAT32", "-DBFLOAT16"], ids=["fp32", "bf16"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_kernel_is_near_float64_on(processor: str, reals: str, tmp_path: Path) -> None:
    compiler, flags, emulator = PROCESSORS[processor]
    for program in (compiler, *emulator):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} (Debian: gcc-aarch64-linux-gnu, qemu-user)")
    sources = [str(source) for source in SOURCES if source.suffix == ".c"]
    include = ["-I", str(SOURCES[0].parent), "-static", "-lm"]
    made = str(tmp_path / "program")
    command = [compiler, "-O3", *EVERYWHERE, *flags, reals, str(PROGRAM), *sources, *include]
    subprocess.run([*command, "-o", made], check=True, timeout=300)
    done = subprocess.run(
        [*emulator, made],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={"OMP_NUM_THREADS": "3"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("near") >= 10
