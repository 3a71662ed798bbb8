"""Invalid configurations and files of modern encoders: one error line each."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.cloze.test_command import error_line
from tests.cloze.tiny_model import MODERN, TOKENIZER, write_model

Cloze = Callable[..., Any]

SHAPE = (
    "encoder={family='modern',num_hidden_layers=2,hidden_size=8,num_attention_heads=2,"
    "intermediate_size=16,max_position_embeddings=16}"
)
PHASES = "pretrain.phases=[{max_seq_length=16,share=1.0}]"
COMMON = (
    *("--set", "vocabulary.path=encoder/vocab.txt", "--set", "pretrain.init=encoder"),
    *("--set", "examples.second_segment=none", "--set", "pretrain.next_sentence_loss=false"),
)


@pytest.fixture
def encoder(folder: Path) -> Path:
    """A tiny modern encoder from elsewhere, without our part of config.json."""
    write_model(folder / "encoder", encoder=MODERN)
    path = folder / "encoder" / "config.json"
    table = json.loads(path.read_text())
    del table["cloze"]
    path.write_text(json.dumps(table))
    return folder / "encoder"


def more_words(encoder: Path) -> None:
    (encoder / "vocab.txt").write_text(TOKENIZER.vocab_txt() + "more\nwords\nstill\n")


def another_rope(encoder: Path) -> None:
    table = json.loads((encoder / "config.json").read_text())
    table["rope_parameters"]["full_attention"]["rope_type"] = "yarn"
    (encoder / "config.json").write_text(json.dumps(table))


def without_a_layer(encoder: Path) -> None:
    tensors = load_file(encoder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "layers.1." not in name}
    save_file(kept, encoder / "model.safetensors")


def cut_short(encoder: Path) -> None:
    path = encoder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (more_words, "tok_embeddings.weight is [11, 8], config.json and tokenizer say [14, 8]"),
        (another_rope, "rope_type 'yarn' for full_attention; only 'default' can be read"),
        (without_a_layer, "no tensor model.layers.1.attn_norm.weight"),
        (cut_short, "not a safetensors file"),
    ],
    ids=["vocabulary", "rope", "partial", "cut short"],
)
@pytest.mark.parametrize("command", [("import",), ("fill-mask", "a [MASK]"), ("adapt", "texts")])
def test_an_incomplete_modern_encoder_is_rejected(
    cloze: Cloze, encoder: Path, spoil: Callable[[Path], None], said: str, command: tuple[str, ...]
) -> None:
    spoil(encoder)
    done = cloze(command[0], "encoder", *command[1:])
    assert said in error_line(done.stderr)
    assert done.returncode in (1, 2)  # contradictory files, or a usage error


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("embed", "encoder", "a b " * 20), "text 1: 42 tokens, the encoder has 16 positions"),
        (("fill-mask", "encoder", "a b " * 20 + "[MASK]"), "43 tokens, the encoder has 16 posi"),
        (("plan", "try.toml", *COMMON, "--set", SHAPE), "phases"),
    ],
    ids=["embed", "fill-mask", "pretrain"],
)
def test_a_sequence_longer_than_the_encoders_is_rejected(
    cloze: Cloze, encoder: Path, command: tuple[str, ...], said: str
) -> None:
    done = cloze(*command)
    assert said in error_line(done.stderr)
    assert done.returncode == 2


@pytest.mark.parametrize("verb", ["plan", "pretrain"])
def test_a_family_that_differs_from_the_initial_encoders_is_rejected(
    cloze: Cloze, encoder: Path, verb: str
) -> None:
    bert = SHAPE.replace("modern", "bert").replace("{", "{preset='tiny',", 1)
    sizes = ("--set", "examples.max_seq_lengths=[16]", "--set", PHASES, "--set", bert)
    done = cloze(verb, "try.toml", *COMMON, *sizes)
    assert "another shape (family: it has modern, wanted bert)" in error_line(done.stderr)
    assert done.returncode == 2
    assert not (encoder.parent / "runs" / "artifacts").exists()
