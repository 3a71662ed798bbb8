"""A modern encoder with a byte-level tokenizer: inference, adaptation, fine-tuning, export."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
)

from cloze.artifacts.config import read_toml
from cloze.artifacts.tokenizer import CLS, MASK, PAD, SEP, UNK
from cloze.flows.workspace import run_artifact, workspace
from tests.byte_level import TEXT, byte_level

Cloze = Callable[..., Any]

QUESTIONS = ("The list of [MASK] is returned.", "a [MASK], a\t[MASK] 東京 🤗")
EASY = ("A copy isn't needed.", "(1234) numbers")


@pytest.fixture
def encoder(folder: Path) -> Path:
    """A random ModernBERT with such a tokenizer, saved by transformers."""
    directory = folder / "theirs"
    directory.mkdir()
    ours = byte_level(directory)
    names = {"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK}
    PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(directory)
    torch.manual_seed(0)
    ids = {f"{name}_token_id": ours.ids[token] for name, token in names.items()}
    config = ModernBertConfig(
        vocab_size=ours.size,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        local_attention=8,
        max_position_embeddings=64,
        initializer_range=0.3,
        **{name: ids[name] for name in ("pad_token_id", "cls_token_id", "sep_token_id")},
        bos_token_id=ours.cls_id,
        eos_token_id=ours.sep_id,
    )
    ModernBertForMaskedLM(config).eval().save_pretrained(directory)
    return directory


def answer(cloze: Cloze, *arguments: str) -> Any:
    done = cloze(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_once_imported_it_fills_masks_and_embeds_like_transformers(
    cloze: Cloze, encoder: Path, tmp_path: Path
) -> None:
    imported = cloze("import", "theirs")
    assert imported.returncode == 0, imported.stderr
    name = imported.stdout.split()[-1]
    exported = cloze("export", name, "again")
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "again/tokenizer.json").read_text() == (
        encoder / "tokenizer.json"
    ).read_text()
    for folder in (encoder, tmp_path / "again"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
        answers = answer(cloze, "fill-mask", name, *QUESTIONS, "--top-k", "3")
        for question, found in zip(QUESTIONS, answers, strict=True):
            inputs = tokenizer(question, return_tensors="pt")
            with torch.inference_mode():
                logits = model(**inputs).logits[0]
            asked = logits[inputs["input_ids"][0] == tokenizer.mask_token_id].softmax(-1)
            best = asked.topk(3)
            ids = [[fill["token_id"] for fill in fills] for fills in found["masks"]]
            given = [[fill["probability"] for fill in fills] for fills in found["masks"]]
            assert ids == best.indices.tolist()
            np.testing.assert_allclose(given, best.values.numpy(), rtol=1e-4)
        inputs = tokenizer(EASY[0], return_tensors="pt")
        with torch.inference_mode():
            states = model.model(**inputs).last_hidden_state[0]
        (vector,) = answer(cloze, "embed", name, EASY[0])["vectors"]
        np.testing.assert_allclose(vector, states.mean(0).numpy(), atol=1e-5)


@pytest.mark.slow
def test_adapting_it_to_a_folder_keeps_its_tokenizer(
    cloze: Cloze, encoder: Path, tmp_path: Path
) -> None:
    for number in range(30):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"{TEXT} Number {number}.\n" * 4)
    done = cloze("adapt", "theirs", "texts", "--steps", "20", "--without-prefect")
    assert done.returncode == 0, done.stderr
    assert "this tokenizer has no compiled implementation" in done.stderr
    assert read_toml(tmp_path / "texts.toml")["encoder"]["family"] == "modern"
    summary = json.loads((tmp_path / "runs" / "texts" / "summary.json").read_text())
    (heldout,) = summary["language_model"]
    assert heldout["mlm_loss"] < heldout["initial_mlm_loss"]
    shown = cloze("inspect", "texts/tokens")
    assert "A new array of given shape and type is returned" in shown.stdout, shown.stdout
    assert cloze("export", "texts", "more").returncode == 0
    given = AutoTokenizer.from_pretrained(encoder)
    adapted = AutoTokenizer.from_pretrained(tmp_path / "more")
    for text in (TEXT, *QUESTIONS):
        assert adapted(text)["input_ids"] == given(text)["input_ids"]
    AutoModelForMaskedLM.from_pretrained(tmp_path / "more")
    whole = ("--set", "name=whole", "--set", "examples.masking.unit=whole_word")
    assert cloze("prepare", "texts.toml", *whole, "--set", "pretrain.masks=static").returncode == 0
    examples = run_artifact(workspace("runs"), "whole", stage="examples")
    (counts,) = examples.manifest.statistics["splits"]["train"].values()
    assert counts["masked"] / counts["tokens"] == pytest.approx(0.15, abs=0.02)


TASKS = """
name = "tuned"

[finetune]
encoder = "theirs"
seeds = [1]
precision = "fp32"
tasks = [
    { name = "tags", kind = "tagging", train = "tags.jsonl", dev = "tags.jsonl", epochs = 2 },
    { name = "spans", kind = "span", train = "spans.jsonl", dev = "spans.jsonl", epochs = 2 },
]
"""
"""Sequences of at most 64 tokens, the encoder's positions."""


@pytest.mark.slow
def test_fine_tuned_it_answers_in_the_texts_own_characters(
    cloze: Cloze, encoder: Path, tmp_path: Path
) -> None:
    words = ["The", "list", "(", "of", "東京", "names", ")", "isn't", "naïve", "🤗"]
    tags = [{"words": words, "tags": ["X" if w.isalpha() else "O" for w in words]}] * 8
    context = "The list of names, and naïve café 東京 🤗."
    answers = ("names", "naïve café", "東京", "🤗")
    spans = [
        {
            "id": str(number),
            "question": "What is it?",
            "context": context,
            "answers": {"text": [text], "answer_start": [context.index(text)]},
        }
        for number, text in enumerate(answers)
    ]
    for name, rows in (("tags", tags), ("spans", spans)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tasks = TASKS.replace("epochs = 2", "epochs = 2, max_seq_length = 64, batch_size = 4")
    (tmp_path / "tuned.toml").write_text(tasks)
    done = cloze("run", "tuned.toml", "--without-prefect")
    assert done.returncode == 0, done.stderr
    (found,) = answer(cloze, "predict", "tuned", "--task", "tags", json.dumps({"words": words}))
    assert len(found["prediction"]) == len(words)
    row = {"question": "What is it?", "context": context}
    (found,) = answer(cloze, "predict", "tuned", "--task", "spans", json.dumps(row))
    said = found["text"]
    assert said in context and said == said.strip()
