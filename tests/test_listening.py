"""Nothing that a run starts can be reached from another machine."""

from tests.conftest import GoldenRun
from tests.listening import outside
from tests.test_golden_run import STAGES


def test_no_stage_listens_on_an_address_that_another_machine_reaches(golden: GoldenRun) -> None:
    reached = {stage: outside(addresses) for stage, addresses in golden.listening.items()}
    assert reached.keys() >= {*STAGES}, "a stage was too short to be looked at"
    assert golden.listening[""] == {"127.0.0.1"}, "Prefect's server was not seen"
    assert {stage: found for stage, found in reached.items() if found} == {}
