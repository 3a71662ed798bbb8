"""A realistic folder: other encodings, images, damaged files, odd names."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TEXT = "The town lies on the river and has about ten thousand inhabitants. It is old. "
RUSSIAN = "Город расположен на берегу реки, и в нём живёт около миллиона человек. "
SMALL = ("--set", "vocabulary.size=200", "--set", "examples.copies=1")


@pytest.fixture
def dirty(folder: Path) -> Path:
    """The folder of text, with the other files that such folders contain."""
    texts = folder / "texts"
    for number in range(12):
        (texts / f"{number}.txt").write_text(f"{TEXT * 5}Number {number}.\n")
    (texts / "copy.txt").write_text(f"{TEXT * 5}Number 3.\n")
    (texts / "russian.txt").write_bytes((RUSSIAN * 5).encode("cp1251"))
    (texts / "wide.txt").write_bytes((TEXT * 2).encode("utf-16-le"))
    (texts / "a::b.txt").write_text(f"{TEXT}With colons.\n")
    (texts / "a[1].txt").write_text(f"{TEXT}With brackets.\n")
    (texts / "odd.txt").write_text(f"BZh begins a bzip2 file. {TEXT}\n")
    (texts / "blank.txt").write_text("\n\n")
    (texts / "photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (texts / "paper.pdf").write_bytes(b"%PDF-1.7\n" + bytes(100))
    return folder


@pytest.mark.slow
def test_prepare_ends_with_the_documents_read_kept_and_dropped(
    cloze: Callable[..., Any], dirty: Path
) -> None:
    done = cloze("prepare", "try.toml", *SMALL)
    assert done.returncode == 0, done.stderr
    *_, documents, dropped = done.stdout.splitlines()
    assert documents.startswith("documents: 22 read, 18 kept (")
    assert dropped == (
        "dropped: 2 binary_file, 1 duplicate, 1 empty; "
        "list them: cloze inspect try/tokens --dropped"
    )
    said = done.stderr
    assert "2 dropped as binary_file, the file is not text: convert it; for" in said
    assert "2 from files in another encoding than UTF-8" in said
    listed = cloze("inspect", "try/tokens", "--dropped", "binary_file").stdout
    assert "paper.pdf" in listed
    assert "photo.png" in listed


@pytest.mark.slow
def test_a_damaged_file_ends_the_stage_with_one_error_or_is_skipped_and_listed(
    cloze: Callable[..., Any], dirty: Path
) -> None:
    (dirty / "texts" / "cut.gz").write_bytes(gzip.compress(TEXT.encode())[:-9])
    done = cloze("tokens", "try.toml", *SMALL)
    assert done.returncode == 1
    assert done.stderr.count("the .gz data ends at byte") == 1
    assert done.stderr.splitlines()[-1].startswith("error: vocabulary: ")
    done = cloze("tokens", "try.toml", *SMALL, "--set", "corpus.on_bad_file=skip")
    assert done.returncode == 0, done.stderr
    assert "2 binary_file, 1 bad_file" in done.stdout.splitlines()[-1]
    assert "cut.gz" in cloze("inspect", "try/tokens", "--dropped", "bad_file").stdout


@pytest.mark.parametrize("name", ["a::b.txt", "a[1].txt", "odd.txt"])
def test_a_file_with_an_odd_name_or_start_is_read(
    cloze: Callable[..., Any], dirty: Path, name: str
) -> None:
    done = cloze("init", f"texts/{name}")
    assert done.returncode == 0, done.stderr
    assert "# 1 file, " in done.stdout


@pytest.mark.parametrize("command", ["init", "prepare"])
def test_a_link_to_its_own_folder_is_named(
    cloze: Callable[..., Any], folder: Path, command: str
) -> None:
    (folder / "texts" / "again").symlink_to(folder / "texts")
    done = cloze(command, "texts" if command == "init" else "try.toml")
    assert done.returncode == 2
    assert done.stderr.count("a link to one of its parent folders; remove the link") == 1


def test_options_unknown_to_every_engine_are_rejected(
    cloze: Callable[..., Any], folder: Path
) -> None:
    done = cloze("report", "try.toml", "--", "--nonsense=1")
    assert done.returncode == 2
    assert "--nonsense=1: report has no engine that takes options" in done.stderr


@pytest.mark.slow
def test_an_option_unknown_to_beam_is_rejected_before_anything_is_read(
    cloze: Callable[..., Any], dirty: Path
) -> None:
    done = cloze("vocabulary", "try.toml", *SMALL, "--", "--nonsense=1")
    assert done.returncode == 2
    assert done.stderr.count("--nonsense=1: not a Beam option") == 1
