"""An object store that fails occasionally: `faulty:///folder`, a folder seen through fsspec.

Like real ones it has neither rename nor locks, and lists new files with a delay. Every
FAULTY_EVERY-th call of a process is answered with 503; an interrupted upload leaves half a file.
"""

import itertools
import os
import shutil
import time
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem

LATE_SECONDS = float(os.environ.get("FAULTY_LATE_SECONDS", "0"))
_calls = itertools.count(1)


def fails() -> bool:
    """Whether this call is one of those that fail."""
    every = int(os.environ.get("FAULTY_EVERY", "0"))
    return bool(every) and next(_calls) % every == 0


class FaultyStore(AbstractFileSystem):
    """The store."""

    protocol = "faulty"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).removeprefix("faulty:").strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return f"faulty://{self._strip_protocol(name)}"

    def _may_fail(self) -> None:
        if fails():
            raise OSError("503 Service Unavailable")

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self._may_fail()
        return self._info(self._strip_protocol(path))

    def _info(self, path: str) -> dict[str, Any]:
        status = os.stat(path)
        kind = "directory" if os.path.isdir(path) else "file"
        return {"name": path, "size": status.st_size, "type": kind, "mtime": status.st_mtime}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        self._may_fail()
        path = self._strip_protocol(path)
        if os.path.isfile(path):
            found = [self._info(path)]
        else:
            found = [self._info(os.path.join(path, name)) for name in sorted(os.listdir(path))]
        now = time.time()
        shown = [
            info
            for info in found
            if info["type"] == "directory" or now - info["mtime"] > LATE_SECONDS
        ]
        return shown if detail else [info["name"] for info in shown]

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        self._may_fail()
        return Path(self._strip_protocol(path)).read_bytes()[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        target = Path(self._strip_protocol(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        if mode == "create":
            with target.open("xb") as new:
                new.write(value)
            self._may_fail()  # only the answer is lost
            return
        if fails():
            target.write_bytes(value[: len(value) // 2])
            raise OSError("503 Service Unavailable")
        target.write_bytes(value)

    def put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        self.pipe_file(rpath, Path(lpath).read_bytes())

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        self._may_fail()
        shutil.copyfile(self._strip_protocol(rpath), lpath)

    def rm_file(self, path: str) -> None:
        self._may_fail()
        os.unlink(self._strip_protocol(path))

    def rm(self, path: str, recursive: bool = False, maxdepth: Any = None) -> None:
        self._may_fail()
        inner = self._strip_protocol(path)
        shutil.rmtree(inner) if os.path.isdir(inner) else os.unlink(inner)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        self._may_fail()
        inner = Path(self._strip_protocol(path))
        if "w" in mode:
            inner.parent.mkdir(parents=True, exist_ok=True)
        return inner.open(mode)
