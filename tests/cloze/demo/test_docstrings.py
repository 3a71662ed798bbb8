import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.demo.docstrings import DOCSTRINGS, documents
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.documents import Piece
from tests.pipeline.installed import install, use

SENTENCE = "This sentence has quite enough words to be left out when repeated."
FILES: dict[str, str | bytes] = {
    "pack/b.py": f'"""Module b.\n\n{SENTENCE}\n\nAnother paragraph."""',
    "pack/a.py": f'"""Module a.\n\n{SENTENCE}\n\nAnother paragraph."""',
    "pack/empty.py": "x = 1",
    "pack/template.py": "{% if x %}",
    "pack/function.py": 'def f(x, *rest):\n    """Do it with x."""\n\ndef g(y):\n    """word"""',
    "pack/surrogate.py": '"""A lone surrogate \\ud800 in the text."""',
    "pack/tests/test_a.py": '"""Tests are left out."""',
    "pack/_version.py": '"""Made by the build."""',
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def source(*packages: str) -> SourceConfig:
    return SourceConfig(reader="docstrings", packages=packages)


def texts(package: str) -> Iterator[str]:
    for block in DOCSTRINGS.read(Piece(package), source(package)):
        raw, begin = block.text.tobytes(), 0
        for end in block.ends.tolist():
            yield raw[begin:end].decode()
            begin = end


def test_a_module_is_a_document_and_the_order_is_that_of_the_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, install(tmp_path, "pack", FILES))
    assert list(texts("pack")) == [
        f"Module a.\n{SENTENCE}\nAnother paragraph.\n",
        "Module b.\nAnother paragraph.\n",  # only the long paragraph is dropped as a repetition
        "f(x, rest)\nDo it with x.\n",
        "A lone surrogate ? in the text.\n",
    ]


def test_the_text_depends_on_the_files_alone_not_on_where_or_in_which_order_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for folder, files in (("one", FILES), ("two", dict(reversed(FILES.items())))):
        with monkeypatch.context() as patch:
            use(patch, install(tmp_path / folder, "pack", files))
            found.append(list(documents("pack")))
    assert found[0] == found[1]


def test_a_module_that_is_no_python_is_said_to_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, install(tmp_path, "pack", FILES))
    list(documents("pack"))
    assert "skipping pack/template.py, not valid in this Python" in capsys.readouterr().err


def test_a_package_is_one_file_of_the_size_of_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, install(tmp_path, "pack", FILES))
    (found,) = DOCSTRINGS.find(source("pack"))
    counted = [content for name, content in FILES.items() if "test" not in name.split("/")[1]]
    assert found.path == "pack"
    assert 0 < found.size < sum(len(content) for content in counted)


def test_real_packages_give_readable_english() -> None:
    text = "".join(texts("joblib"))
    assert len(text) > 50_000
    assert ">>>" not in text
    assert "``" not in text
    letters = sum(character.isalpha() or character.isspace() for character in text)
    assert letters / len(text) > 0.9


def test_no_long_paragraph_is_read_twice() -> None:
    lines = "".join(texts("joblib")).splitlines()
    long = [line for line in lines if line.count(" ") >= 7]
    assert len(long) == len(set(long))


def test_a_package_is_parsed_once_per_node_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        place = install(tmp_path / "old", "pack", FILES)
        use(patch, place)
        first = list(texts("pack"))
        shutil.rmtree(place / "pack")  # what was parsed is known without its files
        assert list(texts("pack")) == first
    changed = {**FILES, "pack/empty.py": '"""It has words now."""'}
    use(monkeypatch, install(tmp_path / "new", "pack", changed))
    assert "It has words now.\n" in list(texts("pack"))


def test_other_code_makes_other_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, install(tmp_path, "pack", FILES))
    list(texts("pack"))
    monkeypatch.setattr("cloze.demo.docstrings.digest_of_file", lambda path: "edited")
    monkeypatch.setattr("cloze.demo.docstrings.docstrings", lambda tree: [])
    assert list(texts("pack")) == []
