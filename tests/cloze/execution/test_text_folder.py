"""`make demo CORPUS=folder` with few documents: something is held out, judged and shown."""

import json
from pathlib import Path

import pytest

from tests.conftest import cloze

TOWN = "The town of {0} lies on the {1} river and has about {2} thousand inhabitants."
MARKET = "Every {1} people from {0} come to the old market, where {2} traders sell their fruit."
NAMES = ("Adlen", "Borrow", "Carling", "Dunmore", "Elstow", "Farley", "Greenock", "Harwell")
TINY = {
    "vocabulary.size": 300,
    "encoder.hidden_size": 32,
    "encoder.intermediate_size": 64,
    "pretrain.steps": 4,
    "pretrain.evaluate_every": 2,
    "pretrain.optimizer.warmup_steps": 1,
    "evaluate.examples": 50,
}


def text(document: int, facts: int) -> str:
    """So many facts that no other document has, in two sentences each."""
    first = 200 + 50 * document
    drawn = ((NAMES[n % 8], NAMES[(n + document) % 8], first + n) for n in range(facts))
    return " ".join(f"{TOWN.format(*fact)} {MARKET.format(*fact)}" for fact in drawn)


@pytest.mark.slow
@pytest.mark.parametrize("documents", [1, 2, 25, 10_000])
def test_a_folder_of_any_number_of_documents_ends_with_held_out_figures_and_sentences(
    tmp_path: Path, documents: int
) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    texts = [text(number, 20 if documents <= 25 else 1) for number in range(documents)]
    for number, written in enumerate(texts):
        (folder / f"{number}.txt").write_text(written)
    settings = {"corpus.sources.0.path": str(folder), **TINY}
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    workspace = tmp_path / "runs"
    done = cloze(
        *("run", "configs/text_folder.toml", "--without-prefect", *overrides),
        *("--workspace", str(workspace)),
    )
    assert done.returncode == 0, done.stderr
    assert "MLM accuracy" in done.stdout
    assert "held-out documents" in done.stdout
    run = workspace / "text_folder"
    sentences = json.loads((run / "summary.json").read_text())["sentences"]
    assert sentences
    every = " ".join(texts).lower()
    for found in sentences:
        assert found["judged"]
        assert found["sentence"].replace("[MASK]", found["answers"][0]) in every
    page = (run / "report.html").read_text()
    assert "Masked sentences" in page
    assert "No text was held out" not in page
