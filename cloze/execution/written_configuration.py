"""The configuration that a command writes for its run, known by its first line."""

from pathlib import Path

from cloze.artifacts.errors import UsageError


def is_written_by(config: Path, first_line: str) -> bool:
    """Whether the file is there and begins with this line; refuses another command's."""
    if not config.exists():
        return False
    if config.read_text("utf-8").partition("\n")[0] != first_line:
        raise UsageError(
            f"{config}: already exists, written by another command; choose another --name, or "
            f"use `cloze run {config}`"
        )
    return True
