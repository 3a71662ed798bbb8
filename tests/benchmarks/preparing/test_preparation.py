"""The preparation benchmark's claims, from made-up runs."""

import pytest

from benchmarks.preparing.preparation import claims


def run(megabytes: float, seconds: float) -> dict[str, float]:
    return {
        "megabytes": megabytes, "wall": seconds, "cpu": seconds,
        "bytes_per_example": 270.0, "mb_per_second": megabytes / seconds,
        "mb_per_cpu_second": megabytes / seconds,
    }  # fmt: skip


def test_a_size_that_two_parts_have_measured_counts_once() -> None:
    runs = {
        "drivers": {"150 MB, 2 workers": run(150, 5), "384 MB, 2 workers": run(384, 9)},
        "sizes": {"10 MB, 2 workers": run(10, 2), "384 MB, 2 workers": run(384, 10)},
    }
    (growth,) = [claim for claim in claims(runs) if claim.name.startswith("time per MB above 150")]
    assert growth.figure == (4 / 234) / (3 / 140)
    assert growth.reached


def test_the_speed_of_two_cores_is_missed_below_its_target() -> None:
    runs = {"drivers": {"384 MB, 1 workers": run(384, 15), "384 MB, 2 workers": run(384, 10)}}
    (cores,) = [claim for claim in claims(runs) if claim.name == "2 cores, times one"]
    assert cores.figure == pytest.approx(1.5)
    assert not cores.reached
