"""A job that goes on without a worker: Prism's log says so where its state does not."""

import logging
from pathlib import Path

import pytest

from cloze.artifacts.progress import Progress
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.runner import engine_job
from cloze.pipeline.runner.engine_job import EngineJob, PipelineOptions
from cloze.pipeline.runner.graph import JobFailed

LINE = "additional bundle response (resp={'error': 'SDK worker disconnected: worker[job-001]'})"


class EndlessJob:
    """What Prism shows of a job whose failed bundle it has dropped."""

    state = "RUNNING"

    def metrics(self) -> None:
        """It has no counters; meanwhile Prism logs the end of its worker."""
        logging.getLogger("PrismRunner").warning(LINE)
        raise NotImplementedError


def test_a_job_that_prism_runs_without_its_worker_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine_job, "LOST_SECONDS", 0.1)
    machine = PipelineMachine(runner="PrismRunner")
    job = EngineJob(machine, PipelineOptions([]), Progress("tokens", "MB", 1.0), str(tmp_path))
    with pytest.raises(JobFailed, match="goes on without a worker .SDK worker disconnected"):
        job.until_finished(EndlessJob())  # type: ignore[arg-type]
    assert f"prism: {LINE}" in capsys.readouterr().err
    assert not logging.getLogger("PrismRunner").handlers
