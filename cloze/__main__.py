"""Entry point of `cloze`: Ctrl-C during imports ends it without a traceback.

Imports make hardly any garbage, and looking for it takes a tenth of their time, so the collector
rests until the command begins (cloze/command.py).

In:  the command line.
Out: the output of cloze/command.py.
"""

import gc
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point."""
    gc.disable()
    try:
        from cloze.command import main as command
    except KeyboardInterrupt:
        sys.stderr.write("interrupted before anything was started\n")
        sys.exit(128 + signal.SIGINT)
    command()


if __name__ == "__main__":
    main()
