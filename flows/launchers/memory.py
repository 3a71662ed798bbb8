"""How much memory a tree of processes uses.

In:  the process at the root.
Out: bytes of proportional set size (PSS): shared pages count once, divided among those who share
     them, so that the sum over forked workers is what the machine really gives.
"""

import contextlib
from pathlib import Path

from flows.launchers.supervisor import descendants

KIB = 1024


def tree_pss(root: int) -> int:
    """PSS in bytes of `root` and everything below it; 0 where the kernel does not tell."""
    return sum(_pss(process) for process in (root, *descendants(root)))


def _pss(process: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * KIB
    return 0
