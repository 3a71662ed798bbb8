"""New lines of a growing log file.

In:  a file that another process appends to.
Out: its complete lines, each once, in order.
"""

from pathlib import Path


class Tail:
    """Reads a file from where it was read last."""

    def __init__(self, path: Path, *, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._rest = b""

    def lines(self) -> list[str]:
        """The lines completed since the last call; a bare carriage return ends one, too."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.offset)
                new = file.read()
        except FileNotFoundError:
            return []
        self.offset += len(new)
        *complete, self._rest = (self._rest + new).replace(b"\r", b"\n").split(b"\n")
        return [line.decode("utf-8", "replace") for line in complete if line.strip()]
