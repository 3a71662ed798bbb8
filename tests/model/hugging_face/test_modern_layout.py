"""ModernBERT in Hugging Face's layout: equal logits, equal bytes, errors that name the field."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertModel,
)

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.store import Store
from cloze.init.initial_model import shape_table
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, pack_sequences
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.inference.export import export_encoder, import_encoder
from cloze.model.inference.load import load_model
from tests.model.hugging_face.tiny_encoder import TOKENIZER

IDS = [2, *[5, 6, 7, 8, 9, 10, 11] * 6, 3]


def theirs() -> ModernBertForMaskedLM:
    """A random model of transformers whose sizes and RoPE bases differ from the defaults."""
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=TOKENIZER.size,
        hidden_size=30,
        num_hidden_layers=5,
        num_attention_heads=3,
        intermediate_size=17,
        local_attention=10,
        max_position_embeddings=64,
        initializer_range=0.3,
        global_attn_every_n_layers=2,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 70_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 900.0},
        },
        **{f"{name}_token_id": number for number, name in enumerate(("pad", "unk"))},
        **{f"{name}_token_id": 2 for name in ("cls", "bos")},
        **{f"{name}_token_id": 3 for name in ("sep", "eos")},
    )
    model = ModernBertForMaskedLM(config).eval()
    torch.nn.init.normal_(model.decoder.bias)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder saved by transformers, with our tokenizer."""
    directory = tmp_path / "theirs"
    theirs().save_pretrained(directory)
    (directory / "tokenizer.json").write_text(TOKENIZER.tokenizer_json())
    return directory


def change_config(directory: Path, **changes: JsonValue) -> None:
    path = directory / "config.json"
    table = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in table.items() if v != "absent"}))


def logits(directory: Path) -> torch.Tensor:
    model = load_model(directory, device="cpu").module
    batch = pack_sequences([Example(IDS)])
    with torch.inference_mode():
        return model.masked_lm_logits(model.encoder(batch), torch.arange(batch.tokens))


def test_an_imported_model_and_its_export_give_the_logits_of_transformers(
    folder: Path, tmp_path: Path
) -> None:
    with torch.inference_mode():
        expected = theirs()(torch.tensor([IDS])).logits[0]
        tolerance = 1e-5 * expected.abs().max()
        assert (logits(folder) - expected).abs().max() < tolerance
        export_encoder(read_encoder_files(folder), tmp_path / "out")
        again = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", local_files_only=True)
        assert isinstance(again, ModernBertForMaskedLM)
        assert (again(torch.tensor([IDS])).logits[0] - expected).abs().max() < tolerance


def test_export_import_export_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    folders = [folder]
    for name in ("once", "twice"):
        artifact = import_encoder(folders[-1], Store(str(tmp_path / f"store-{name}")))
        export_encoder(read_encoder_files(artifact.directory), tmp_path / name)
        folders.append(tmp_path / name)
    _, once, twice = ({p.name: p.read_bytes() for p in one.iterdir()} for one in folders)
    assert once == twice
    given, back = (load_file(one / "model.safetensors") for one in (folder, folders[-1]))
    assert all(torch.equal(back[name], given[name]) for name in back)
    assert set(given) - set(back) <= {"decoder.weight"}


def test_fields_of_version_4_say_the_same(folder: Path) -> None:
    expected = logits(folder)
    change_config(
        folder,
        rope_parameters="absent",
        layer_types="absent",
        global_attn_every_n_layers=2,
        global_rope_theta=70_000.0,
        local_rope_theta=900.0,
    )
    assert torch.equal(logits(folder), expected)


def test_an_encoder_without_heads_gives_vectors_and_fills_no_masks(folder: Path) -> None:
    bare = ModernBertModel.from_pretrained(folder).eval()
    bare.save_pretrained(folder)
    model = load_model(folder, device="cpu")
    assert (model.has_heads, model.has_pooler) == (False, False)
    with torch.inference_mode():
        expected = bare(torch.tensor([IDS])).last_hidden_state[0]
        found = model.module.encoder(pack_sequences([Example(IDS)]))
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def without_a_layer(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "layers.4.mlp" not in name}
    save_file(kept, directory / "model.safetensors")


def untied(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors["decoder.weight"] = tensors["model.embeddings.tok_embeddings.weight"] + 1
    save_file(tensors, directory / "model.safetensors")


def plain_bpe(directory: Path) -> None:
    table = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": None}
    (directory / "tokenizer.json").write_text(json.dumps(table))


def more_words(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").write_text(TOKENIZER.vocab_txt() + "more\nand\nmore still\n")


def rotations(kind: str) -> dict[str, JsonValue]:
    return {"rope_parameters": {"full_attention": {"rope_type": kind, "rope_theta": 10_000.0}}}


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "rope": (
        lambda f: change_config(f, **rotations("yarn")),
        "rope_type 'yarn' for full_attention",
    ),
    "scaling": (
        lambda f: change_config(f, rope_scaling={"factor": 2}),
        "rope_scaling is {'factor'",
    ),
    "norm bias": (lambda f: change_config(f, norm_bias=True), "norm_bias is True, expected False"),
    "layers": (
        lambda f: change_config(f, layer_types=["sliding_attention"] * 5),
        "expected layer_types with full_attention in every n-th of 5 layers",
    ),
    "activation": (
        lambda f: change_config(f, hidden_activation="relu"),
        "hidden_activation 'relu'",
    ),
    "partial": (without_a_layer, "no tensor model.layers.4.mlp_norm.weight (3 missing)"),
    "untied": (untied, "decoder.weight differs from model.embeddings.tok_embeddings.weight"),
    "vocabulary": (more_words, "tok_embeddings.weight is [18, 30], config.json and tokenizer say"),
    "bpe": (plain_bpe, "no special token [PAD] or <pad>, [UNK] or <unk>"),
    "bert": (
        lambda f: change_config(f, model_type="bert", hidden_act="gelu", type_vocab_size=2),
        "do not belong together, or the weights are not Bert's",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_this_encoder_is_refused_in_one_line(name: str, folder: Path) -> None:
    spoil, said = REFUSED[name]
    spoil(folder)
    with pytest.raises(ClozeError) as refused:
        load_model(folder)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("sizes", [{"preset": "17M"}, {"preset": None, "num_hidden_layers": 5}])
def test_a_configuration_that_begins_from_a_modern_encoder_has_its_shape(
    sizes: dict[str, object],
) -> None:
    others = {"hidden_size": 30, "num_attention_heads": 3, "intermediate_size": 17}
    table = {"family": "modern", "global_rope_theta": 160_000.0, **sizes}
    shape = EncoderConfig.model_validate(table if sizes["preset"] else {**table, **others})
    again = EncoderConfig.model_validate({"preset": None, **shape_table(shape)})
    assert again.model_dump(exclude={"preset"}) == shape.model_dump(exclude={"preset"})
