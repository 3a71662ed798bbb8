"""A migrated database for a workspace's Prefect server, made once on a machine.

In:  PREFECT_HOME of a workspace; the first database that a server here has migrated.
Out: `prefect.db` there, ready to use: a copy of the template in this user's cache, whose name has
     the version of Prefect.

Hundreds of migrations of an empty database take longer than everything else a server does when it
starts. A template that is missing or damaged is made again by the next server with a new database.
"""

import os
import shutil
import sqlite3
from contextlib import closing, suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from cloze.artifacts.digests import cache_directory
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.temporary import clear_left, temporary_directory, temporary_file

NAME = "prefect.db"
"""Prefect's name for the database in PREFECT_HOME."""

TO_KEEP = "CLOZE_KEEP_DATABASE"
"""Environment variable of a server that starts with no database: the template to make from it."""

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def template() -> Path:
    """The file of the template for the installed version of Prefect."""
    return cache_directory("prefect") / f"{metadata.version('prefect')}.db"


def provide(home: Path) -> bool:
    """Put a database into `home`, unless it has one; returns whether it is already migrated.

    A database that SQLite cannot read, or that another version of Prefect has migrated further than
    this one can, is set aside: the artifacts do not depend on it.
    """
    home.mkdir(parents=True, exist_ok=True)
    file = home / NAME
    revision = _revision(file)
    if _damaged(file):
        _set_aside(file, "damaged", "is damaged")
    elif revision and not _is_known(revision):
        version = metadata.version("prefect")
        _set_aside(file, revision, f"was made by another version of Prefect than {version}")
    clear_left(str(template().parent))  # a template that was never finished
    migrated = _revision(template())
    if migrated and not file.exists():
        # Copied under another name and then linked, so that the name never stands for a part of the
        # file and never replaces a database.
        with temporary_file(str(home), mode=0o600) as copied, suppress(OSError):
            shutil.copyfile(template(), copied)
            os.link(copied, file)  # unless another run has just done so
    return bool(migrated) and _revision(file) == migrated


def keep(home: Path, file: Path) -> None:
    """Make the template `file` from the database in `home`, which has just been migrated."""
    with suppress(OSError, sqlite3.Error):  # the next server tries again
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary_directory(str(file.parent)) as folder:
            copied = os.path.join(folder, NAME)
            with closing(_opened(home / NAME)) as source, closing(sqlite3.connect(copied)) as copy:
                # Also copies what is only in the write-ahead log yet.
                source.backup(copy)
            os.replace(copied, file)


def _set_aside(file: Path, suffix: str, why: str) -> None:
    say(f"warning: {file} {why}; kept as {file.name}.{suffix}, and a new one made")
    file.replace(file.with_name(f"{NAME}.{suffix}"))
    # They belong to the old file; SQLite would apply them to the new one.
    for companion in ("-wal", "-shm"):
        file.with_name(NAME + companion).unlink(missing_ok=True)


def _is_known(revision: str) -> bool:
    """Whether the installed Prefect has this migration; they are files named after them."""
    prefect = find_spec("prefect")  # without importing it, which takes seconds
    folders = (prefect.submodule_search_locations if prefect else None) or []
    names = [
        path.name
        for folder in folders
        for path in Path(folder).glob("server/database/_migrations/versions/sqlite/*.py")
    ]
    # Without any files to compare with, the database is taken as it is.
    return not names or any(f"_{revision}_" in name for name in names)


def _opened(file: Path) -> sqlite3.Connection:
    """The database in `file`, to be read only."""
    return sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)


def _damaged(file: Path) -> bool:
    """Whether `file` exists but is no database that SQLite can read."""
    if not file.exists():
        return False
    try:
        with closing(_opened(file)) as database:
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        # One that is locked, for example, is not damaged.
        return getattr(error, "sqlite_errorcode", None) in DAMAGED
    return False


def _revision(file: Path) -> str:
    """The last migration of the database in `file`; empty if there is none or it is unsound."""
    if not file.exists():
        return ""
    try:
        with closing(_opened(file)) as database:
            (sound,) = database.execute("PRAGMA quick_check(1)").fetchone()
            # Without a row this is a TypeError.
            (revision,) = database.execute("SELECT version_num FROM alembic_version").fetchone()
    except (sqlite3.Error, TypeError):
        return ""
    return str(revision) if sound == "ok" else ""
