"""Checkpoints: safetensors and JSON, human-readable and free of executable code.

    step-00001200/master.safetensors      fp32 weights by parameter name
                  exp_avg.safetensors     first moments
                  exp_avg_sq.safetensors  second moments
                  state.json              step, updates, configuration, curve so far
                  files.json              size and sha256 of the others, written last

In:  the state of every parameter, and a JSON value. Out: the same, after any interruption.

A checkpoint is written under a temporary name, flushed, and renamed, so it is either complete or
absent. There is no pointer file: the latest checkpoint is the one with the highest step that
verifies. Tensors are whole and named, so a run can resume with any world size and ZeRO stage. The
first rank writes, in a background thread, and is the only one that reads. Training is blocked only
while the state is copied, and on a GPU not even then: the thread waits for the copies.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict

import torch
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cloze.artifacts.config import flat
from cloze.artifacts.digests import digest_of_file
from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.artifacts.filesystem import flush
from cloze.artifacts.progress import say
from cloze.model.config import Shortened
from cloze.model.training.distributed import World
from cloze.model.training.telemetry import CurveState

_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = ".tmp-"

PINNED_BYTES = 256 << 20
"""Minimum size of an allocation of page-locked memory."""

ALIGNMENT = 64
"""Alignment of the copies, in bytes."""

FaultHook = Callable[[str, int], None]
"""Called with a site, a named point of the run, and a step. Tests kill, stop, sleep or raise in it;
production code never reads an environment variable for it."""


def no_fault(site: str, step: int) -> None:
    """The hook outside of tests."""


class ParameterState(NamedTuple):
    """The training state of one parameter, whole and fp32: master weights and both moments."""

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


PARTS = ParameterState._fields
"""Each is stored in a safetensors file."""


class Identity(TypedDict):
    """What a checkpoint must have in common with a run that resumes from it."""

    config: dict[str, JsonValue]
    """The keyed configuration of the stage."""

    inputs: dict[str, str]
    """Digests of the input artifacts by role."""


class RunState(Identity):
    """The contents of a checkpoint besides the tensors."""

    step: int
    updates: int
    """Optimizer updates done, which excludes skipped steps."""

    seconds: float
    """Training time so far."""

    skipped_in_row: int
    """Most recent consecutive steps skipped for non-finite gradients."""

    heldout_loss: float | None
    """Masked-LM loss if evaluated after exactly this step; selects the best checkpoint."""

    heldout: dict[str, float] | None
    curve: CurveState
    elapsed: float
    """Seconds that count against `pretrain.minutes`."""

    shortened: Shortened
    """How the schedule has been shortened so far."""


@dataclass(frozen=True)
class SavedRun:
    """An interrupted or finished run to go on from, on every rank."""

    state: RunState
    read: Callable[[], dict[str, ParameterState]]

    def parameters(
        self, shapes: Mapping[str, torch.Size], *, world: World
    ) -> Iterator[tuple[str, ParameterState]]:
        """The state of every parameter, one at a time; collective, so all ranks must consume it.

        The first rank reads for all, and only now: keeping what it read for the whole run would
        double the model's fp32 state.
        """
        read = self.read() if world.is_first else {}
        if world.is_first and (missing := sorted(shapes.keys() - read.keys())):
            raise IntegrityError(
                f"the checkpoint after step {self.state['step']} lacks {missing[0]}"
                f"{f' and {len(missing) - 1} other parameters' if missing[1:] else ''}; expected "
                "the state of every parameter; resume from an earlier checkpoint, or train anew"
            )
        for name, shape in shapes.items():
            # Other ranks know only the shapes: the broadcast overwrites their zeros.
            kept = read.pop(name, None) or ParameterState(*(torch.zeros(shape) for _ in PARTS))
            yield name, ParameterState(*(world.broadcast_tensor(part) for part in kept))


class HostCopies:
    """Copies of the state in host memory, ordered with the GPU's stream.

    They use page-locked memory, which takes a second to allocate for a large encoder and is reused
    for later checkpoints.
    """

    def __init__(self) -> None:
        self._pieces: list[Tensor] = []
        self._free: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None
        self._device = torch.device("cpu")

    def take(self, parameters: Iterable[tuple[str, ParameterState]]) -> dict[str, ParameterState]:
        """Copies that are complete after `wait` and valid until the next `take`."""
        # Every piece is free again, from its beginning.
        self._free = list(self._pieces)
        kept = {name: ParameterState(*map(self._copy, state)) for name, state in parameters}
        if self._pieces:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
            self._copied.record()
        return kept

    def wait(self) -> None:
        """Wait for the GPU to finish the copies; called by the thread that writes them."""
        if self._copied is not None:
            # A new thread starts on GPU 0, where it would create a context.
            torch.cuda.set_device(self._device)
            self._copied.synchronize()

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu":
            return tensor.clone()
        self._device = tensor.device
        size = tensor.nbytes
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        # Sizes come in the same order for every checkpoint, so no piece is added later.
        # A tensor is never split: what is left at the end of a piece is unused until the next
        # `take`.
        if self._free and len(self._free[0]) < taken:
            del self._free[0]
        if not self._free:
            piece = torch.empty(max(taken, PINNED_BYTES), dtype=torch.uint8, pin_memory=True)
            self._pieces.append(piece)
            self._free.append(piece)
        # The rest of the piece is free for the next tensor.
        space, self._free[0] = self._free[0][:size], self._free[0][taken:]
        return space.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)


@dataclass
class Checkpoints:
    """All checkpoints of one run."""

    directory: Path
    keep: int
    """Number of latest checkpoints to keep, besides the one with the lowest held-out loss."""

    fault: FaultHook = no_fault
    seconds: float = 0.0
    """Time that training was blocked."""

    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _writing: "Future[None] | None" = None
    _copies: HostCopies = field(default_factory=HostCopies)

    def save(
        self, parameters: Iterable[tuple[str, ParameterState]], state: RunState, *, writes: bool
    ) -> None:
        """Gather `parameters`, possibly collectively; a thread writes them if `writes`."""
        started = time.monotonic()
        # One at a time: the memory of the copies is used again.
        self.wait()
        # Ranks that do not write go through `parameters` as well, since gathering them is
        # collective.
        kept = self._copies.take(parameter for parameter in parameters if writes)
        if writes:
            self._writing = self._thread.submit(self._write, kept, state)
        self.seconds += time.monotonic() - started

    def wait(self, *, only_if_done: bool = False) -> None:
        """Wait until the pending checkpoint is on disk; raises its error."""
        if self._writing is not None and (self._writing.done() or not only_if_done):
            self._writing.result()
            self._writing = None

    def close(self) -> None:
        """Stop the thread after the pending checkpoint is on disk."""
        self._thread.shutdown()

    def _write(self, parameters: Mapping[str, ParameterState], state: RunState) -> None:
        """Write the checkpoint of a step, files.json last, then remove outdated ones."""
        self._copies.wait()
        step = state["step"]
        self.fault("checkpoint.begin", step)
        final = self.folder(step)
        temporary = self.directory / f"{_TEMPORARY}{final.name}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            for index, part in enumerate(PARTS):
                path = temporary / f"{part}.safetensors"
                save_file({name: kept[index] for name, kept in parameters.items()}, path)
                self.fault("checkpoint.after_file" if index else "checkpoint.mid_file", step)
                flush(path)
            (temporary / "state.json").write_text(json.dumps(state, indent=1) + "\n")
            facts = {
                path.name: (path.stat().st_size, digest_of_file(path))
                for path in sorted(temporary.iterdir())
            }
            (temporary / "files.json").write_text(json.dumps(facts, indent=1) + "\n")
            # All content must be on disk before the name is: then a crash leaves this name complete
            # or absent.
            for path in (temporary / "state.json", temporary / "files.json", temporary):
                flush(path)
            self.fault("checkpoint.before_commit", step)
            # If it was saved before and is intact, keep that: a step has only one state.
            if final.exists() and damage(final) is not None:
                shutil.rmtree(final)
            if final.exists():
                shutil.rmtree(temporary)
            else:
                os.rename(temporary, final)
                flush(self.directory)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            # the nearest folder that exists, for its free space
            there = next(folder for folder in final.parents if folder.exists())
            raise ClozeError(
                f"{final}: cannot write the checkpoint: {error} "
                f"({shutil.disk_usage(there).free:,} bytes free there); "
                "earlier checkpoints are intact: make room and start the same command again"
            ) from error
        self.fault("checkpoint.after_commit", step)
        self._purge(step)

    def newest(self) -> RunState | None:
        """The state of the latest checkpoint that verifies; damaged ones cause a warning."""
        for step in sorted(self.steps(), reverse=True):
            directory = self.folder(step)
            reason = damage(directory)
            if reason is None:
                state: RunState = json.loads((directory / "state.json").read_text())
                return state
            say(f"warning: checkpoint {directory} is damaged and not used: {reason}")
        # Not as if there were none: starting from step 0 would silently give up the run.
        if any(self.steps()):
            raise ClozeError(
                f"{self.directory}: none of the checkpoints is intact; "
                "remove them to start over from step 0"
            )
        return None

    def parameters(self, step: int) -> dict[str, ParameterState]:
        """The state of every parameter after `step` steps."""
        parts = [load_file(self.folder(step) / f"{part}.safetensors") for part in PARTS]
        return {name: ParameterState(*(part[name] for part in parts)) for name in parts[0]}

    def folder(self, step: int) -> Path:
        """Path of the checkpoint of a step."""
        return self.directory / f"step-{step:08}"

    def steps(self) -> list[int]:
        """Steps of all checkpoints, including damaged ones."""
        found = (_NAME.fullmatch(entry.name) for entry in self.directory.glob("step-*"))
        return [int(match[1]) for match in found if match]

    def remove_unfinished(self) -> None:
        """Remove leftovers of interrupted writers. Safe only while no other writer is running."""
        for entry in self.directory.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(entry, ignore_errors=True)

    def _purge(self, newest: int) -> None:
        """Keep the latest ones and the one with the lowest held-out loss."""
        losses = {}
        for step in self.steps():
            try:
                state = json.loads((self.folder(step) / "state.json").read_text())
            except (OSError, ValueError):
                continue
            if state.get("heldout_loss") is not None:
                losses[step] = float(state["heldout_loss"])
        # The earlier one of equals, so that the choice does not change later.
        best = {min(losses, key=lambda step: (losses[step], step))} if losses else set()
        # `newest` need not have the highest number: a run that resumed from before damaged
        # checkpoints writes lower ones than theirs, and must not remove what it has just written.
        for step in set(sorted(self.steps())[: -self.keep]) - best - {newest}:
            # Renamed first: a checkpoint that is half removed must not be found, and reported, as
            # damaged.
            doomed = self.directory / f"{_TEMPORARY}purged-step-{step:08}-{os.getpid()}"
            os.rename(self.folder(step), doomed)
            self.fault("checkpoint.purge", newest)
            shutil.rmtree(doomed, ignore_errors=True)


MILESTONES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Shares of the steps after which the encoder is kept as it is."""


@dataclass(frozen=True)
class Milestones:
    """Encoders of a run on its way, from which tasks can be trained: points of a curve of scores.

    Unlike checkpoints they outlive the run, and nothing is resumed from them.
    """

    folder: Path
    last: int
    """Steps of the whole run, as configured."""

    files: Callable[[dict[str, Tensor]], Mapping[str, bytes]]
    """The files of an encoder with these weights, by name."""

    def is_due(self, step: int) -> bool:
        """Whether the encoder is kept after `step` steps."""
        return step in {round(share * self.last) for share in MILESTONES}

    def save(
        self, parameters: Iterable[tuple[str, ParameterState]], step: int, *, writes: bool
    ) -> None:
        """Gather `parameters`, possibly collectively, and write the encoder if `writes`."""
        weights = {name: kept.master.cpu() for name, kept in parameters if writes}
        if not writes:
            return
        final = self.folder / f"step-{step:08}"
        temporary = final.with_name(f"{_TEMPORARY}{final.name}-{os.getpid()}")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            for name, content in self.files(weights).items():
                (temporary / name).write_bytes(content)
                flush(temporary / name)
            # A run that was interrupted after this step and resumed before it makes it again.
            shutil.rmtree(final, ignore_errors=True)
            os.rename(temporary, final)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise ClozeError(
                f"{final}: cannot keep the encoder of step {step}: {error}; make room or set "
                "another folder (training.milestones), and start the same command again"
            ) from error
        say(f"pretrain: kept the encoder after step {step:,} in {final}")


def damage(directory: Path) -> str | None:
    """The reason why a checkpoint is damaged; None if every byte is as written."""
    try:
        facts = json.loads((directory / "files.json").read_text())
        for name, (size, digest) in facts.items():
            path = directory / name
            # The size first: a truncated file is the most frequent damage, and is found without
            # reading gigabytes.
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes, expected {size}"
            if digest_of_file(path) != digest:
                return f"{name} does not match its sha256 in files.json"
        if not {"state.json", *(f"{part}.safetensors" for part in PARTS)} <= set(facts):
            return "files.json does not list all files"
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        return str(error)
    return None


def resume(checkpoints: Checkpoints, *, world: World, identity: Identity) -> SavedRun | None:
    """The latest intact checkpoint if it belongs to this run; None if there are no checkpoints."""
    found = None
    # Only one rank looks: those on other machines may not see the folder, and two looks at a folder
    # that is being repaired could disagree.
    if world.is_first:
        checkpoints.remove_unfinished()
        found = checkpoints.newest()
    state = world.broadcast(found)
    if state is None:
        return None
    refuse_changes(state, identity, where=str(checkpoints.directory))
    if world.is_first:
        say(f"resuming from step {state['step']} in {checkpoints.directory}")
    return SavedRun(state, partial(checkpoints.parameters, state["step"]))


def refuse_changes(state: Identity, identity: Identity, *, where: str) -> None:
    """Reject a checkpoint of another configuration, naming the differences."""
    changed = setting_differences(_facts(state), _facts(identity))
    if changed:
        raise UsageError(
            f"{where}: the checkpoints there belong to another configuration "
            f"({'; '.join(changed)}); change it back, or remove them to start over"
        )


def _facts(identity: Identity) -> dict[str, JsonValue]:
    return {"config": identity["config"], "inputs": {**identity["inputs"]}}


def setting_differences(
    saved: Mapping[str, JsonValue],
    wanted: Mapping[str, JsonValue],
    may_differ: Collection[str] = (),
) -> list[str]:
    """Differences between two nested tables, except in `may_differ`."""
    theirs, ours = flat(saved), flat(wanted)
    return [
        f"{name}: checkpoint {theirs.get(name)!r}, now {ours.get(name)!r}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name) and name not in may_differ
    ]
