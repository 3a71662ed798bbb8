"""The errors a person can do something about.

Every message says where, what was found, what was expected, and the remedy, on one line.
The commands print the message without a traceback and exit with `exit_code`.
"""


class ClozeError(Exception):
    """Something failed that the user can understand and mend."""

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
