"""Packing segments into examples: each once, none too long, no two that would fit into one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.mlm.example_files import fill_examples

LONGEST = 40


@given(st.lists(st.integers(3, LONGEST), max_size=80))
def test_every_stretch_is_in_one_example_and_no_two_examples_could_be_one(lengths):
    lengths_N = np.array(lengths, dtype=np.int64)
    order_N, counts_E = fill_examples(lengths_N, LONGEST)
    assert sorted(order_N.tolist()) == list(range(len(lengths)))
    assert counts_E.sum() == len(lengths)
    if len(lengths):
        sums_E = np.sort(np.add.reduceat(lengths_N[order_N], np.cumsum(counts_E) - counts_E))
        assert counts_E.min() > 0
        assert sums_E[-1] <= LONGEST
        assert len(sums_E) == 1 or sums_E[:2].sum() > LONGEST


def test_a_stretch_goes_where_the_least_room_is_that_is_enough():
    order_N, counts_E = fill_examples(np.array([20, 30, 10, 17]), LONGEST)
    assert counts_E.tolist() == [2, 2]
    assert order_N.tolist() == [0, 3, 1, 2]
