"""Inputs by URL: https:// and file:// are equivalent to paths."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]


@pytest.fixture
def served(folder: Path) -> Iterator[str]:
    """The folder over HTTP, which fsspec treats like https://."""
    program = (sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1")
    with subprocess.Popen(
        [*program, "--directory", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout
            address = re.search(r"http://[\d.:]+", server.stdout.readline())
            assert address
            yield address[0]
        finally:
            server.terminate()


@pytest.mark.parametrize("kind", ["http", "file"])
def test_a_corpus_by_url_is_the_corpus_by_path(
    cloze: Cloze, folder: Path, served: str, kind: str
) -> None:
    lines = "".join(f"The document number {number} tells of lists.\n\n" for number in range(50))
    (folder / "texts" / "one.txt").write_text(lines)
    base = served if kind == "http" else f"file://{folder}"
    digests = []
    for path in ("texts/one.txt", f"{base}/texts/one.txt"):
        done = cloze(
            *("vocabulary", "try.toml", "--json"),
            *("--set", f"corpus.sources.0.path={path}", "--set", "vocabulary.size=64"),
        )
        assert done.returncode == 0, done.stderr
        digests.append(json.loads(done.stdout)["vocabulary"]["digest"])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("kind", ["http", "file"])
def test_a_labelled_table_by_url_is_fine_tuned_on(
    cloze: Cloze, folder: Path, served: str, kind: str
) -> None:
    write_model(folder / "encoder")
    (folder / "a.csv").write_text("text_a,label\nthe list,yes\na b,no\n")
    base = served if kind == "http" else f"file://{folder}"
    (folder / "a.toml").write_text(
        'name = "a"\n[finetune]\nencoder = "encoder"\nseeds = [0]\n[[finetune.tasks]]\nname = "a"\n'
        f'kind = "classification"\ntrain = "{base}/a.csv"\ndev = "{base}/a.csv"\n'
        "max_seq_length = 16\nepochs = 1\n"
    )
    done = cloze("finetune", "a.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["finetune"]["state"] == "made"
