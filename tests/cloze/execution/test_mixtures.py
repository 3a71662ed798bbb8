"""Mixtures from the command line: the plan, and sources of which nothing is left."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.config import read_toml

Cloze = Callable[..., Any]

CONFIG = """
name = "mixed"

[[corpus.sources]]
name = "towns"
reader = "jsonl"
path = "towns.jsonl"

[[corpus.sources]]
name = "notes"
reader = "jsonl"
path = "notes.jsonl"
share = 0.3

[cleaning]
min_words = 12

[vocabulary]
size = 200

[examples]
max_seq_lengths = [32]
copies = 1

[encoder]
preset = "tiny"

[pretrain]
steps = 20
batch_size = 8
phases = [{ max_seq_length = 32, share = 1.0 }]
"""
TOWN = "The town number {0} lies on a river. It has {0} hundred inhabitants and a mill."


@pytest.fixture
def mixed(folder: Path) -> Path:
    """Sixty documents of one source, and some of another."""
    (folder / "mixed.toml").write_text(CONFIG)
    write(folder / "towns.jsonl", [TOWN.format(number) for number in range(60)])
    return folder


def write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_the_plan_says_how_often_each_source_is_read(cloze: Cloze, mixed: Path) -> None:
    write(mixed / "notes.jsonl", [TOWN.format(f"{number} or so") for number in range(6)])
    done = cloze("plan", "mixed.toml", "--json")
    assert done.returncode == 0, done.stderr
    towns, notes = json.loads(done.stdout)["mixture"]
    assert (towns["name"], towns["shares"], notes["shares"]) == ("towns", [0.7], [0.3])
    assert notes["epochs"] > 4 > towns["epochs"]
    lines = cloze("plan", "mixed.toml").stdout.splitlines()
    (warning,) = [line for line in lines if "warning: source" in line]
    assert f"source notes is read {notes['epochs']:,.1f} times; beyond 4 epochs" in warning
    assert any(line.startswith("mixture, with tokens") for line in lines)


@pytest.mark.slow
def test_a_source_that_is_empty_after_cleaning_is_named_and_other_shares_prepare_nothing(
    cloze: Cloze, mixed: Path
) -> None:
    write(mixed / "notes.jsonl", ["Too short.", "Short, too."])
    done = cloze("pretrain", "mixed.toml")
    assert done.returncode == 2
    assert "takes 0.3 of the tokens from the source notes, of which cleaning" in done.stderr
    assert "change [cleaning], or remove its share" in done.stderr
    # The examples are there, and so the plan says it, too.
    planned = cloze("plan", "mixed.toml")
    assert planned.returncode == 2
    assert "the source notes" in planned.stderr
    without = cloze("pretrain", "mixed.toml", "--set", "corpus.sources.1.share=0.0001", "--json")
    assert without.returncode == 2
    text = (mixed / "mixed.toml").read_text().replace("share = 0.3\n", "")
    (mixed / "mixed.toml").write_text(text)
    done = cloze("pretrain", "mixed.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert "tokens: running" not in done.stderr
    assert "examples: running" not in done.stderr
    done = cloze("documents", "mixed", "out", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    (towns,) = read_toml("out/corpus.toml")["corpus"]["sources"]  # type: ignore[call-overload,index]
    assert towns["name"] == "towns"
