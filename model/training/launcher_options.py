"""Whether DeepSpeed's launcher knows the options that a person gives it.

In:  the options, on the command line.
Out: exit code 0; of an option that it does not know 2, and its reason as the last line of standard
     error.

    python -P -m model.training.launcher_options --hostfile hosts

A program, since the import takes seconds and only who gives such options waits for it.
"""

import sys

from deepspeed.launcher.runner import parse_args

if __name__ == "__main__":
    parse_args([*sys.argv[1:], "program"])
