"""Beam's own job service, with two workers for a job, and notes of what they do. A program.

In:  a folder.
Out: the service; its port in the folder's file `port`, and in `notes` a line when a worker begins
     with a bundle, `worker_3 begins Shards:Spread/Read` by what it reads, and when it ends it:
     `worker_3 ends 13`, after 13 documents by our own counters.

A bundle with documents does not end while the folder has the file `worker_3.hold`. Workers are
numbered through all jobs. Beam's local runner takes the number of workers from an option, but not
where a job service starts it.
"""

import sys
import time
from pathlib import Path
from typing import Any

from apache_beam.metrics import monitoring_infos
from apache_beam.runners.portability import local_job_service_main
from apache_beam.runners.portability.fn_api_runner import fn_runner

FOLDER = Path(sys.argv[1])


def note(*words: object) -> None:
    """A line."""
    with (FOLDER / "notes").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


class TwoWorkers(fn_runner.FnApiRunner):
    """Runs a job."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._num_workers = 2


class NotedBundle(fn_runner.BundleManager):
    """Has a worker do a bundle."""

    def _send_input_to_worker(self, bundle: str, reads: str, elements: Any) -> None:
        note(self._worker_handler.worker_id, "begins", reads)
        super()._send_input_to_worker(bundle, reads, elements)

    def process_bundle(self, *arguments: Any, **options: Any) -> Any:
        """To its end, and until nothing holds it."""
        result, splits = super().process_bundle(*arguments, **options)
        counted = filter(monitoring_infos.is_counter, result.process_bundle.monitoring_infos)
        documents = sum(
            monitoring_infos.extract_counter_value(counter)
            for counter in counted
            if monitoring_infos.parse_namespace_and_name(counter) == ("cloze", "documents")
        )
        worker = self._worker_handler.worker_id
        while documents and (FOLDER / f"{worker}.hold").exists():
            time.sleep(0.02)
        note(worker, "ends", documents // 1000)
        return result, splits


fn_runner.FnApiRunner = TwoWorkers
fn_runner.BundleManager = NotedBundle
local_job_service_main.run(["--port_file", str(FOLDER / "port")])
