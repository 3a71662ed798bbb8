"""The names of Apache Beam that this project uses, imported in one place.

In:  the installed Beam.
Out: the same names. Everything else imports them from here.

On import Beam warns in the root log that Google's client libraries are absent, which concerns
nobody who has not asked for them; that one warning is kept back. And Beam takes along what it finds
installed for data frames and MongoDB, a third of its import time; it is told that there is nothing.

pyarrow imports pandas, too, when it first makes an array, and would do so in every worker: a
quarter of a second each for nothing. It asks once whether there is a pandas; it is shown one that
is too old.
"""

import logging
import sys
import warnings
from types import ModuleType

import pyarrow

_root_level = logging.getLogger().level
logging.getLogger().setLevel(logging.ERROR)
_left_out = [name for name in ("pandas", "bson") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_left_out))  # type: ignore[arg-type]  # None: "not installed"

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import Pipeline
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner import fn_runner
from apache_beam.runners.portability.portable_runner import JobServiceHandle
from apache_beam.runners.runner import PipelineState
from apache_beam.runners.worker import sdk_worker_main
from apache_beam.transforms import environments
from apache_beam.transforms.core import Create, DoFn, FlatMap, GroupByKey, Impulse, Map, ParDo
from apache_beam.transforms.util import Reshuffle

logging.getLogger().setLevel(_root_level)
for _name in _left_out:
    del sys.modules[_name]

if "pandas" in _left_out:
    _too_old = ModuleType("pandas")
    vars(_too_old)["__version__"] = "0"
    sys.modules["pandas"] = _too_old
    with warnings.catch_warnings(action="ignore"):
        pyarrow.array([0])
    del sys.modules["pandas"]

__all__ = [
    "Create",
    "DoFn",
    "FlatMap",
    "GroupByKey",
    "Impulse",
    "JobServiceHandle",
    "Map",
    "PCollection",
    "ParDo",
    "Pipeline",
    "PipelineOptions",
    "PipelineState",
    "Reshuffle",
    "beam_provision_api_pb2",
    "environments",
    "fn_runner",
    "sdk_worker_main",
]
