"""Baselines without an encoder, on tables of many labels."""

import tracemalloc

from cloze.model.tasks.baselines import bag_of_words, bag_of_words_by_label
from cloze.model.tasks.files.task_table import TaskTable

LABELS = 77
UNSEEN = TaskTable("unseen", {"text_a": ["word5", "nothing known", "..."]})


def test_a_bag_of_words_of_many_labels_needs_memory_for_the_words_of_its_texts_alone() -> None:
    numbers = [number % LABELS for number in range(2 * LABELS)]
    texts, labels = [f"word{number} again" for number in numbers], [*map(str, numbers)]
    table = TaskTable("t", {"text_a": [*texts], "label": [*labels]})
    assert bag_of_words(table)(UNSEEN)[0] == "5"
    tracemalloc.start()  # not before scikit-learn is imported
    bag_of_words(table)(UNSEEN)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 77 rows of a million weights would be 600 MB, and the optimizer keeps twenty of them.
    assert peak < 50e6


def test_texts_without_a_word_are_learnt_from_and_predicted() -> None:
    texts, labels = ["...", "!"], ["x", "y"]
    table = TaskTable("t", {"text_a": [*texts], "label": [*labels]})
    assert set(bag_of_words(table)(UNSEEN)) <= {"x", "y"}
    several = TaskTable("t", {"text_a": [*texts], "label": [["x", "y"], ["x"]]})
    assert all("x" in guess for guess in bag_of_words_by_label(several)(UNSEEN) if guess)
