"""Detects what is fast on this machine. No framework is imported here.

In:  CPU vendor and flags, oneDNN's limit in the environment, whether an NVIDIA driver is loaded.
Out: the precision that `auto` stands for, and why; whether our own fp32 products are used.

Benchmarks vary from run to run, but an artifact's key must not, so `auto` is decided by CPU
features. On two cores of an AVX-512 CPU, native bf16 products are 1.6 times (L2 H128) to 1.9 times
(L4 H256) as fast as fp32, with or without compiled kernels; without native products, bf16 runs at a
third to half the speed of fp32.
"""

import os
from functools import cache
from pathlib import Path
from typing import Literal

DRIVER = Path("/proc/driver/nvidia")
"""Exists while NVIDIA's driver is loaded, also in containers."""

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
BF16_SETS = ("BF16", "FP16", "AMX", "AVX10")
"""Substrings of oneDNN's instruction set names that include bf16 products."""

PRODUCTS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "bf16": "Arm BF16"}
"""Flags in /proc/cpuinfo that indicate bf16 matrix products."""

FP8_MULTIPLE = 16
"""FP8 products need widths that are multiples of this (torch._scaled_mm on CUDA)."""


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, which torch may still be unable to use.

    What torch can use decides in `training_device` and, for inference, `placed`.
    """
    return DRIVER.exists()


def machine_precision() -> tuple[Literal["bf16", "fp32"], str]:
    """The fastest precision for training on this machine, and the reason in a few words."""
    return ("bf16", "there is a GPU") if has_gpu() else cpu_precision()


def cpu_precision() -> tuple[Literal["bf16", "fp32"], str]:
    """As `machine_precision`, on its processor."""
    for name in LIMITS:
        # oneDNN obeys such a limit: without bf16's instructions it would emulate the products.
        limit = os.environ.get(name, "").upper()
        if limit not in ("", "ALL", "DEFAULT") and not any(name in limit for name in BF16_SETS):
            return "fp32", f"{name}={limit} has no bf16 products"
    found = _flags() & PRODUCTS.keys()
    if found:
        return "bf16", f"the processor has {PRODUCTS[min(found)]}"
    return "fp32", "the processor has no bf16 products"


@cache
def has_fast_fp32_library() -> bool:
    """Whether torch's library, MKL, multiplies fp32 matrices well here: not on AMD's processors.

    At the shapes of an encoder our kernel is 1.1 times as fast there (docs/decisions/training.md).
    """
    return "AuthenticAMD" not in _words("vendor_id")


def _flags() -> set[str]:
    return _words("flags", "Features")


def _words(*fields: str) -> set[str]:
    """The words of these fields of the CPUs' description; none if the kernel does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {word for line in lines if line.startswith(fields) for word in line.split()}
