"""Health of a run: warnings, a watchdog for hanging ranks, time limits, graceful stopping.

In:  the record of every step; every site that the loop reaches; the clock; signals.
Out: warnings; exit code 70 from a rank without progress; the last step that fits into the time;
     `Stop.wanted`.

A hanging rank blocks all others in their next collective operation until their own watchdogs end
them. The launcher then sees the whole run end, and the supervisor can restart it.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import numpy as np

from cloze.artifacts.progress import clock, say
from cloze.model.training.checkpoints import FaultHook, no_fault
from cloze.model.training.distributed import World
from cloze.model.training.optimizer import Schedule
from cloze.model.training.telemetry import StepRecord

SILENCE = 500
"""Minimum number of steps between two warnings of the same kind."""

SPIKE_WINDOW = 128
"""Number of steps over which loss and waiting time are averaged."""

SPIKE_SIGMAS = 6.0
"""A loss this many standard deviations above the mean is a spike."""

HANG_EXIT_CODE = 70

GRACE_SECONDS = 5.0
"""Delay after which the C-level watchdog ends even a process that Python cannot end."""


@dataclass
class Alarms:
    """Warns of runs that do not learn, at most once in `SILENCE` steps per kind.

    The most common complaint about BERT: the next-sentence loss falls while the masked-LM loss
    stays at the unigram entropy, that is, the model learns word frequencies and nothing else.
    """

    unigram_entropy: float
    """Unigram entropy of the masked tokens, in nats."""

    patience: int = 2000
    """Steps after which a loss at the unigram entropy triggers a warning."""

    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=SPIKE_WINDOW))
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=SPIKE_WINDOW))
    _silent_until: dict[str, int] = field(default_factory=dict)

    def check(self, record: StepRecord) -> list[str]:
        """The warnings that this step triggers."""
        found: dict[str, str] = {}
        if record.imbalance > 0.25:
            found["balance"] = (
                f"the busiest rank has {record.imbalance:.0%} more work than the average at step "
                f"{record.step}; raise batch_size or use fewer ranks"
            )
        if len(self._losses) == SPIKE_WINDOW:
            mean, deviation = float(np.mean(self._losses)), float(np.std(self._losses))
            # A loss that hardly changes has hardly any deviation; the constant keeps its noise from
            # counting.
            # `not <=`, so that NaN counts as a spike too.
            if not record.masked_lm_loss <= mean + SPIKE_SIGMAS * deviation + 1e-3:
                found["spike"] = (
                    f"masked-LM loss {record.masked_lm_loss:.3f} at step {record.step}, mean of "
                    f"the last {SPIKE_WINDOW} steps {mean:.3f}; if it stays high, lower "
                    "learning_rate"
                )
            if record.step >= self.patience and abs(mean - self.unigram_entropy) < 0.1:
                found["stuck"] = (
                    f"masked-LM loss is at the unigram entropy {self.unigram_entropy:.2f} after "
                    f"{record.step} steps: the model has only learnt word frequencies; wait, "
                    "change learning_rate (too high looks like too low), or inspect the examples"
                )
            waited = sum(self._waits) / SPIKE_WINDOW
            if waited > 0.1:
                found["input"] = (
                    f"{waited:.0%} of the time is spent waiting for batches; "
                    "put the examples on a faster disk"
                )
        # After a warning, its kind is silent for a while.
        due = [kind for kind in found if self._silent_until.get(kind, 0) <= record.step]
        self._silent_until.update(dict.fromkeys(due, record.step + SILENCE))
        # Only now, so that a step is compared with those before it.
        self._losses.append(record.masked_lm_loss)
        self._waits.append(record.waited / max(record.seconds, 1e-9))
        return [found[kind] for kind in due]


@dataclass
class Watchdog:
    """Ends this rank if its loop reaches no site for `timeout` seconds.

    It reports rank, step and site, dumps the stacks of all threads, and exits with code 70.
    """

    rank: int
    timeout: float
    fault: FaultHook = no_fault
    _site: str = field(default="start", init=False)
    _step: int = field(default=0, init=False)
    _alive_at: float = field(default_factory=time.monotonic, init=False)
    _done: threading.Event = field(default_factory=threading.Event, init=False)

    def __enter__(self) -> "Watchdog":
        self._alive_at = time.monotonic()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        faulthandler.cancel_dump_traceback_later()

    def reached(self, site: str, step: int) -> None:
        """Record that the loop has reached `site` of `step`."""
        # Without a lock: the watching thread at worst reads the site before, and looks again later.
        self._site, self._step = site, step
        self._alive_at = time.monotonic()
        self.fault(site, step)

    def _watch(self) -> None:
        interval = min(1.0, self.timeout / 10)
        while not self._done.wait(interval):
            # Covers native code that never returns to Python, so that this thread cannot run.
            # Each call replaces the timer of the one before, so it only expires once this loop
            # stands still.
            faulthandler.dump_traceback_later(
                self.timeout + GRACE_SECONDS, exit=True, file=sys.__stderr__ or 2
            )
            if time.monotonic() - self._alive_at > self.timeout:
                say(
                    f"error: rank {self.rank} has made no progress for {self.timeout:g} s, last "
                    f"seen at {self._site} of step {self._step}; exiting. The checkpoints are "
                    "intact: run the same command again"
                )
                faulthandler.dump_traceback(file=sys.__stderr__ or 2)
                # leaves no chance to clean up, which could hang as well
                os._exit(HANG_EXIT_CODE)


DECIDING_SHARE = 0.8
"""Share of the time for steps after which a schedule may be shortened: what was slow may have
become fast again until then, and a fifth of the steps suffice for a decay (Hägele et al. 2024,
4.2)."""

EARLIEST_SHARE = 0.2
"""Share of the whole time before which no pace is believed, whatever comes after the steps: the
first ones are slow."""

PATIENCE = 0.5
"""Share of the time left after a shortening that must be over before the next: a machine that
stalls for long then causes a handful of them, not one for every step."""

PACE_SHARE = 0.1
"""Share of the time whose steps tell how long further ones take."""

LATE_SHARE = 0.05
"""Share of the steps left by which they may exceed what fits, since no pace is constant."""


@dataclass
class Deadline:
    """A time limit: how many of the steps left fit into the time left, by the recent pace."""

    seconds: float
    closing_steps: float = 0.0
    """The work after the last step, such as an evaluation, in steps."""

    spent: float = 0.0
    """Seconds of earlier attempts."""

    now: Callable[[], float] = time.monotonic
    """The clock, in seconds."""

    _began: float = field(init=False)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    """Seconds and steps made, the latest last."""
    _next: float = 0.0
    """When the schedule may be shortened again."""

    def __post_init__(self) -> None:
        self._began = self.now()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning, in all attempts."""
        return self.spent + self.now() - self._began

    def end(self, step: int, end: int) -> int:
        """The step to end at, now that `step` steps are made: `end`, or sooner if they do not fit.

        Call it after every step. At least one step is made.
        """
        now = self.elapsed
        self._recent.append((now, step))
        # The pace is that of the last few minutes, not of the whole run: a machine that has become
        # slower stays slower more often than not.
        while len(self._recent) > 2 and now - self._recent[1][0] > PACE_SHARE * self.seconds:
            self._recent.popleft()
        since, first = self._recent[0]
        # After a single step, from the beginning of this attempt.
        each = (now - since) / (step - first) if step > first else now - self.spent
        # First steps are slow and say little. After a decision the next one waits, so that a
        # schedule is shortened a few times at most: each time is part of the record by which the
        # run can be repeated.
        for_steps = self.seconds - self.closing_steps * each
        deciding = max(DECIDING_SHARE * for_steps, EARLIEST_SHARE * self.seconds)
        if now < max(deciding, self._next):
            return end
        fitting = max(0, int((self.seconds - now) / max(each, 1e-9) - self.closing_steps))
        # A little late is no reason to change the schedule.
        if end - step <= fitting * (1 + LATE_SHARE):
            return end
        self._next = now + PATIENCE * max(self.seconds - now, 0.0)
        return step + fitting


def shortening(schedule: Schedule, made: int, deadline: Deadline, world: World) -> Schedule:
    """The schedule, shortened if the time does not suffice; by the first rank's clock.

    `made`: the steps made so far. Collective, so all ranks must call it.
    """
    # Clocks of ranks differ by milliseconds, which might decide otherwise; ranks with schedules of
    # different lengths would wait for one another for ever.
    end = world.broadcast(deadline.end(made, schedule.end))
    if end == schedule.end:
        return schedule
    if world.is_first:
        say(
            f"{clock(deadline.elapsed)} of {clock(deadline.seconds)} are over after {made:,} of "
            f"{schedule.end:,} steps: the rest of the schedule is shortened, to end at step {end:,}"
        )
    return schedule.ending_at(end, after=made)


@dataclass
class Stop:
    """Whether this rank was asked to stop; the loop then saves, all ranks at the same step."""

    wanted: bool = False

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Handle SIGTERM and SIGINT as requests to stop; restores the handlers on exit."""

        def request(signum: int, frame: FrameType | None) -> None:
            # No more than a flag: a handler may run in the middle of a step, whose state must not
            # be saved, or of a collective operation that the other ranks are waiting in.
            self.wanted = True

        before = {
            number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
