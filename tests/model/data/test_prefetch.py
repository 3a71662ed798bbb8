"""Values come in order, a few ahead, and an error comes where its value would have come."""

import threading

import pytest

from model.data.prefetch import Prefetcher


def test_values_come_in_order() -> None:
    assert list(Prefetcher(lambda i: i * i, 3, 8)) == [9, 16, 25, 36, 49]


def test_nothing_to_make_is_fine() -> None:
    assert list(Prefetcher(lambda i: i, 5, 5)) == []


def test_no_more_than_depth_values_are_made_ahead() -> None:
    made: list[int] = []
    values = iter(Prefetcher(lambda i: made.append(i) or i, 0, 100, depth=3))
    assert next(values) == 0
    assert len(made) <= 5


def test_an_error_is_raised_at_its_place() -> None:
    def make(index: int) -> int:
        if index == 2:
            raise ValueError("shard gone")
        return index

    values = iter(Prefetcher(make, 0, 9))
    assert [next(values), next(values)] == [0, 1]
    with pytest.raises(ValueError, match="shard gone"):
        next(values)


def test_closing_ends_the_thread() -> None:
    before = set(threading.enumerate())
    prefetcher = Prefetcher(lambda i: i, 0, 10**6)
    next(iter(prefetcher))
    assert set(threading.enumerate()) - before
    prefetcher.close()
    assert not set(threading.enumerate()) - before
