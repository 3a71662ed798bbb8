"""`make demo CORPUS=folder` with few documents: some are held out, evaluated and reported."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.artifacts.config import override, read_toml
from tests.conftest import PROJECT, cloze
from tests.waiting import PATIENCE

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
    """This many facts unique to the document, in two sentences each."""
    first = 200 + 50 * document
    drawn = ((NAMES[n % 8], NAMES[(n + document) % 8], first + n) for n in range(facts))
    return " ".join(f"{TOWN.format(*fact)} {MARKET.format(*fact)}" for fact in drawn)


@pytest.mark.slow
@pytest.mark.parametrize(
    "documents",
    [1, 10_000, *(pytest.param(few, marks=pytest.mark.long) for few in (2, 25))],
)
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


@pytest.mark.slow
def test_variants_of_a_sweep_with_other_masks_are_judged_on_the_same_tokens(tmp_path: Path) -> None:
    folder, workspace = tmp_path / "texts", tmp_path / "runs"
    folder.mkdir()
    for number in range(25):
        (folder / f"{number}.txt").write_text(text(number, 20))
    settings = {"corpus.sources.0.path": str(folder), **TINY}
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    sweep = "examples.masking.masked_lm_prob=0.15,0.3"
    command = ["run", "configs/text_folder.toml", "--without-prefect", *overrides]
    command += ["--workspace", str(workspace), "--sweep", sweep]
    done = cloze(*command, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["notes"] == []
    few, many = (one["runs"][0] for one in answer["variants"])
    summaries = [
        json.loads((workspace / name / "summary.json").read_text()) for name in (few, many)
    ]
    judged = [one["language_model"][0] for one in summaries]
    assert judged[0]["masked_tokens"] == judged[1]["masked_tokens"] > 0
    # The untrained encoder has the same loss on them to the last digit; the trained ones differ.
    assert judged[0]["random_mlm_loss"] == judged[1]["random_mlm_loss"]
    assert judged[0]["mlm_loss"] != judged[1]["mlm_loss"]
    # Twice as many tokens were masked in training.
    shares = []
    for name in (few, many):
        record = json.loads((workspace / name / "run.json").read_text())
        key = record["stages"]["examples"]["key"]
        (manifest,) = workspace.glob(f"artifacts/examples/{key}/manifest.json")
        shares.append(json.loads(manifest.read_text())["config"]["examples"]["masking"])
    assert [one["masked_lm_prob"] for one in shares] == [0.15, 0.3]


def made_demo(environment: Path, *variables: str) -> list[str]:
    """The arguments with which `make demo` calls `cloze` in a fake environment."""
    programs = environment / "bin"
    programs.mkdir(parents=True)
    fake = f"#!{sys.executable}\nimport json, sys; print(json.dumps(sys.argv[1:]))\n"
    (programs / "cloze").write_text(fake)
    (programs / "cloze").chmod(0o755)
    (programs / "python").symlink_to(sys.executable)
    (environment / ".installed").touch()
    done = subprocess.run(
        ["make", "--silent", "demo", f"VENV={environment}", *variables],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    arguments: list[str] = json.loads(done.stdout)
    return arguments


needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


@needs_make
def test_make_demo_runs_the_configuration_with_the_steps_that_are_asked_for(tmp_path: Path) -> None:
    assert made_demo(tmp_path / "a") == ["run", "configs/demo.toml"]
    asked = ["run", "configs/demo.toml", "--set", "pretrain.steps=8000"]
    assert made_demo(tmp_path / "b", "STEPS=8000") == asked


@needs_make
@pytest.mark.parametrize("name", ["My Documents", "Bob's", "2024", '50 $ "a" day', "tomes/*.txt"])
def test_make_demo_takes_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    given = name.replace("$", "$$")  # make's escape for a dollar sign
    command, config, *settings = made_demo(tmp_path, f"CORPUS={given}", "STEPS=7")
    assert (command, config) == ("run", "configs/text_folder.toml")
    assert settings[::2] == ["--set", "--set"]
    table = override(read_toml(PROJECT / config), settings[1::2])
    assert table["corpus"]["sources"][0]["path"] == name  # type: ignore[index]
    assert table["pretrain"]["steps"] == 7  # type: ignore[index]
