"""The names of Apache Beam that this project uses, imported in one place.

In:  the installed Beam.
Out: the same names. Everything else imports them from here.

On import Beam warns in the root log that Google's client libraries are absent, which matters only
to those who use them; that one warning is suppressed. And Beam imports what it finds installed for
data frames, MongoDB and BigQuery, two fifths of its import time; these are hidden from it. Garbage
collection is off meanwhile: what an import makes stays.
"""

import gc
import logging
import sys
from collections.abc import Sequence

SAMPLING_PERIOD_MS = 2
"""A bundle ends when the thread that samples its state wakes up, by default up to 200 ms later."""

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
from apache_beam.transforms.core import Create, DoFn, FlatMap, GroupByKey, Impulse, Map, ParDo
from apache_beam.transforms.ptransform import PTransform
from apache_beam.utils import thread_pool_executor
from apache_beam.utils.counters import CounterFactory

from artifacts.errors import UsageError


class _StateSampler(statesampler.StateSampler):
    """Beam's own sampler with another period, for which Beam has no option."""

    def __init__(self, prefix: str, counters: CounterFactory) -> None:
        super().__init__(prefix, counters, SAMPLING_PERIOD_MS)


def refuse_unknown(flags: Sequence[str]) -> None:
    """Refuse an option of the command line that none of Beam's option classes has.

    Beam itself only logs and ignores it.
    """
    parser = _BeamArgumentParser(allow_abbrev=False, add_help=False, conflict_handler="resolve")
    for options in PipelineOptions.__subclasses__():
        options._add_argparse_args(parser)
    if unknown := parser.parse_known_args(list(flags))[1]:
        raise UsageError(
            f"{unknown[0]}: no option of Beam's; its options are in apache_beam.options."
            "pipeline_options, those of a run are set with --set KEY=VALUE"
        )


statesampler.StateSampler = _StateSampler  # type: ignore[misc,assignment]  # no option says it
logging.getLogger().setLevel(_root_level)
gc.freeze()
if _collecting:
    gc.enable()
for _name in _left_out:
    del sys.modules[_name]

__all__ = [
    "Create",
    "DoFn",
    "FlatMap",
    "GroupByKey",
    "Impulse",
    "JobServiceHandle",
    "Map",
    "Metrics",
    "MetricsFilter",
    "PCollection",
    "PTransform",
    "ParDo",
    "Pipeline",
    "PipelineOptions",
    "PipelineResult",
    "PipelineState",
    "PortableOptions",
    "PortableResult",
    "TestOptions",
    "beam_fn_api_pb2_grpc",
    "beam_job_api_pb2",
    "beam_job_api_pb2_grpc",
    "beam_provision_api_pb2",
    "data_plane",
    "endpoints_pb2",
    "environments",
    "fn_runner",
    "grpc",
    "python_urns",
    "refuse_unknown",
    "sdk_worker_main",
    "thread_pool_executor",
    "worker_handlers",
]
