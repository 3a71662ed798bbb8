"""Checkpoints: safetensors and JSON, readable by people, running no code.

    step-00001200/master.safetensors      fp32 weights by parameter name
                  exp_avg.safetensors     first moments
                  exp_avg_sq.safetensors  second moments
                  state.json              step, updates, configuration, curve so far
                  files.json              size and sha256 of the others, written last

In:  every parameter's state and a JSON value. Out: the same, after any interruption.

A checkpoint is written under a temporary name, flushed, and renamed: it is there whole or not at
all. There is no pointer file to dangle: the newest is the one with the highest step that verifies.
Tensors are whole and named, so any world size and ZeRO stage can go on from them.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from artifacts.digests import digest_of_file
from artifacts.errors import ClozeError
from artifacts.progress import say
from model.training.fault_injection import Strike, undisturbed
from model.training.state import ParameterState

PARTS = ParameterState._fields
"""One safetensors file each."""

_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = ".tmp-"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint."""

    directory: Path
    step: int
    """Steps done."""

    state: dict[str, Any]
    """What was saved beside the tensors."""

    def tensors(self, part: str) -> dict[str, Tensor]:
        """`master`, `exp_avg` or `exp_avg_sq` by parameter name."""
        tensors: dict[str, Tensor] = load_file(self.directory / f"{part}.safetensors")
        return tensors

    def parameters(self) -> dict[str, ParameterState]:
        """Every parameter's state."""
        parts = [self.tensors(part) for part in PARTS]
        return {name: ParameterState(*(part[name] for part in parts)) for name in parts[0]}


@dataclass(frozen=True)
class Checkpoints:
    """All checkpoints of one run."""

    directory: Path
    keep: int
    at: Strike = undisturbed

    def save(
        self, step: int, parameters: Mapping[str, ParameterState], state: Mapping[str, Any]
    ) -> Path:
        """Write the checkpoint of `step`, then drop those no longer wanted."""
        self.at("checkpoint.begin", step)
        final = self.directory / f"step-{step:08}"
        temporary = self.directory / f"{_TEMPORARY}{final.name}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            self._write(temporary, step, parameters, state)
            self.at("checkpoint.before_commit", step)
            _commit(temporary, final)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise _explained(error, final) from error
        self.at("checkpoint.after_commit", step)
        self._purge(step)
        return final

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; damaged ones are named loudly and passed over."""
        for step in sorted(self.steps(), reverse=True):
            directory = self.directory / f"step-{step:08}"
            reason = damage(directory)
            if reason is None:
                return Checkpoint(directory, step, _read_json(directory / "state.json"))
            say(f"warning: checkpoint {directory} is damaged and not used: {reason}")
        if any(self.steps()):
            raise ClozeError(
                f"{self.directory}: none of the checkpoints is intact; "
                "remove them to begin again from step 0"
            )
        return None

    def steps(self) -> list[int]:
        """Steps of all checkpoints there, damaged or not."""
        if not self.directory.is_dir():
            return []
        found = (_NAME.fullmatch(entry.name) for entry in self.directory.iterdir())
        return [int(match[1]) for match in found if match]

    def sweep(self) -> None:
        """Remove what interrupted writers left. Only while no other writer is at work."""
        if self.directory.is_dir():
            for entry in self.directory.glob(f"{_TEMPORARY}*"):
                shutil.rmtree(entry, ignore_errors=True)

    def _write(
        self,
        directory: Path,
        step: int,
        parameters: Mapping[str, ParameterState],
        state: Mapping[str, Any],
    ) -> None:
        for index, part in enumerate(PARTS):
            path = directory / f"{part}.safetensors"
            save_file({name: kept[index] for name, kept in parameters.items()}, path)
            self.at("checkpoint.mid_file" if index == 0 else "checkpoint.after_file", step)
            _flush(path)
        _write_json(directory / "state.json", dict(state))
        names = sorted(entry.name for entry in directory.iterdir())
        facts = {name: _facts(directory / name) for name in names}
        _write_json(directory / "files.json", facts)
        _flush(directory)

    def _purge(self, newest: int) -> None:
        """Keep the last few and the one with the lowest held-out loss."""
        steps = sorted(self.steps())
        losses = {step: _heldout_loss(self.directory / f"step-{step:08}") for step in steps}
        judged = {step: loss for step, loss in losses.items() if loss is not None}
        best = {min(judged, key=lambda step: (judged[step], step))} if judged else set()
        for step in set(steps[: -self.keep]) - best - {newest}:
            doomed = self.directory / f"{_TEMPORARY}purged-step-{step:08}-{os.getpid()}"
            os.rename(self.directory / f"step-{step:08}", doomed)
            self.at("checkpoint.purge", newest)
            shutil.rmtree(doomed, ignore_errors=True)


def damage(directory: Path) -> str | None:
    """What is wrong with a checkpoint; None if every byte is as it was written."""
    try:
        facts = _read_json(directory / "files.json")
        for name, (size, digest) in facts.items():
            path = directory / name
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, expected {size}"
            if digest_of_file(path) != digest:
                return f"{name} has another sha256 than files.json says"
        if not {"state.json", *(f"{part}.safetensors" for part in PARTS)} <= set(facts):
            return "files.json does not name all files"
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        return str(error)
    return None


def _commit(temporary: Path, final: Path) -> None:
    if final.exists():  # the same step, saved before: a step has one state, so either will do
        if damage(final) is None:
            shutil.rmtree(temporary)
            return
        shutil.rmtree(final)
    os.rename(temporary, final)
    _flush(final.parent)


def _facts(path: Path) -> tuple[int, str]:
    return path.stat().st_size, digest_of_file(path)


def _heldout_loss(directory: Path) -> float | None:
    try:
        loss = _read_json(directory / "state.json").get("heldout_loss")
    except (OSError, ValueError):
        return None
    return None if loss is None else float(loss)


def _read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")
    _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _explained(error: OSError | SafetensorError, final: Path) -> ClozeError:
    free = shutil.disk_usage(_existing(final)).free
    return ClozeError(
        f"{final}: cannot write the checkpoint: {error} ({free:,} bytes free there); "
        "earlier checkpoints are intact: make room and start the same command again"
    )


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
