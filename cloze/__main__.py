"""Entry point of `cloze`: Ctrl-C during imports ends it without a traceback.

In:  the command line.
Out: the output of cloze/command.py.
"""

import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point."""
    try:
        from cloze.command import main as command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted before anything was started\n")
        sys.exit(128 + signal.SIGINT)
    command()


if __name__ == "__main__":
    main()
