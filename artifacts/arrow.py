"""pyarrow as this project uses it: without pandas.

In:  the installed pyarrow.
Out: the same, as `pa`. Import it from here where arrays are made while a module is imported.

When pyarrow first makes an array it imports pandas if there is one: a quarter of a second of every
program and of every worker, for nothing. It asks once, so it is shown one that is too old.
"""

import sys
import warnings
from types import ModuleType

import pyarrow as pa

__all__ = ["pa"]

if "pandas" not in sys.modules:
    _too_old = ModuleType("pandas")
    vars(_too_old)["__version__"] = "0"
    sys.modules["pandas"] = _too_old
    with warnings.catch_warnings(action="ignore"):
        pa.array([0])
    del sys.modules["pandas"]
