"""A stand-in for the programs of all stages: fast and deterministic, or slow or faulty on request.

Run as `python -P -m tests.flows.standin --config TABLE`; STANDIN (JSON) sets its behaviour:
{"tokens": {"sleep": 30}} or {"tokens": {"fail": 2}} or {"tokens": {"kill": "once"}}.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import Progress, say
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, commit, finished_file, put_bytes, put_json

FAILURES = {1: ClozeError, 2: UsageError}


def stage(table: StageTable, options: list[str]) -> Artifact:
    """Write one file made from the configuration and the inputs' digests."""
    behave(**json.loads(os.environ.get("STANDIN", "{}")).get(table.stage, {}))
    say(f"options {options}")
    inputs = {role: reference.digest for role, reference in table.inputs.items()}
    content = {"config": digest_of(table.keyed_config), "inputs": inputs}
    names = ("report.html", "summary.json") if table.stage == "report" else ("content.json",)
    files = [
        finished_file(table.output, name) or put_json(table.output, content, name=name)
        for name in names
    ]
    log = put_bytes(table.output, b"a line\n", name="log.txt")
    return commit(table, files, records=[log], statistics={"stage": table.stage})


def behave(
    sleep: float = 0.0, fail: int = 0, kill: str = "", crash: str = "", orphan: bool = False
) -> None:
    """Be slow, fail, be killed once, raise, or leave a process behind."""
    if orphan:
        subprocess.Popen(["sleep", "300"], start_new_session=True)
    progress = Progress("standin", total=sleep, unit="s", interval=0.1)
    while progress.done < sleep:
        time.sleep(0.1)
        progress.advance(0.1)
    if fail:
        raise FAILURES[fail]("the text: is wrong, expected better; mend it")
    if kill and not Path(kill).exists():
        Path(kill).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if crash:
        raise RuntimeError(crash)


if __name__ == "__main__":
    run_program(stage)
