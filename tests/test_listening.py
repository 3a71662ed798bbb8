"""A run neither can be reached from another machine, nor calls one."""

from tests.conftest import GoldenRun
from tests.listening import outside
from tests.test_golden_run import STAGES


def test_no_stage_listens_on_an_address_that_another_machine_reaches(golden: GoldenRun) -> None:
    listened = golden.sockets.listened
    reached = {stage: outside(addresses) for stage, addresses in listened.items()}
    assert reached.keys() >= {*STAGES}, "a stage was too short to be looked at"
    assert listened[""] == {"127.0.0.1"}, "Prefect's server was not seen"
    assert {stage: found for stage, found in reached.items() if found} == {}


def test_a_run_calls_no_other_machine(golden: GoldenRun) -> None:
    """Nor does Prefect, whose telemetry is off."""
    called = golden.sockets.called
    assert called[""] == {"127.0.0.1"}, "Prefect's client was not seen"
    assert {stage: outside(found) for stage, found in called.items() if outside(found)} == {}
