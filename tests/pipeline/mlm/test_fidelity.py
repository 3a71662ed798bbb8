"""Our examples compared with those of Google's generator, on the same 7 MB of Wikipedia.

`reference_statistics.json` is the output of create_pretraining_data.py for `reference_sample.txt`.
Our random numbers differ, so one run of theirs must look like one of many runs of ours. Examples of
a document are correlated (a short target length makes hundreds of short examples), so the noise is
two to three times that of independent examples and is measured over seeds.
"""

import json
import random
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from cloze.artifacts.tokenizer import read_vocab_txt
from cloze.pipeline.config.settings import ExamplesConfig, MaskingConfig
from cloze.pipeline.examples import ExamplesRecipe, copies_of
from cloze.pipeline.mlm.pairing import documents_of
from cloze.pipeline.mlm.statistics import ExampleStatistics
from tests.pipeline.mlm.plain_reference import (
    PlainVocabulary,
    StreamChance,
    plain_masks,
    plain_pairs,
)
from tests.pipeline.synthetic_tokens import tokens_table

VOCABULARY = 30522
SEEDS = (12345, 1, 2)


@dataclass(frozen=True)
class Sample:
    documents: list
    continuation_V: np.ndarray


@dataclass(frozen=True)
class Found:
    """The columns of all examples of a run, and their counts."""

    lengths: np.ndarray
    a: np.ndarray
    b: np.ndarray
    random: np.ndarray
    positions: np.ndarray
    counts: np.ndarray
    original_ids: np.ndarray
    statistics: object

    @property
    def position_deciles(self):
        return self.positions * 10 // np.repeat(self.lengths, self.counts)


@pytest.fixture(scope="module")
def sample(shared_data):
    tokenizer = read_vocab_txt(shared_data / "vocab/bert-base-uncased-vocab.txt", lowercase=True)
    text = (shared_data / "reference_sample.txt").read_text("utf-8")
    lines = [
        [line for line in document.split("\n") if line.strip()] for document in text.split("\n\n")
    ]
    flat = [line for document in lines for line in document]
    encoded = iter(tokenizer.backend.encode_batch_fast(flat, add_special_tokens=False))
    documents = [
        [ids for ids in (next(encoded).ids for _ in document) if ids] for document in lines
    ]
    return Sample(
        documents=[document for document in documents if document],
        continuation_V=np.array([word.startswith("##") for word in tokenizer.vocabulary]),
    )


@pytest.fixture(scope="module")
def bucket(sample):
    return documents_of(tokens_table(sample.documents, vocabulary_size=VOCABULARY), source="sample")


@pytest.fixture(scope="module")
def reference(shared_data):
    runs = json.loads((shared_data / "reference_statistics.json").read_text())
    return {run["name"]: run for run in runs}


def examples_of(sample, bucket, *, max_seq_length, copies, seed=12345, unit="token"):
    masking = MaskingConfig(unit=unit)
    recipe = ExamplesRecipe(
        seed=seed,
        config=ExamplesConfig(masking=masking),
        cls_id=101,
        sep_id=102,
        mask_id=103,
        vocabulary_size=VOCABULARY,
        continuation_V=sample.continuation_V,
    )
    batches = list(copies_of(bucket, recipe, max_seq_length=max_seq_length, copies=copies))
    column = {
        name: np.concatenate([flat(batch.column(name)) for batch, *_ in batches])
        for name in (
            "masked_lm_positions",
            "masked_lm_ids",
            "segment_a_length",
            "next_sentence_label",
        )
    }
    size = {
        name: np.concatenate([np.diff(batch.column(name).offsets) for batch, *_ in batches])
        for name in ("input_ids", "masked_lm_positions")
    }
    a = column["segment_a_length"].astype(int) - 2
    return Found(
        lengths=size["input_ids"],
        a=a,
        b=size["input_ids"] - a - 3,
        random=column["next_sentence_label"] == 1,
        positions=column["masked_lm_positions"].astype(int),
        counts=size["masked_lm_positions"],
        original_ids=column["masked_lm_ids"],
        statistics=sum((copy.statistics for copy in batches), ExampleStatistics()),
    )


def flat(column):
    return (column.flatten() if hasattr(column, "flatten") else column).to_numpy()


def histogram(lengths, max_seq_length):
    return np.bincount(np.minimum((lengths - 1) * 10 // max_seq_length, 9), minlength=10)


def alike(ours, theirs):
    """Whether two histograms may come from the same distribution, at p = 1 in 10,000."""
    table = np.array([ours, theirs])
    table = table[:, table.sum(axis=0) >= 20]
    return chi2_contingency(table).pvalue > 1e-4


CASES = [("s128", 128, 4), ("s512", 512, 4), ("s64", 64, 2)]


def summary_of(found, *, max_seq_length, continuation_V):
    """The statistics under the reference's names."""
    counts = found.statistics
    full = found.lengths == max_seq_length
    return {
        "N": counts.rows,
        "is_random_next": found.random.mean(),
        "share_full": full.mean(),
        "full_isnext": full[~found.random].mean(),
        "full_random": full[found.random].mean(),
        "mean_len": found.lengths.mean(),
        "mean_len_isnext": found.lengths[~found.random].mean(),
        "mean_len_random": found.lengths[found.random].mean(),
        "mean_a": found.a.mean(),
        "mean_b": found.b.mean(),
        "share_a_gt_b": np.mean(found.a > found.b),
        "truncated": counts.truncated / counts.rows,
        "mean_cut": counts.cut_tokens / counts.truncated,
        "pred_over_tokens": counts.masked / counts.tokens,
        "pred_over_maskable": counts.masked / (counts.tokens - 3 * counts.rows),
        "sub_share_masked": continuation_V[found.original_ids].mean(),
        "len_hist10": histogram(found.lengths, max_seq_length) / counts.rows,
        "a_q": np.quantile(found.a, [0.1, 0.25, 0.5, 0.75, 0.9]),
        "b_q": np.quantile(found.b, [0.1, 0.25, 0.5, 0.75, 0.9]),
    }


@pytest.mark.parametrize(("name", "max_seq_length", "copies"), CASES)
def test_a_run_of_the_reference_looks_like_one_of_ours(
    sample, bucket, reference, name, max_seq_length, copies
):
    runs = [
        summary_of(
            examples_of(sample, bucket, max_seq_length=max_seq_length, copies=copies, seed=seed),
            max_seq_length=max_seq_length,
            continuation_V=sample.continuation_V,
        )
        for seed in range(8)
    ]
    for statistic in runs[0]:
        ours = np.array([run[statistic] for run in runs])
        theirs = np.array(reference[name][statistic])
        # a quantile of integers is accurate to one; a rare bin may be empty in every run
        rounding = 0.3 if statistic in ("a_q", "b_q") else 1e-5
        noise = ours.std(axis=0, ddof=1) + rounding
        distance = np.abs(ours.mean(axis=0) - theirs) / (noise * (1 + 1 / 8) ** 0.5)
        assert np.all(distance < 5), (statistic, ours.mean(axis=0), theirs, distance)


def test_the_mean_run_lies_within_the_spread_of_the_reference(sample, bucket, reference):
    runs = [examples_of(sample, bucket, max_seq_length=128, copies=2, seed=s) for s in range(8)]
    expected = reference["s128"]
    assert np.mean([run.random.mean() for run in runs]) == pytest.approx(
        expected["is_random_next"], abs=0.010
    )
    assert np.mean([np.mean(run.lengths == 128) for run in runs]) == pytest.approx(
        expected["share_full"], abs=0.006
    )
    assert np.mean([run.lengths.mean() for run in runs]) == pytest.approx(
        expected["mean_len"], abs=0.5
    )


@pytest.mark.parametrize(("name", "max_seq_length", "copies"), CASES)
def test_shares_of_mask_random_and_kept_are_80_10_10(
    sample, bucket, reference, name, max_seq_length, copies
):
    counts = examples_of(sample, bucket, max_seq_length=max_seq_length, copies=copies).statistics
    assert counts.replaced_by_mask / counts.masked == pytest.approx(0.8, abs=0.0016)
    assert counts.replaced_by_random / counts.masked == pytest.approx(0.1, abs=0.0012)
    kept = counts.masked - counts.replaced_by_mask - counts.replaced_by_random
    assert kept / counts.masked == pytest.approx(reference[name]["keep"], abs=0.0024)


@pytest.mark.parametrize("seed", SEEDS)
def test_masked_places_are_spread_as_in_the_reference(sample, bucket, reference, seed):
    expected = reference["s128_seed2"]
    found = examples_of(sample, bucket, max_seq_length=128, copies=2, seed=seed)
    places = np.round(np.array(expected["posbin"]) * expected["masked"])
    assert alike(np.bincount(found.position_deciles, minlength=10), places)


def test_whole_words_undersample_continuations_as_the_reference_does(sample, bucket, reference):
    expected = reference["s128_wwm"]
    found = examples_of(sample, bucket, max_seq_length=128, copies=2, unit="whole_word")
    continued = sample.continuation_V[found.original_ids].mean()
    assert continued == pytest.approx(expected["sub_share_masked"], abs=0.0015)
    counts = found.statistics
    assert counts.masked / counts.tokens == pytest.approx(expected["pred_over_tokens"], abs=3e-4)


def test_the_plain_reference_is_the_reference(sample, reference):
    """With the same random generator and order of draws: exactly the numbers of Google's code."""
    expected = reference["s128_seed2"]
    rng = random.Random(expected["seed"])
    documents = list(sample.documents)
    rng.shuffle(documents)
    vocabulary = PlainVocabulary(101, 102, 103, VOCABULARY, continuations=frozenset())
    lengths, masked, random_next = [], 0, 0
    for _ in range(expected["dupe"]):
        for index in range(len(documents)):
            chance = StreamChance(rng, index, len(documents))
            for pair in plain_pairs(documents, index, max_tokens=125, short=0.1, chance=chance):
                masks = plain_masks(pair, vocabulary=vocabulary, max_predictions=20, rng=rng)
                lengths.append(len(masks.input_ids))
                masked += len(masks.positions)
                random_next += pair.label
    assert len(lengths) == expected["N"]
    assert masked == expected["masked"]
    assert random_next / len(lengths) == expected["is_random_next"]
    assert np.mean(lengths) == pytest.approx(expected["mean_len"], abs=1e-9)
