"""The errors a person can do something about.

Every message says where, what was found, what was expected, and the remedy, on one line. The
commands print the message without a traceback and exit with `exit_code`. An `OSError` is not a bug
either: `explained` gives its message.
"""

import os


class ClozeError(Exception):
    """Something failed that the user can understand and fix."""

    exit_code = 1


class UsageError(ClozeError):
    """A wrong argument, a wrong configuration, or an input that is not what was promised."""

    exit_code = 2


class NotText(UsageError):
    """A file of a corpus that holds no text: an image, a PDF, a program."""


class IntegrityError(ClozeError):
    """An artifact's bytes are not the ones its manifest names."""


class DiskFull(ClozeError):
    """There is no room for what is to be written."""


def explained(error: OSError | MemoryError) -> str:
    """What the operating system refused, on one line."""
    if isinstance(error, MemoryError):
        return "out of memory (or of the address space that ulimit -v allows); give it more"
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"the operating system says: {reason}"
    return f"{os.fsdecode(error.filename)}: {reason}; see to it, or name another place"
