"""Lists of sentence-transformers' modules: `embed`, `search` and exports give its own vectors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloze as api
from cloze.artifacts.tokenizer import SPECIAL_TOKENS, WordPieceTokenizer
from tests.cloze.inference.test_sentence_modules import write_modules
from tests.cloze.tiny_model import TOKENIZER, write_model

Cloze = Callable[..., Any]

TEXTS = ["the list of names", "a", "", "names of the list of names a b " * 4, "The LIST"]
PROMPTS = {"query": "a b ", "document": "the ", "names": "names of "}


def modules(kind: str) -> Any:
    """The modules after the encoder and the options of the model, as sentence-transformers' own."""
    import torch
    from sentence_transformers.base.modules import Dense, Normalize
    from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling

    torch.manual_seed(1)
    relu = torch.nn.ReLU()
    layer_norm = LayerNorm(8)
    torch.nn.init.normal_(layer_norm.norm.weight)
    mean = Pooling(8, "mean")
    found: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "mean": ([mean], {}),
        "cls, normalized": ([Pooling(8, "cls"), Normalize()], {}),
        "max": ([Pooling(8, "max")], {}),
        "mean by square root": ([Pooling(8, "mean_sqrt_len_tokens")], {}),
        "weighted mean": ([Pooling(8, "weightedmean")], {}),
        "last token": ([Pooling(8, "lasttoken")], {}),
        "cls, max and mean": ([Pooling(8, ("cls", "max", "mean")), Normalize()], {}),
        "dense": ([mean, Dense(8, 5)], {}),
        "dense without bias, normalized": (
            [mean, Dense(8, 12, bias=False, activation_function=relu), Dropout(), Normalize()],
            {},
        ),
        "layer norm and two dense": (
            [mean, layer_norm, Dense(8, 8, activation_function=torch.nn.Identity()), Dense(8, 4)],
            {},
        ),
        "prompts": ([mean, Normalize()], {"prompts": PROMPTS}),
        "default prompt": ([mean], {"prompts": PROMPTS, "default_prompt_name": "names"}),
        "short": ([mean], {"limit": 5}),
        "lowercased": ([mean], {"do_lower_case": True}),
        "dot product": ([mean], {"similarity_fn_name": "dot"}),
    }
    return found[kind]


KINDS = (
    *("mean", "cls, normalized", "max", "mean by square root", "weighted mean", "last token"),
    *("cls, max and mean", "dense", "dense without bias, normalized", "layer norm and two dense"),
    *("prompts", "default prompt", "short", "lowercased", "dot product"),
)


def build(folder: Path, kind: str) -> Any:
    """A model that sentence-transformers has saved, and the model itself."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    after, options = modules(kind)
    base = folder / f"encoder of {kind}"
    write_model(base)
    if options.pop("do_lower_case", False):
        (base / "vocab.txt").unlink()
        words = (*SPECIAL_TOKENS, "the", "list", "of", "names", "a", "b")
        cased = WordPieceTokenizer(words, lowercase=False)
        (base / "tokenizer.json").write_text(cased.tokenizer_json())
        limits: dict[str, Any] = {"do_lower_case": True}
    else:
        (base / "tokenizer.json").write_text(TOKENIZER.tokenizer_json())
        limits = {}
    first = Transformer(str(base), max_seq_length=options.pop("limit", 16), **limits)
    model = SentenceTransformer(modules=[first, *after], device="cpu", **options)
    model.save(str(folder / kind))
    if limits:  # it would save the normaliser with which it lowercases
        shutil.copy(base / "tokenizer.json", folder / kind)
        rewrite("tokenizer_config.json", do_lower_case=False)(folder / kind)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_every_accepted_list_are_those_of_sentence_transformers(
    cloze: Cloze, folder: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    from sentence_transformers import SentenceTransformer

    build(folder, kind)
    model = SentenceTransformer(str(folder / kind), device="cpu")
    theirs = model.encode(TEXTS)
    capfd.readouterr()  # what sentence-transformers has printed
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    done = cloze("embed", kind, "texts.txt", "--json")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout)["vectors"], theirs, atol=1e-5)
    assert f"{2 if kind == 'short' else 1} texts of more than" in done.stderr

    assert cloze("import", kind).returncode == 0
    assert cloze("export", kind, "again").returncode == 0
    again = SentenceTransformer("again", device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), theirs, atol=1e-5)
    np.testing.assert_allclose(api.load("again", precision="fp32").embed(TEXTS), theirs, atol=1e-5)

    ours = api.load(kind, precision="fp32")
    for prompt, encode in (("query", model.encode_query), ("document", model.encode_document)):
        asked = np.stack(list(ours.sentence_vectors(TEXTS, prompt=prompt)))
        expected = encode(TEXTS, normalize_embeddings=True)
        np.testing.assert_allclose(asked, expected, atol=1e-5)


@pytest.mark.slow
def test_a_prompt_can_be_named_and_search_puts_its_own_before_questions_and_passages(
    cloze: Cloze, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    model = build(folder, "prompts")
    capfd.readouterr()
    done = cloze("embed", "prompts", "a list", "--prompt", "names", "--json")
    (vector,) = json.loads(done.stdout)["vectors"]
    np.testing.assert_allclose(vector, model.encode("names of a list"), atol=1e-5)
    assert "no prompt 'other'" in cloze("embed", "prompts", "a", "--prompt", "other").stderr
    (folder / "documents").mkdir()
    (folder / "documents" / "one.txt").write_text("the list of names\n")
    found = json.loads(
        cloze("search", "prompts", "documents", "a list", "--vectors", "--json").stdout
    )
    question, passage = model.encode(["a b a list", "the the list of names"])
    assert found[0]["passages"][0]["score"] == pytest.approx(float(question @ passage), abs=1e-5)


@pytest.mark.slow
def test_vectors_to_be_compared_otherwise_than_by_cosine_are_not_searched(
    cloze: Cloze, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    build(folder, "dot product")
    capfd.readouterr()
    done = cloze("search", "dot product", "texts", "a list")
    assert done.returncode == 2
    assert "compared by dot, and search compares by cosine" in done.stderr


@pytest.fixture
def refused(cloze: Cloze, folder: Path) -> Callable[..., str]:
    """Embed with a model whose files have been changed; return the refusal."""

    def call(change: Callable[[Path], object], *command: str) -> str:
        shutil.rmtree(folder / "model", ignore_errors=True)
        write_model(folder / "model")
        write_modules(folder / "model", kinds=("Transformer", "Pooling", "Normalize"), limit=9)
        change(folder / "model")
        done = cloze(*(command or ("embed", "model", "a")))
        assert done.returncode == 2, done.stderr
        return str(done.stderr)

    return call


def rewrite(name: str, **fields: object) -> Callable[[Path], object]:
    def change(model: Path) -> None:
        path = model / name
        table = json.loads(path.read_text()) if path.exists() else {}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**table, **fields}))

    return change


def kinds(*names: str) -> Callable[[Path], object]:
    def change(model: Path) -> None:
        listed = [
            {"path": f"{n}_{kind}" if n else "", "type": f"x.{kind}"}
            for n, kind in enumerate(names)
        ]
        (model / "modules.json").write_text(json.dumps(listed))
        dense = {"in_features": 8, "out_features": 8}
        if "Dense" in names:
            rewrite("2_Dense/config.json", **dense)(model)
            (model / "2_Dense" / "pytorch_model.bin").write_bytes(b"pickle")

    return change


REFUSED = {
    "another module": (
        kinds("Transformer", "Pooling", "WordWeights"),
        "Transformer, Pooling, WordWeights; expected Transformer, Pooling and any of Dense",
    ),
    "no pooling": (kinds("Transformer"), "expected Transformer, Pooling"),
    "another pooling": (
        rewrite("1_Pooling/config.json", pooling_mode="attention"),
        "pooling_mode 'attention', expected some of cls, max, mean",
    ),
    "a pickled dense layer": (
        kinds("Transformer", "Pooling", "Dense"),
        "no model.safetensors; a pytorch_model.bin can execute code",
    ),
    "pooling without the prompt": (
        lambda model: [
            rewrite("1_Pooling/config.json", include_prompt=False)(model),
            rewrite("config_sentence_transformers.json", prompts={"query": "a "})(model),
        ],
        "include_prompt = false is not supported with prompts",
    ),
    "a default prompt that is none": (
        rewrite("config_sentence_transformers.json", default_prompt_name="query"),
        "default_prompt_name 'query' is none of the prompts (none)",
    ),
    "an unknown setting": (
        rewrite("config_sentence_transformers.json", truncate_dim=4),
        "truncate_dim is 4, which is not supported",
    ),
    "another task of the encoder": (
        rewrite("sentence_bert_config.json", transformer_task="fill-mask"),
        "transformer_task is 'fill-mask'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_lists_are_refused_with_the_file_and_a_remedy(
    refused: Callable[..., str], case: str
) -> None:
    change, message = REFUSED[case]
    said = refused(change)
    assert message in said
    if case in ("another module", "no pooling", "an unknown setting"):
        assert "to use the encoder alone" in said


def test_cls_pooling_and_normalisation_are_those_of_the_list_by_hand(
    cloze: Cloze, folder: Path
) -> None:
    write_model(folder / "model")
    write_modules(folder / "model", kinds=("Transformer", "Pooling", "Normalize"), limit=4)
    (vector,) = json.loads(cloze("embed", "model", "a b a", "--json").stdout)["vectors"]
    states = api.load("model", precision="fp32").embed("a b", pooling="cls")[0]  # [CLS] a b [SEP]
    np.testing.assert_allclose(vector, states / np.linalg.norm(states), atol=1e-6)
    options = ("--pooling", "mean", "--json")
    (mean,) = json.loads(cloze("embed", "model", "a b a", *options).stdout)["vectors"]
    assert np.linalg.norm(mean) != pytest.approx(1.0, abs=1e-3)


RETRIEVAL = """name = "search"
[finetune]
encoder = "max"
[[finetune.tasks]]
name = "questions"
kind = "retrieval"
train = "questions.csv"
max_seq_length = 16
"""


@pytest.mark.slow
def test_lists_that_no_graph_or_training_here_computes_are_refused_there(
    cloze: Cloze, folder: Path
) -> None:
    pytest.importorskip("sentence_transformers", reason="pip install sentence-transformers")
    build(folder, "max")
    exported = cloze("export", "max", "graph", "--onnx")
    assert exported.returncode == 2, exported.stderr
    assert "another pooling than mean or cls" in exported.stderr
    rows = "".join(f"the list {n},a name {n}\n" for n in range(30))
    (folder / "questions.csv").write_text(f"query,passage\n{rows}")
    (folder / "search.toml").write_text(RETRIEVAL)
    trained = cloze("run", "search.toml", "--without-prefect")
    assert trained.returncode != 0
    assert "another pooling than mean or cls" in trained.stderr
