"""Validates options of DeepSpeed's launcher.

In:  the options, on the command line.
Out: exit code 0; for an unknown option 2, with the reason as the last line of standard error.

    python -P -m model.training.launcher_options --hostfile hosts

A separate program, because the import takes seconds and only runs with such options need it.
"""

import sys

from deepspeed.launcher.runner import parse_args

if __name__ == "__main__":
    parse_args([*sys.argv[1:], "program"])
