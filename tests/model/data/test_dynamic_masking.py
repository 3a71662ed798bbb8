"""Dynamic masking follows the reference's rule, with new masks every epoch, for any batches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from artifacts.errors import UsageError
from artifacts.store import Artifact
from model.data.dynamic_masking import DynamicMasking
from model.data.shards import Examples, ExampleShards, select
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
