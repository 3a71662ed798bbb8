"""Bytecode of everything Cloze imports, compiled once after installing.

    python -P -m cloze.inspection.bytecode [MODULE …]

In:  the installed packages; names of other modules.
Out: their bytecode where Python looks for it; on standard output, which do not work here. Modules
     that want an extra that is not installed are left out without a word: nobody asked for them.

Python keeps the bytecode of what it imports, unless PYTHONDONTWRITEBYTECODE is set, as in many
container images, or the packages belong to another user. Then every process of every run compiles
torch, Beam, Prefect and DeepSpeed anew, which makes a small run 1.7 times slower. pip compiles what
it installs, all 30,000 modules of it; here only the tenth that is imported is compiled.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from pkgutil import walk_packages

ALSO = (
    *("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto"),
    *("uvicorn.lifespan.on", "uvicorn.loops.auto"),
    *("alembic.autogenerate", "aiosqlite", "sklearn.metrics", "sklearn.linear_model"),
    *("scipy.stats", "torch.distributed.run", "torch.utils.tensorboard"),
    *("deepspeed", "deepspeed.ops", "deepspeed.utils"),
    *("deepspeed.launcher.launch", "deepspeed.launcher.runner"),
)
"""Modules that are imported by name or on use: by the server's program, and in functions."""

HEAVY = ("apache_beam", "cloze", "deepspeed", "prefect", "torch")
"""The packages whose bytecode matters most."""


def main(others: list[str]) -> int:
    """Import every module and `others`, which writes bytecode."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # also for what has been imported already
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    broken: dict[str, list[str]] = {}
    # Importing ours imports all that they import at the top: what the programs of a run will need.
    for module in (*_our_modules(), *ALSO, *others):
        try:
            importlib.import_module(module)
        except ImportError as error:
            if not _is_not_installed(error):
                broken.setdefault(str(error), []).append(module)
    for reason, modules in broken.items():
        print(f"left out {', '.join(modules)}: {reason}")
    if uncompiled := without_bytecode():
        print(
            f"error: no bytecode of {', '.join(uncompiled)} could be written to "
            f"{_folder(uncompiled[0])}; run this as the user who installed the packages"
        )
        return 1
    return 0


def without_bytecode() -> list[str]:
    """The heavy packages that are installed, but compiled again by every process."""
    found = ((name, util.find_spec(name)) for name in HEAVY)
    return [
        name
        for name, spec in found
        if spec and spec.origin and not Path(util.cache_from_source(spec.origin)).exists()
    ]


def _our_modules() -> Iterator[str]:
    """The names of all modules of this package, except programs that run on import."""
    import cloze

    for module in walk_packages(cloze.__path__, "cloze.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            yield module.name


def _is_not_installed(error: ImportError) -> bool:
    """Whether it is of a whole package, and not of something that an installed one should have."""
    package = (error.name or "").partition(".")[0]
    return isinstance(error, ModuleNotFoundError) and util.find_spec(package) is None


def _folder(package: str) -> str:
    spec = util.find_spec(package)
    return str(Path(spec.origin).parent) if spec and spec.origin else package


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
