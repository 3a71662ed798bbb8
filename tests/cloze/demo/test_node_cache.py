from pathlib import Path

import pytest

from cloze.demo.docstrings import cached


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cloze"


def never() -> None:
    raise AssertionError("made twice")


def test_a_value_is_made_once() -> None:
    assert cached("kind", ["key"], lambda: [1, "\ud800"]) == [1, "\ud800"]
    assert cached("kind", ["key"], never) == [1, "\ud800"]


def test_other_keys_are_other_values() -> None:
    cached("kind", ["a"], lambda: 1)
    assert cached("kind", ["b"], lambda: 2) == 2


def test_a_damaged_file_is_made_again(cache: Path) -> None:
    cached("kind", ["key"], lambda: "whole")
    (path,) = (cache / "kind").iterdir()
    content = path.read_bytes()
    flipped = [
        content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        for place in range(len(content))
    ]
    for damaged in (b"", b"[]", b'"who', b'"whole"', content[:-1], content + b" ", *flipped):
        path.write_bytes(damaged)
        assert cached("kind", ["key"], lambda: "whole") == "whole"
        assert path.read_bytes() == content


def test_where_nothing_can_be_written_the_value_is_given_all_the_same(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file where the folder would be")
    assert cached("kind", ["key"], lambda: "value") == "value"
