"""What the preparation benchmark claims: each figure beside its target.

In:  the measured runs, by part and label.
Out: one line a claim, for those whose runs are there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict


class Figures(TypedDict, total=False):
    """What one run has given; seconds, and MB of text."""

    megabytes: float
    wall: float
    cpu: float
    """Of the processor, of all processes."""
    tokens_cpu: float
    examples_cpu: float
    seconds_without_imports: float
    """In place of `wall`, of a peer."""
    cpu_without_imports: float
    mb_per_second: float
    mb_per_cpu_second: float
    examples: int
    examples_per_second: float
    bytes_per_example: float
    digest: str
    peak_pss_mb: float
    """Memory of all processes, if it was looked at."""


Runs = Mapping[str, Mapping[str, Figures]]
"""By part (`peers`, `drivers`, …) the runs by label."""

PEER_TARGETS = {
    "google": 25.0,
    "lddl, sentences given": 14.0,
    "lddl, with its segmentation": 14.0,
    "huggingface": 12.0,
}
"""How many times a peer's speed ours should be, a core."""


@dataclass(frozen=True)
class Claim:
    """A figure and what it should be."""

    name: str
    figure: float
    target: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the figure keeps to the target."""
        return self.figure <= self.target if self.at_most else self.figure >= self.target


def claims(runs: Runs) -> list[Claim]:
    """Every claim that the runs say something about."""
    return [
        *_against_peers(runs),
        *_cores_and_drivers(runs),
        *_kinds_of_work(runs),
        *_sizes(runs),
    ]


def _against_peers(runs: Runs) -> Iterator[Claim]:
    """The speed of a core: at length against ours run next to the peer, else against our best."""
    for part in ("peers", "peers at length"):
        measured = runs.get(part, {})
        for peer, target in PEER_TARGETS.items():
            theirs = measured.get(f"{peer}, 1 workers")
            ours = measured.get(f"ours after {peer}, 1 workers") or _largest(runs, "1 workers")
            if not (theirs and ours):
                continue
            name = f"times {peer} at {theirs['megabytes']:.0f} MB, by"
            by_wall = ours["mb_per_second"] / theirs["mb_per_second"]
            by_cpu = ours["mb_per_cpu_second"] / theirs["mb_per_cpu_second"]
            yield Claim(f"{name} wall time", by_wall, target)
            yield Claim(f"{name} processor time", by_cpu, target)


def _cores_and_drivers(runs: Runs) -> Iterator[Claim]:
    one, two = _largest(runs, "1 workers"), _largest(runs, "2 workers")
    if one and two:
        yield Claim("2 cores, times one", two["mb_per_second"] / one["mb_per_second"], 1.6)
    plain = _largest(runs, "2 workers, plain loop")
    if two and plain:
        name = "Beam's processor time, times the plain loop's, 2 workers"
        yield Claim(name, two["cpu"] / plain["cpu"], 1.2, at_most=True)
    drivers = {"drivers": runs.get("drivers", {})}  # both have read the same sizes there
    beams, plains = (_by_size(drivers, label) for label in ("2 workers", "2 workers, plain loop"))
    if len(beams) > 1 and len(plains) > 1:
        name = "Beam's wall time per MB, times the plain loop's, 2 workers"
        yield Claim(name, _slope(beams[-2:]) / _slope(plains[-2:]), 1.3, at_most=True)
    if tiny := runs.get("start-up", {}).get("2 workers"):
        yield Claim("seconds of start-up, both stages", tiny["wall"], 5.0, at_most=True)


def _kinds_of_work(runs: Runs) -> Iterator[Claim]:
    """Cutting paragraphs into sentences, a second length, further copies."""
    texts = runs.get("paragraphs", {})
    if {"sentences given", "paragraphs"} <= set(texts):
        both = (texts["paragraphs"], texts["sentences given"])
        raw, given = (run["examples_per_second"] for run in both)  # markup is no text
        yield Claim("speed from paragraphs, share of that with sentences given", raw / given, 0.5)
    if found := runs.get("lengths and copies", {}):
        first = found["128, 1 copy"]["cpu"]
        further = found["128 and 512, 1 copy"]["cpu"] - first
        yield Claim("cost of a second length, of the first", further / first, 0.25, at_most=True)
        copy = (found["128, 5 copies"]["cpu"] - first) / 4
        yield Claim("cost of a further copy, of the first", copy / first, 0.25, at_most=True)


def _sizes(runs: Runs) -> Iterator[Claim]:
    """How bytes, time and memory grow with the text."""
    sizes = _by_size(runs, "2 workers")
    if sizes:
        largest = sizes[-1]["bytes_per_example"]
        yield Claim("bytes an example at 128", largest, 300.0, at_most=True)
    if len(sizes) > 2:
        first, middle, last = sizes[0], sizes[len(sizes) // 2], sizes[-1]
        growth = _slope([middle, last]) / _slope([first, middle])
        name = f"time per MB above {middle['megabytes']:.0f} MB, times that below"
        yield Claim(name, growth, 1.2, at_most=True)
    for run in runs.get("memory", {}).values():
        name = f"memory at {run['megabytes']:.0f} MB, all processes, MB"
        yield Claim(name, run["peak_pss_mb"], 1.5 * 1024**3 / 1e6, at_most=True)


def _by_size(runs: Runs, label: str) -> list[Figures]:
    found = {
        run["megabytes"]: run
        for part in ("sizes", "drivers")
        for name, run in runs.get(part, {}).items()
        if name.endswith(f" MB, {label}")
    }
    return [found[size] for size in sorted(found)]


def _largest(runs: Runs, label: str) -> Figures | None:
    """Of the corpora that both drivers have read, the largest."""
    found = [run for name, run in runs.get("drivers", {}).items() if name.endswith(f" MB, {label}")]
    return max(found, key=lambda run: run["megabytes"], default=None)


def _slope(two: list[Figures]) -> float:
    """Seconds of wall time a further MB takes."""
    first, last = two
    return (last["wall"] - first["wall"]) / (last["megabytes"] - first["megabytes"])
