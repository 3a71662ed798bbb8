"""Baselines without an encoder.

In:  a task's tables.
Out: predictions by majority, look-up, word overlap and bag of words, scored like a model's. A
     family lists those that suit it, and others of its own.

A model's score means little without them: the majority class reaches 81 F1 on MRPC's test set.
Libraries are imported where they are needed: scikit-learn takes longer to import than torch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from cloze.artifacts.results import Baseline
from cloze.model.tasks.base import Predict, Prediction, Problem
from cloze.model.tasks.files.task_table import TaskTable
from cloze.pipeline.text.scripts import search_terms, spaced_terms


def baselines(problem: Problem, tables: Mapping[str, TaskTable]) -> tuple[Baseline, ...]:
    """Every baseline of the family, scored on dev and test if they are labelled."""
    records = []
    for name, learn in problem.baselines.items():
        # Learnt from train alone; dev and test only supply the inputs that are scored.
        predict = learn(tables["train"])
        scores = {
            split: problem.score(split, predict(tables[split]))
            for split in ("dev", "test")
            if split in tables and problem.labelled(split)
        }
        records.append(Baseline(name=name, **scores))
    return tuple(records)


def majority_label(train: TaskTable) -> Predict:
    """Always the most frequent label."""
    label = _most_frequent(str(label) for label in train.columns["label"])
    return lambda table: [label] * len(table)


def mean_label(train: TaskTable) -> Predict:
    """Always the mean."""
    mean = float(np.mean([float(str(label)) for label in train.columns["label"]]))
    return lambda table: [mean] * len(table)


def bag_of_words(train: TaskTable) -> Predict:
    """Logistic regression over a text's word unigrams and bigrams."""
    words, seen = _known_words(train)
    model = _regression(words, [str(label) for label in train.columns["label"]])
    return lambda table: list(model.predict(_words(table)[:, seen]))


def frequent_label(train: TaskTable) -> Predict:
    """Always the most frequent label of a multi-label task, alone."""
    label = _most_frequent(chain.from_iterable(_lists(train, "label")))
    return lambda table: [[label] for _ in range(len(table))]


def bag_of_words_by_label(train: TaskTable) -> Predict:
    """One logistic regression per label over a text's word unigrams and bigrams."""
    rows, (words, seen) = _lists(train, "label"), _known_words(train)
    models: dict[str, Any] = {}
    always = []
    for label in sorted({label for labels in rows for label in labels}):
        present = [label in labels for labels in rows]
        # A label of every row leaves nothing to separate, and scikit-learn refuses a single class.
        if all(present):
            always.append(label)
        else:
            models[label] = _regression(words, present)

    def predict(table: TaskTable) -> list[Prediction]:
        words = _words(table)[:, seen]
        found: list[list[JsonValue]] = [[*always] for _ in range(len(table))]
        for label, model in models.items():
            for row in np.flatnonzero(model.predict(words)):
                found[row].append(label)
        return [*found]

    return predict


def word_overlap(train: TaskTable) -> Predict:
    """Logistic regression over word-overlap features."""
    model = _regression(_overlaps(train), [str(label) for label in train.columns["label"]])
    return lambda table: list(model.predict(_overlaps(table)))


def overlap_share(train: TaskTable) -> Predict:
    """The share of common words itself, since correlations are scale-free."""
    return lambda table: (
        [float(share) for share in _overlaps(table)[:, 0]]
        if table.has("text_b")
        else [0.0] * len(table)
    )


def majority_tag(train: TaskTable) -> Predict:
    """Always the most frequent tag."""
    tag = _most_frequent(chain.from_iterable(_lists(train, "tags")))
    return lambda table: [[tag] * len(words) for words in _lists(table, "words")]


def lookup_tag(train: TaskTable) -> Predict:
    """The word's most frequent tag in the training data; for unseen words, the overall one."""
    seen: dict[str, Counter[str]] = {}
    for words, tags in zip(_lists(train, "words"), _lists(train, "tags"), strict=True):
        for word, tag in zip(words, tags, strict=True):
            seen.setdefault(word, Counter())[tag] += 1
    usual = {word: _first(tags) for word, tags in seen.items()}
    other = _most_frequent(chain.from_iterable(_lists(train, "tags")))
    return lambda table: [
        [usual.get(word, other) for word in row] for row in _lists(table, "words")
    ]


def _lists(table: TaskTable, name: str) -> list[list[str]]:
    """A column of lists of words, tags or labels, which the task family has checked."""
    rows = cast(list[list[JsonValue]], table.columns[name])
    return [[str(value) for value in row] for row in rows]


def _most_frequent(values: Iterable[str]) -> str:
    return _first(Counter(values))


def _first(counts: Counter[str]) -> str:
    """The most frequent value; ties are broken alphabetically, whatever the order of rows."""
    return min(counts, key=lambda value: (-counts[value], value))


def _regression(features: Any, labels: Sequence[str | bool]) -> Any:
    """Logistic regression of labels on features, [rows, features]."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10.0, max_iter=200).fit(features, labels)


def _known_words(train: TaskTable) -> tuple[Any, NDArray[np.int64]]:
    """The features of the training texts that any of them has, and which they are of `_words`."""
    words = _words(train)
    # A feature that no text has gets the weight 0. With all million hashes, the optimizer's memory
    # of 77 labels would be 13 GB, and most of the time of few rows would be spent on zeros. The
    # first is always among them: texts without a word have features, too.
    seen = np.union1d(words.indices, [0]).astype(np.int64)
    return words[:, seen], seen


def _words(table: TaskTable) -> Any:
    """[rows, features] hashed word unigrams and bigrams of each text."""
    from sklearn.feature_extraction.text import HashingVectorizer

    # Hashed, so the vocabulary of the training texts need not be kept; signs of hashes are off, as
    # they would cancel common words.
    vectorizer = HashingVectorizer(
        ngram_range=(1, 2),
        alternate_sign=False,
        analyzer="word",
        tokenizer=search_terms,
        token_pattern=None,
        lowercase=False,
    )
    return vectorizer.transform(table.texts("text_a"))


def _overlaps(table: TaskTable) -> NDArray[np.float64]:
    """[rows, 4] common words as a share of all words, of A's and of B's; difference in length."""
    rows = []
    for text_a, text_b in zip(table.texts("text_a"), table.texts("text_b"), strict=True):
        a, b = (set(spaced_terms(text)) for text in (text_a, text_b))
        common = len(a & b)
        rows.append(
            (
                common / max(len(a | b), 1),
                common / max(len(a), 1),
                common / max(len(b), 1),
                abs(len(a) - len(b)) / max(len(a), len(b), 1),
            )
        )
    return np.array(rows)
