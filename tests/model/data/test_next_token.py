"""Language model targets: every token once, from one side, with nothing replaced."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from model.data.batch import NO_NEXT_SENTENCE
from model.data.micro_batches import pack_examples
from model.data.next_token import NextToken
from model.data.shards import Examples
from model.encoder.pretraining import PretrainingModel
from tests.model.encoder.encoder_builders import random_model, small_config

CLS, SEP, MASK = 2, 3, 4

TWO = Examples(
    lengths=np.array([4, 5]),
    masked_counts=np.array([1, 1]),
    next_sentence_labels=np.array([0, 1]),
    document_counts=np.array([1, 1]),
    document_lengths=np.array([4, 5]),
    input_ids=np.array([CLS, 11, MASK, SEP, CLS, MASK, 22, 23, SEP]),
    segment_a_lengths=np.array([4, 5]),
    masked_lm_positions=np.array([2, 1]),
    masked_lm_ids=np.array([12, 21]),
)
"""Two examples with one masked token each: 12 and 21."""

TEXT = replace(TWO, input_ids=np.array([CLS, 11, 12, SEP, CLS, 21, 22, 23, SEP]))


def test_left_to_right_every_token_but_the_first_is_predicted_by_the_one_before() -> None:
    asked = NextToken.of("left_to_right")(TEXT)
    assert asked.masked_lm_ids.tolist() == [11, 12, SEP, 21, 22, 23, SEP]
    assert asked.masked_lm_positions.tolist() == [0, 1, 2, 0, 1, 2, 3]
    assert asked.masked_counts.tolist() == [3, 4]
    assert set(asked.next_sentence_labels) == {NO_NEXT_SENTENCE}


def test_right_to_left_every_token_but_the_last_is_predicted_by_the_one_after() -> None:
    asked = NextToken.of("right_to_left")(TEXT)
    assert asked.masked_lm_ids.tolist() == [CLS, 11, 12, CLS, 21, 22, 23]
    assert asked.masked_lm_positions.tolist() == [1, 2, 3, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("direction", "ids"),
    [("left_to_right", [11, SEP, 21, SEP]), ("right_to_left", [CLS, 11, CLS, 21])],
)
def test_each_document_of_an_example_begins_anew(direction: str, ids: list[int]) -> None:
    whole = Examples(
        lengths=np.array([6]),
        masked_counts=np.array([0]),
        next_sentence_labels=np.array([NO_NEXT_SENTENCE]),
        document_counts=np.array([2]),
        document_lengths=np.array([3, 3]),
        input_ids=np.array([CLS, 11, SEP, CLS, 21, SEP]),
        segment_a_lengths=np.array([6]),
        masked_lm_positions=np.empty(0, np.int64),
        masked_lm_ids=np.empty(0, np.int64),
    )
    asked = NextToken.of(direction)(whole)
    assert asked.masked_lm_ids.tolist() == ids
    assert asked.masked_counts.tolist() == [4]


@pytest.mark.parametrize(
    ("direction", "places"), [("left_to_right", [1, 0]), ("right_to_left", [3, 2])]
)
def test_a_language_model_is_asked_for_the_masked_tokens_from_the_text_as_it_was(
    direction: str, places: list[int]
) -> None:
    asked = NextToken.of(direction).at_masked(TWO)
    assert asked.input_ids.tolist() == TEXT.input_ids.tolist()
    assert asked.masked_lm_ids.tolist() == [12, 21]
    assert asked.masked_lm_positions.tolist() == places


@pytest.mark.parametrize("layer_type", ["transformer", "lstm"])
@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
def test_no_prediction_depends_on_the_predicted_token_or_on_what_lies_behind_it(
    direction: str, layer_type: str
) -> None:
    model = random_model(small_config(attention_direction=direction, layer_type=layer_type)).eval()
    question = NextToken.of(direction)
    ids = np.array([CLS, 11, 12, 13, 14, SEP])
    one = replace(
        TEXT,
        lengths=np.array([6]),
        next_sentence_labels=np.array([0]),
        document_counts=np.array([1]),
        document_lengths=np.array([6]),
        segment_a_lengths=np.array([6]),
        input_ids=ids,
        masked_counts=np.array([0]),
    )
    asked = question(one)
    whole = _logits(model, one)
    for place, token in zip(asked.masked_lm_positions, asked.masked_lm_ids, strict=True):
        predicted = int(place) + question.step
        behind = ids.copy()
        unseen = slice(predicted, None) if question.step == 1 else slice(None, predicted + 1)
        behind[unseen] = 30
        assert ids[predicted] == token
        np.testing.assert_allclose(
            _logits(model, replace(one, input_ids=behind))[place], whole[place], atol=1e-5
        )
        seen = ids.copy()
        seen[place] = 30
        assert (
            np.abs(_logits(model, replace(one, input_ids=seen))[place] - whole[place]).max() > 1e-4
        )


def _logits(model: PretrainingModel, examples: Examples) -> np.ndarray:
    batch = pack_examples(
        replace(examples, masked_lm_positions=np.array([], int), masked_lm_ids=np.array([], int))
    )
    hidden = model.encoder(batch)
    places = np.arange(len(hidden))
    return model.masked_lm_logits(hidden, torch.from_numpy(places)).detach().numpy()
