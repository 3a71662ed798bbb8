"""Apache Beam, imported in one place, and a job as a Beam pipeline.

In:  the installed Beam; a job's steps (pipeline/runner/graph.py).
Out: the names of Beam that this project uses; `add_job`, which adds the steps to a pipeline.

Importing Beam logs a warning that Google's client libraries are missing; it is suppressed, since
only their users care. Beam also imports whatever it finds installed for data frames, MongoDB and
BigQuery, two fifths of its import time; these modules are hidden from it. The garbage collector is
off during the import, whose objects are never freed anyway.

The local runner is Beam's FnApiRunner, named explicitly (pipeline/runner/local_runner.py):
`DirectRunner` would first try to download another runner.
"""

import gc
import logging
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from operator import index
from typing import Any

SAMPLING_PERIOD_MS = 2
"""A bundle ends only when the state-sampling thread wakes up: by default up to 200 ms later."""

# Importing Beam: quietly, without collecting garbage, and without the modules named above.
_root_level = logging.getLogger().level
logging.getLogger().setLevel(logging.ERROR)
_collecting = gc.isenabled()
gc.disable()
_not_needed = ("pandas", "bson", "apache_beam.io.gcp.bigquery")
_left_out = [name for name in _not_needed if name not in sys.modules]
sys.modules.update(dict.fromkeys(_left_out))  # type: ignore[arg-type]  # None: "not installed"

import grpc
from apache_beam.metrics.metric import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    PortableOptions,
    TestOptions,
    _BeamArgumentParser,
)
from apache_beam.pipeline import Pipeline
from apache_beam.portability import python_urns
from apache_beam.portability.api import (
    beam_fn_api_pb2_grpc,
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
    beam_provision_api_pb2,
    endpoints_pb2,
)
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner import fn_runner, worker_handlers
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.runners.portability.portable_runner import PipelineResult as PortableResult
from apache_beam.runners.runner import PipelineResult, PipelineState
from apache_beam.runners.worker import data_plane, sdk_worker_main, statesampler
from apache_beam.transforms import environments
from apache_beam.transforms.core import Create, DoFn, GroupByKey, Impulse, ParDo
from apache_beam.transforms.ptransform import PTransform
from apache_beam.utils import thread_pool_executor
from apache_beam.utils.counters import CounterFactory

from cloze.artifacts.errors import UsageError
from cloze.pipeline.runner.graph import LastCollection, Step


class _StateSampler(statesampler.StateSampler):
    """Beam's sampler with a shorter period, for which Beam has no option."""

    def __init__(self, prefix: str, counters: CounterFactory) -> None:
        super().__init__(prefix, counters, SAMPLING_PERIOD_MS)


def refuse_unknown(flags: Sequence[str]) -> None:
    """Raise a `UsageError` for a command-line option that Beam does not know.

    Beam itself would log and ignore it.
    """
    # Each class of options adds its own; where two define the same one, the later wins.
    parser = _BeamArgumentParser(allow_abbrev=False, add_help=False, conflict_handler="resolve")
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    if unknown := parser.parse_known_args(list(flags))[1]:
        raise UsageError(
            f"{unknown[0]}: not a Beam option; apache_beam.options.pipeline_options lists them, "
            "and --set KEY=VALUE changes the run's own settings"
        )


statesampler.StateSampler = _StateSampler  # type: ignore[misc,assignment]  # there is no option
logging.getLogger().setLevel(_root_level)
# What the imports made is hidden from the collector for good: it would mark every object in
# passing, and so give each forked worker a copy of these pages.
gc.freeze()
if _collecting:
    gc.enable()
for _name in _left_out:
    del sys.modules[_name]


class _RunStep(DoFn):
    """A step as a Beam `DoFn`."""

    def __init__(self, step: Step, *, is_grouped: bool) -> None:
        self._step = step
        self._is_grouped = is_grouped

    def setup(self) -> None:
        """Called once per worker."""
        self._function = self._step.ready()

    def process(self, item: Any) -> Iterable[Any]:
        """Called once per item."""
        made = self._function(item)
        return map(_with_plain_key, made) if self._is_grouped else made


def _with_plain_key(pair: tuple[Any, Any]) -> tuple[int, Any]:
    """The pair with its key as a plain integer; raises `TypeError` for anything but an integer.

    Engines compare keys by their encoding, and Dask by a digest of their Python value, in which
    numpy's 5 and True are other keys than 5 and 1 (apache/beam#29365). A plain integer has one
    encoding and one digest in every process, so it is grouped rightly by construction.
    """
    key, value = pair
    return int(index(key)), value


def add_job(
    job: LastCollection,
    pipeline: Pipeline,
    *before: Step,
    start: PTransform[Any, Any] | None = None,
) -> None:
    """Add the steps `before` and the job's own to an empty pipeline.

    `start` produces the first element: by default `Impulse`, which not every engine supports. The
    job's output is consumed by a final group-by-key, because the runner would not notice the death
    of a worker in a step whose output nobody reads.
    """
    finished = Step("Finished", "map", lambda _: (0, 0))
    steps = (*before, *job.steps, finished, Step("Consume", "group"))
    items: PCollection[Any] = pipeline | "Start" >> (start or Impulse())
    # Each step with the one after it, which decides how its output is typed.
    for step, following in zip_longest(steps, steps[1:]):
        is_grouped = following is not None and following.kind == "group"
        transform: Any = GroupByKey()
        if step.function:  # Beam must know that the input of a group is pairs
            transform = ParDo(_RunStep(step, is_grouped=is_grouped))
            transform.with_output_types(tuple[int, Any] if is_grouped else Any)
        items = items | step.label >> transform
