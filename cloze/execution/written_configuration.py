"""The configuration that a command writes for its run, known by its first line."""

from pathlib import Path

from cloze.artifacts.errors import UsageError


def is_written_by(config: Path, first_line: str) -> bool:
    """Whether the file is there and begins with this line; refuses another command's."""
    if not config.exists():
        return False
    found = config.read_text("utf-8").partition("\n")[0]
    if found == first_line:
        return True
    # It may have been edited since, so it is never overwritten.
    earlier = found.removeprefix("# ")
    ours = f" (`{earlier}`)" if earlier.startswith("cloze ") else ""
    raise UsageError(
        f"{config}: already exists, written by another command{ours}; remove it if that is not "
        f"wanted any more, choose another --name, or use `cloze run {config}`"
    )
