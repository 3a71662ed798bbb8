"""New lines of a growing file."""

from pathlib import Path

from flows.job import Tail


def test_each_line_comes_once_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.lines() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n\nthree\n")
    assert tail.lines() == ["two", "three"]
    assert tail.lines() == []


def test_a_carriage_return_ends_a_line_too(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"10 %\r20 %\r\n")
    assert Tail(tmp_path / "log").lines() == ["10 %", "20 %"]


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xfe\n")
    assert Tail(tmp_path / "log").lines() == ["\ufffd\ufffd"]


def test_reading_can_begin_where_an_earlier_attempt_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old\nnew\n")
    assert Tail(tmp_path / "log", offset=4).lines() == ["new"]
