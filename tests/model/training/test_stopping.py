"""Signals become a wish while the loop runs, and are as before afterwards."""

import os
import signal

import pytest

from model.training.stopping import Stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_wish_and_may_come_twice(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop().listening() as stop:
        assert not stop.wanted
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.wanted
    assert signal.getsignal(number) is before
