"""Errors that the user can act on.

Every message says where, what was found, what was expected, and the remedy, on one line. Commands
print it without a traceback and exit with `exit_code`. An `OSError` is not a bug either:
`explained` turns it into such a message.
"""

import os


class ClozeError(Exception):
    """A failure that the user can understand and fix."""

    exit_code = 1


class UsageError(ClozeError):
    """A wrong argument, an invalid configuration, or an unsuitable input."""

    exit_code = 2


class NotText(UsageError):
    """A corpus file that is not text, such as an image, a PDF or a program."""


class IntegrityError(ClozeError):
    """An artifact does not match its manifest."""


class DiskFull(ClozeError):
    """No space is left to write to."""


def explained(error: BaseException) -> str:
    """The operating system's error, or a library's panic, on one line."""
    if is_panic(error):
        return f"a library in Rust failed ({error}); report it with the input"
    if isinstance(error, MemoryError):
        return "out of memory, or over the limit of ulimit -v; provide more, or raise the limit"
    assert isinstance(error, OSError)
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return f"operating system error: {reason}"
    # Of two, the second: a file that could not be renamed to it is a temporary one of ours.
    name = error.filename if error.filename2 is None else error.filename2
    return f"{os.fsdecode(name)}: {reason}; fix this, or use another path"


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust has panicked: its exception is none of `Exception`."""
    return type(error).__name__ == "PanicException"
