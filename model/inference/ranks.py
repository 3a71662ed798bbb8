"""Vectors of a long stream of texts, computed by the ranks of a machine.

In:  where a model is, and the machine: `training.ranks`, one process per GPU, or with an equal
     share of the cores.
Out: the model, whose `embed_stream` deals the windows of a long stream to the ranks.

A window is computed in the same batches by whichever process: the bytes are those of one process.
A rank gets its next window when it has answered the last; windows that wait for their turn are
bounded. The ranks are programs of this machine alone, each with a socket that nobody else can open;
they are started when a stream turns out to be long, and are gone when it ends, however it ends.
"""

import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BufferedIOBase
from itertools import chain, islice
from queue import SimpleQueue
from typing import NoReturn

import numpy as np
import torch

from cloze.artifacts.config import JsonObject
from cloze.artifacts.errors import ClozeError, UsageError, explained
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.children import Child, WorkerFailed, WorkerKilled, shell_code, start
from cloze.model.config import TrainingMachine
from cloze.model.encoder.precision import Precision
from cloze.model.inference.load import (
    EmbedOptions,
    Model,
    Window,
    WindowVectors,
    load_model,
    window_vectors,
)
from cloze.model.inference.unread import Unread
from cloze.model.training.distributed import training_device
from cloze.model.training.start import shares_of_cores, threads_per_rank

ONE_PROCESS = TrainingMachine()

AHEAD = 2
"""Pieces for each rank that are read, being computed, or wait for their turn."""

LAST_WORDS = 10.0
"""Seconds in which a rank that has closed its socket ends."""

SENT = "<f4"
"""Vectors between processes."""


@dataclass(frozen=True)
class RankJob:
    """What all ranks compute."""

    location: str
    precision: Precision
    machine: TrainingMachine


def load_over_ranks(location: str, *, precision: Precision, machine: TrainingMachine) -> Model:
    """The encoder at `location` as by `load_model`, with the ranks of `machine` for long streams.

    A stream without more than a window for each rank is computed by this process.
    """
    model = load_model(location, device=machine.device, precision=precision)
    if machine.ranks == 1:
        return model
    return replace(model, deal=partial(_deal, model, RankJob(location, precision, machine)))


def _deal(
    model: Model, job: RankJob, windows: Iterator[Window], options: EmbedOptions
) -> Iterator[WindowVectors]:
    ranks = job.machine.ranks
    # One window more than ranks tells whether the stream is worth their start. Nothing can be put
    # back into an iterator, so those taken are put in front of it again.
    first = [*islice(windows, ranks + 1)]
    if len(first) <= ranks:
        yield from (window_vectors(model, window, options) for window in first)
        return
    say(f"vectors: {ranks} ranks")
    stream = chain(first, windows)
    del first  # texts that have been dealt are not kept
    with ExitStack() as stack:
        # Left in the opposite order: with the ranks, what the threads wait for ends.
        pool = stack.enter_context(ThreadPoolExecutor(ranks))
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        idle: SimpleQueue[_Rank] = SimpleQueue()
        for number, cores in enumerate(shares_of_cores(job.machine)):
            idle.put(stack.enter_context(_Rank(number, cores, job, options)))

        def compute(window: Window) -> WindowVectors:
            rank = idle.get()
            try:
                return rank.vectors(window)
            finally:
                idle.put(rank)

        waiting = deque[Future[WindowVectors]]()
        while True:
            # Only as many windows are taken from the stream as keep the ranks busy, however fast
            # texts come.
            for window in islice(stream, AHEAD * ranks - len(waiting)):
                waiting.append(pool.submit(compute, window))
            if not waiting:
                return
            _await_first(waiting)
            yield waiting.popleft().result()


def _await_first(waiting: deque[Future[WindowVectors]]) -> None:
    """Wait for the first window; a rank that is lost meanwhile is an error at once.

    A text that cannot be embedded is one in its turn, after the vectors of the texts before it.
    """
    while True:
        for future in waiting:
            if future.done() and isinstance(error := future.exception(), WorkerFailed):
                raise error
        if waiting[0].done():
            return
        wait([future for future in waiting if not future.done()], return_when=FIRST_COMPLETED)


class _Rank:
    """A rank as its parent sees it; as a context, it is killed on exit."""

    def __init__(
        self, number: int, cores: tuple[int, ...], job: RankJob, options: EmbedOptions
    ) -> None:
        machine, self._name = job.machine, f"rank {number}"
        self._timeout = machine.hang_timeout
        threads = str(len(cores) or threads_per_rank(machine))
        environment = {
            **os.environ,
            **dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), threads),
        }
        ours, theirs = socket.socketpair()
        # The parent's copy of the far end is closed once the rank has its own: otherwise reading
        # from a rank that died would wait instead of ending.
        with theirs:
            handle = theirs.fileno()
            # In a session of its own: Ctrl-C is for the parent, which ends the ranks.
            self._child = start(
                (sys.executable, "-P", "-m", "cloze.model.inference.ranks", str(handle)),
                environment=environment,
                own_session=True,
                cores=cores,
                inherited=(handle,),
            )
        ours.settimeout(self._timeout)
        self._socket, self._stream = ours, ours.makefile("rwb")
        self._error: ClozeError | None = None
        self._first: dict[str, object] | None = {
            "location": job.location,
            "precision": job.precision,
            "device": machine.device,
            "rank": number,
            "threads": int(threads),
            **options._asdict(),
        }

    def vectors(self, window: Window) -> WindowVectors:
        """Those of a window; called by one thread at a time."""
        if self._error:  # it has ended: only the first of its windows says why
            raise self._error
        try:
            # The job goes with the first window rather than from the constructor, so that a rank
            # which died at its start is reported in the one place below.
            if self._first is not None:
                _put(self._stream, self._first)
                self._first = None
            _put(self._stream, window._asdict())
            # An empty answer after each batch: the rank computes, however long a window takes.
            while not (found := _get(self._stream))[0]:
                pass
        except TimeoutError:
            raise WorkerFailed(
                f"{self._name}: hangs, nothing from it for {self._timeout:g} s "
                "(training.hang_timeout); run the same command again"
            ) from None
        except (EOFError, ConnectionError):
            _lost(self._name, self._child)
        answer, content = found
        if "error" in answer:
            kind = UsageError if answer["exit_code"] == UsageError.exit_code else ClozeError
            self._error = kind(answer["error"])
            raise self._error
        matrix_ND = np.frombuffer(content, SENT).reshape(len(window.texts), -1)
        vectors = [*matrix_ND.astype(np.float32, copy=False)]
        return WindowVectors(vectors, Unread(**answer["unread"]))

    def __enter__(self) -> "_Rank":
        return self

    def __exit__(self, *_: object) -> None:
        self._child.end(grace=0.0)
        with suppress(OSError):  # what was left to be written
            self._stream.close()
        self._socket.close()


def _lost(name: str, child: Child) -> NoReturn:
    """The error for a rank that has ended before its parent."""
    code = child.wait(LAST_WORDS)
    if code is not None and code < 0:
        raise WorkerKilled(
            f"{name} was ended by {signal.Signals(-code).name}, possibly out of memory; run the "
            "same command again, with fewer training.ranks if it recurs"
        )
    ended = "no exit code yet" if code is None else f"exit code {shell_code(code)}"
    raise WorkerFailed(f"{name} ended ({ended}); its messages are above")


def _put(stream: BufferedIOBase, header: Mapping[str, object], content: bytes = b"") -> None:
    """Write a line of JSON and so many bytes."""
    stream.write(json.dumps({**header, "bytes": len(content)}).encode() + b"\n")
    stream.write(content)
    stream.flush()


def _get(stream: BufferedIOBase) -> tuple[JsonObject, bytes]:
    """The next line and its bytes; `EOFError` where the other process is gone."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    # The header says how many bytes follow, so that a vector never has to be text.
    header = json.loads(line)
    size = header.pop("bytes")
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    return header, content


def main(handle: int) -> int:
    """The rank at the other end of a socket."""
    stream = socket.socket(fileno=handle).makefile("rwb")
    with suppress(EOFError, ConnectionError):  # the parent is done, or gone
        try:
            _answer(stream)
        except ClozeError as error:
            _put(stream, {"error": str(error), "exit_code": error.exit_code})
        except (OSError, MemoryError) as error:
            if isinstance(error, ConnectionError):
                raise
            _put(stream, {"error": explained(error), "exit_code": 1})
    return 0


def _answer(stream: BufferedIOBase) -> None:
    job, _ = _get(stream)
    torch.set_num_threads(job["threads"])
    device = training_device(job["device"], local_rank=job["rank"])
    # Loaded once; then windows come until the stream ends.
    model = load_model(job["location"], device=str(device), precision=job["precision"])
    layers = job["layers"]
    options = EmbedOptions(
        job["pooling"], layers and tuple(layers), truncate=job["truncate"], prompt=job["prompt"]
    )
    while True:
        window, _ = _get(stream)
        found = window_vectors(
            model,
            Window(window["first"], window["texts"]),
            options,
            after_batch=partial(_put, stream, {}),
        )
        content = np.stack(found.vectors).astype(SENT, copy=False).tobytes()
        _put(stream, {"unread": asdict(found.unread)}, content)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
