"""A Beam pipeline that is looked at and not run."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cloze.pipeline.runner.beam import Pipeline, PipelineOptions

DRY_RUN = [
    "--dry_run=True",
    "--no_auth",
    "--project=none",
    "--region=europe-west1",
    "--staging_location=gs://bucket/staging",
    "--temp_location=gs://bucket/temp",
    "--sdk_container_image=image",
    "--sdk_location=container",
]
"""Options with which Dataflow translates a graph, and submits nothing."""


@contextmanager
def unrun_pipeline(options: Sequence[str] = ()) -> Iterator[Pipeline]:
    """Empty; the folder in TMPDIR that Beam makes for each, and removes when it has run, goes."""
    pipeline = Pipeline(options=PipelineOptions(list(options)))
    try:
        yield pipeline
    finally:
        shutil.rmtree(pipeline.local_tempdir)
