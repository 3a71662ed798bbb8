"""Distributions made up for a test, laid out as pip lays them out."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(
    directory: Path, name: str, files: Mapping[str, str | bytes], *, version: str = "1.0"
) -> Path:
    """Write `files` and a record of them into `directory`; returns it."""
    record = []
    for path, content in files.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        target.write_bytes(data)
        record.append(f"{path},sha256={hashlib.sha256(data).hexdigest()},{len(data)}")
    information = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    (information / "RECORD").write_text("\n".join([*record, f"{information.name}/RECORD,,"]) + "\n")
    return directory


def use(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Let `importlib.metadata` find what is installed in `directory`."""
    monkeypatch.syspath_prepend(str(directory))
