"""Starts a single-process program with the environment that torch needs.

    python -P -m model.training.start model.training.pretrain --config TABLE

In:  the program's module and its arguments, including `--config TABLE`.
Out: this process becomes that program, with its process id, output and exit code.

OpenMP and glibc read their variables when a process starts, so they are set before anything imports
torch.
"""

import os
import sys

from artifacts.errors import ClozeError
from artifacts.progress import say
from model.training.environment import table_environment


def main(module: str, arguments: list[str]) -> int:
    """Become the program; returns an exit code only if its stage table cannot be read."""
    try:
        environment = {**os.environ, **table_environment(arguments)}
    except ClozeError as error:
        say(f"error: {error}")
        return error.exit_code
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
