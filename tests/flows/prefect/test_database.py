"""The database of a workspace's Prefect server is a copy of one that was migrated before."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from cloze.flows.prefect import database

FIRST, SECOND, UNKNOWN = "9725c1cbee35", "619bea85701a", "ffffffffffff"
"""Migrations of every version of Prefect, and one of none."""


@pytest.fixture(autouse=True)
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the template, where there is none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return database.template()


def migrated(home: Path, revision: str = FIRST) -> None:
    """A database in `home` as Prefect's migrations leave it."""
    home.mkdir(exist_ok=True)
    with closing(sqlite3.connect(home / "prefect.db")) as file, file:
        file.execute("CREATE TABLE alembic_version (version_num)")
        file.execute("INSERT INTO alembic_version VALUES (?)", [revision])


def test_a_new_workspace_gets_the_database_that_another_has_migrated(
    tmp_path: Path, template: Path
) -> None:
    migrated(tmp_path / "first")
    assert not database.provide(tmp_path / "second")
    assert not (tmp_path / "second" / "prefect.db").exists()
    database.keep(tmp_path / "first", template)
    assert database.provide(tmp_path / "second")
    assert database.provide(tmp_path / "second")
    assert [file.name for file in (tmp_path / "second").iterdir()] == ["prefect.db"]


def test_a_database_of_an_earlier_version_still_has_to_be_migrated(
    tmp_path: Path, template: Path
) -> None:
    migrated(tmp_path / "new", SECOND)
    database.keep(tmp_path / "new", template)
    migrated(tmp_path / "old", FIRST)
    assert not database.provide(tmp_path / "old")


@pytest.mark.parametrize(
    "content", [b"", b"no database at all", b"SQLite format 3\0" + b"x" * 4096]
)
def test_a_damaged_template_is_not_used_and_made_again(
    tmp_path: Path, template: Path, content: bytes
) -> None:
    template.parent.mkdir(parents=True)
    template.write_bytes(content)
    assert not database.provide(tmp_path / "first")
    migrated(tmp_path / "first")
    database.keep(tmp_path / "first", template)
    assert database.provide(tmp_path / "second")


def test_a_damaged_database_is_set_aside(
    tmp_path: Path, template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    migrated(tmp_path / "first")
    database.keep(tmp_path / "first", template)
    (tmp_path / "first" / "prefect.db").write_bytes(b"no database at all")
    assert database.provide(tmp_path / "first")
    assert (tmp_path / "first" / "prefect.db.damaged").read_bytes() == b"no database at all"
    assert "prefect.db is damaged; kept as prefect.db.damaged" in capsys.readouterr().err


def test_a_database_of_another_version_of_prefect_is_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    migrated(tmp_path / "home", UNKNOWN)
    assert not database.provide(tmp_path / "home")
    assert [file.name for file in (tmp_path / "home").iterdir()] == [f"prefect.db.{UNKNOWN}"]
    said = capsys.readouterr().err
    assert "prefect.db was made by another version of Prefect than" in said
    assert f"kept as prefect.db.{UNKNOWN}, and a new one made" in said


def test_the_migrations_of_the_installed_prefect_are_known(tmp_path: Path) -> None:
    for revision in (FIRST, SECOND):
        migrated(tmp_path / revision, revision)
        database.provide(tmp_path / revision)
        assert [file.name for file in (tmp_path / revision).iterdir()] == ["prefect.db"]
