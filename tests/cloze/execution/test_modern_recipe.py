"""configs/modern.toml, then modern_long.toml with 8,192 tokens."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.artifacts.store import Artifact
from cloze.flows.workspace import run_artifact, workspace
from cloze.model.encoder.operations.native_kernels import kernels
from tests.cloze.execution.test_text_folder import text
from tests.conftest import cloze

TINY = {
    "vocabulary.size": 300,
    "encoder.preset": "tiny",
    "encoder.num_hidden_layers": 2,
    "encoder.num_attention_heads": 1,
    "encoder.hidden_size": 32,
    "encoder.intermediate_size": 48,
    "corpus.heldout_share": 0.4,
    "examples.copies": 1,
    "pretrain.precision": "bf16",
    "evaluate.examples": 4,
}
SHORT = {
    "pretrain.steps": 8,
    "pretrain.batch_size": 6,
    "pretrain.first_batch_size": 2,
    "pretrain.batch_growth_steps": 4,
    "pretrain.optimizer.warmup_steps": 2,
}
LONG = {"pretrain.steps": 2, "pretrain.batch_size": 2, "pretrain.optimizer.warmup_steps": 1}


def run(verb: str, config: str, runs: Path, settings: dict[str, Any], *, name: str = "") -> str:
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    done = cloze(
        *(verb, f"configs/{config}.toml", *overrides, "--workspace", str(runs)),
        *(("--without-prefect",) if verb == "run" else ()),
    )
    assert done.returncode == 0, done.stderr
    return (runs / (name or config) / "jobs" / "pretrain" / "log").read_text()


def made(workspace_path: Path, config: str, stage: str) -> Artifact:
    return run_artifact(workspace(str(workspace_path)), config, stage=stage)


@pytest.mark.slow
def test_both_phases_train_fine_tune_and_embed_documents_of_8192_tokens(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a in ("ba", "do", "ki", "lu", "me") for b in ("ran", "sel", "tip")]
    documents = [" ".join(rng.choice(words, 9000)) + "." for _ in range(6)]
    for number, written in enumerate(documents):
        (texts / f"{number}.txt").write_text(written)
    for number in range(40):  # several of them fill an example
        short = [" ".join(rng.choice(words, 12)) + "." for _ in range(rng.integers(1, 20))]
        (texts / f"short-{number}.txt").write_text(" ".join(short))
    labelled = [json.dumps({"text_a": d, "label": str(n % 2)}) for n, d in enumerate(documents)]
    (tmp_path / "train.jsonl").write_text("\n".join(labelled))
    runs, common = tmp_path / "runs", {"corpus.sources.0.path": str(texts), **TINY}

    log = run("pretrain", "modern", runs, {**common, **SHORT})
    local = "kernel" if kernels() else "blocks"
    assert f"local_attention={local} reach=64 local_layers=1" in log
    splits = made(runs, "modern", "examples").manifest.statistics["splits"]
    counts = {split: lengths["1024"] for split, lengths in splits.items()}
    shares = {split: found["masked"] / found["tokens"] for split, found in counts.items()}
    assert shares == pytest.approx({"train": 0.3, "heldout": 0.15}, abs=0.005)
    assert counts["train"]["mean_length"] > 900
    looked = cloze("inspect", "modern/examples", "--rows", "100", "--workspace", str(runs))
    assert re.search(r"^— [2-9] documents, 10\d\d tokens", looked.stdout, re.MULTILINE)
    traced = cloze("trace", "modern", "--row", "1", "--workspace", str(runs))
    assert traced.returncode == 0, traced.stderr

    task = f"{{name='kinds',kind='classification',train='{tmp_path}/train.jsonl',dev_share=0.4"
    task += ",max_seq_length=8192,batch_size=2,epochs=1}"
    tuning = {"finetune.tasks": f"[{task}]", "finetune.seeds": "[0]"}
    run("run", "modern_long", runs, {**common, **LONG, **tuning})
    record = json.loads((runs / "modern_long" / "run.json").read_text())
    assert record["stages"]["tokens"]["state"] == "reused"
    config = made(runs, "modern_long", "pretrain").read_json("config.json")
    assert config["max_position_embeddings"] == 8192
    assert config["rope_parameters"]["full_attention"]["rope_theta"] == 160_000.0

    (tmp_path / "long.txt").write_text(" ".join(documents[0].split()[:8190]) + "\n")
    done = cloze(
        *("embed", "modern_long", str(tmp_path / "long.txt"), "--workspace", str(runs)),
        *("--output", str(tmp_path / "vectors.npy")),
    )
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "vectors.npy").shape == (1, 32)


@pytest.mark.slow
@pytest.mark.long
def test_continuing_the_stable_phase_equals_the_longer_run_bit_for_bit(
    tmp_path: Path,
) -> None:
    texts, runs = tmp_path / "texts", tmp_path / "runs"
    texts.mkdir()
    for number in range(30):
        (texts / f"{number}.txt").write_text(text(number, 40))
    settings = {"corpus.sources.0.path": str(texts), **TINY, **SHORT}
    decaying = {**settings, "pretrain.steps": 12, "pretrain.optimizer.decay_share": 0.3}
    stable = {"name": "stable", "pretrain.optimizer.schedule": "constant"}
    run("pretrain", "modern", runs, {**settings, **stable}, name="stable")
    further = {"name": "further", "pretrain.continue_from": "stable"}
    log = run("pretrain", "modern", runs, {**decaying, **further}, name="further")
    assert "continuing after step 8" in log
    run("pretrain", "modern", runs, {**decaying, "name": "whole"}, name="whole")
    further_made, whole = (made(runs, name, "pretrain") for name in ("further", "whole"))
    assert further_made.manifest.inputs["continued"] == made(runs, "stable", "pretrain").digest
    weights = [each.read_bytes("model.safetensors") for each in (further_made, whole)]
    assert weights[0] == weights[1]
