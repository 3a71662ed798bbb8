"""Checks options for DeepSpeed's launcher.

In:  the options, on the command line.
Out: exit code 0; of an option that it does not know 2, and its reason as the last line of standard
     error.

    python -P -m model.training.launcher_options --hostfile hosts

A separate program, since the import takes seconds and only runs with such options should wait for
it.
"""

import sys

from deepspeed.launcher.runner import parse_args

if __name__ == "__main__":
    parse_args([*sys.argv[1:], "program"])
