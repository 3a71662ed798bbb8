"""A Beam pipeline that is looked at and not run."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cloze.pipeline.runner.beam import Pipeline, PipelineOptions


@contextmanager
def unrun_pipeline(options: Sequence[str] = ()) -> Iterator[Pipeline]:
    """Empty; the folder in TMPDIR that Beam makes for each, and removes when it has run, goes."""
    pipeline = Pipeline(options=PipelineOptions(list(options)))
    try:
        yield pipeline
    finally:
        shutil.rmtree(pipeline.local_tempdir)
