"""Which precision is fast on this machine. No framework is imported here.

In:  the processor's flags, oneDNN's limit in the environment, whether there is an NVIDIA driver.
Out: the precision that `auto` stands for, and why.

A measurement differs from run to run, an artifact's key must not, so `auto` is decided by the
processor's features. Measured on two cores of an AVX-512 processor, bf16 with native products is
1.6 times (L2 H128) to 1.9 times (L4 H256) as fast as fp32, with and without compiled kernels;
without them it runs at a half to a third of fp32.
"""

import os
from pathlib import Path
from typing import Literal

DRIVER = Path("/proc/driver/nvidia")
"""Exists while NVIDIA's driver is loaded, also in containers."""

LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
BF16_SETS = ("BF16", "FP16", "AMX", "AVX10")
"""Parts of oneDNN's names of the instruction sets that include bf16 products."""

PRODUCTS = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "bf16": "Arm BF16"}
"""Flags of /proc/cpuinfo that stand for bf16 matrix products."""


def machine_precision() -> tuple[Literal["bf16", "fp32"], str]:
    """The precision that trains fastest here, and the reason in a few words."""
    if DRIVER.exists():
        return "bf16", "there is a GPU"
    for name in LIMITS:
        limit = os.environ.get(name, "").upper()
        if limit not in ("", "ALL", "DEFAULT") and not any(name in limit for name in BF16_SETS):
            return "fp32", f"{name}={limit} has no bf16 products"
    found = _flags() & PRODUCTS.keys()
    if found:
        return "bf16", f"the processor has {PRODUCTS[min(found)]}"
    return "fp32", "the processor has no bf16 products"


def _flags() -> set[str]:
    """The first processor's flags; none where the kernel does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {
        flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()
    }
