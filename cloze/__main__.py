"""Entry point of `cloze`: Ctrl-C during its imports ends it without a traceback.

In:  the command line.
Out: what cloze/command.py does with it.
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
