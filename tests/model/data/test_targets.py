"""Dynamic masks follow the reference's rule, new every epoch, for any batches.

Language model targets: every token once, from one side, with nothing replaced.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.store import Artifact
from cloze.model.data.batch import NO_NEXT_SENTENCE
from cloze.model.data.micro_batches import pack_examples
from cloze.model.data.shards import Examples, ExampleShards, select
from cloze.model.data.targets import DynamicMasking, NextToken
from cloze.model.encoder.models import PretrainingModel
from tests.model.encoder.encoder_builders import random_model, small_config
from tests.model.training.training_fixtures import TOKENIZER, examples_artifact

ROWS = 300


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"), rows=((ROWS,),))


@pytest.fixture(scope="module")
def static(artifact: Artifact) -> Examples:
    shards = ExampleShards(artifact, split="train", max_seq_length=32)
    return shards.gather(0, np.zeros(ROWS, np.int64), np.arange(ROWS))


@pytest.fixture(scope="module")
def rule(artifact: Artifact) -> DynamicMasking:
    return DynamicMasking.of(artifact, TOKENIZER)


def _places(examples: Examples) -> np.ndarray:
    starts = np.cumsum(examples.lengths) - examples.lengths
    return np.repeat(starts, examples.masked_counts) + examples.masked_lm_positions


def _text(examples: Examples) -> np.ndarray:
    text = examples.input_ids.copy()
    text[_places(examples)] = examples.masked_lm_ids
    return text


def test_nothing_but_the_masked_places_changes(static: Examples, rule: DynamicMasking) -> None:
    dynamic = rule(static, np.arange(ROWS), key=1)
    np.testing.assert_array_equal(_text(dynamic), _text(static))
    np.testing.assert_array_equal(dynamic.masked_counts, static.masked_counts)
    assert not {TOKENIZER.cls_id, TOKENIZER.sep_id} & set(dynamic.masked_lm_ids.tolist())


def test_eight_in_ten_are_masked_and_one_is_random(static: Examples, rule: DynamicMasking) -> None:
    dynamic = rule(static, np.arange(ROWS), key=1)
    seen = dynamic.input_ids[_places(dynamic)]
    kept = seen == dynamic.masked_lm_ids
    masked = seen == TOKENIZER.mask_id
    assert masked.mean() == pytest.approx(0.8, abs=0.05)
    assert (~kept & ~masked).mean() == pytest.approx(0.1, abs=0.04)


def test_every_epoch_has_masks_of_its_own(static: Examples, rule: DynamicMasking) -> None:
    first, second = (rule(static, np.arange(ROWS), key=key) for key in (1, 2))
    assert not np.array_equal(first.masked_lm_positions, second.masked_lm_positions)


def test_masks_do_not_depend_on_how_a_batch_is_divided(
    static: Examples, rule: DynamicMasking
) -> None:
    whole = rule(static, np.arange(ROWS), key=1)
    part = np.array([7, 3, 200])
    np.testing.assert_array_equal(
        rule(select(static, part), part, key=1).input_ids, select(whole, part).input_ids
    )


def test_the_draws_are_those_of_earlier_versions(static: Examples, rule: DynamicMasking) -> None:
    dynamic = rule(select(static, np.arange(2)), np.arange(2), key=5)
    assert dynamic.masked_lm_positions.tolist() == [3, 11, 12, 15, 1, 8, 13, 28]
    assert dynamic.input_ids[_places(dynamic)].tolist() == [4, 4, 4, 4, 4, 4, 136, 4]


def test_whole_word_masks_are_refused_with_the_remedy(artifact: Artifact, tmp_path: Path) -> None:
    manifest = artifact.manifest.model_copy(
        update={"config": {"examples": {"masking": {"unit": "whole_word"}}}}
    )
    with pytest.raises(UsageError, match=r'masks by whole_word.*use masks = "static"'):
        DynamicMasking.of(replace(artifact, manifest=manifest), TOKENIZER)


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
