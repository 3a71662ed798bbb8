import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.model.tasks.features import (
    batches_by_length,
    encode,
    ragged,
    truncated_lengths,
)
from tests.model.task_builders import TOKENIZER


def popped(length_a: int, length_b: int, room: int) -> tuple[int, int]:
    """The reference's loop (run_classifier.py, _truncate_seq_pair)."""
    while length_a + length_b > room:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


@given(st.integers(0, 60), st.integers(0, 60), st.integers(5, 50))
def test_truncation_leaves_what_popping_one_by_one_leaves(a: int, b: int, room: int) -> None:
    kept_a, kept_b = truncated_lengths(np.array([a]), np.array([b]), room=room)
    assert (int(kept_a[0]), int(kept_b[0])) == popped(a, b, room)


def test_pairs_are_cls_a_sep_b_sep_with_types_and_positions() -> None:
    sequences = encode(
        TOKENIZER, ["the list", "a", ""], ["of given", "", "shape names"], max_seq_length=16
    )
    cls, sep = TOKENIZER.cls_id, TOKENIZER.sep_id
    ids = TOKENIZER.encode
    expected = [
        [cls, *ids("the list"), sep, *ids("of given"), sep],
        [cls, *ids("a"), sep, sep],
        [cls, sep, *ids("shape names"), sep],
    ]
    assert [sequences.input_ids.row(row).tolist() for row in range(3)] == expected
    batch = sequences.batch(np.array([2, 0]))
    assert batch.input_ids.tolist() == expected[2] + expected[0]
    assert batch.token_type_ids.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert batch.position_ids.tolist() == [*range(6), *range(7)]
    assert batch.cu_seqlens.tolist() == [0, 6, 13]
    assert batch.max_seqlen == 7


def test_long_texts_are_cut_and_counted() -> None:
    sequences = encode(TOKENIZER, ["the " * 50, "the"], max_seq_length=8)
    assert sequences.lengths.tolist() == [8, 3]
    assert sequences.truncated == 1
    assert sequences.input_ids.row(0)[-1] == TOKENIZER.sep_id


def test_special_tokens_written_in_a_text_are_text() -> None:
    sequences = encode(TOKENIZER, ["[SEP] the [MASK]"], max_seq_length=32)
    inside = set(sequences.input_ids.row(0)[1:-1].tolist())
    assert not inside & (TOKENIZER.special_ids - {TOKENIZER.unk_id})


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 100))
def test_evaluation_batches_hold_every_row_once_and_little_more_than_the_budget(
    lengths: list[int], budget: int
) -> None:
    batches = list(batches_by_length(np.array(lengths), token_budget=budget))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(sum(lengths[row] for row in rows) < budget + max(lengths) for rows in batches)
    longest = [max(lengths[row] for row in rows) for rows in batches]
    assert longest == sorted(longest, reverse=True)


def test_ragged_rows_are_taken_in_any_order() -> None:
    taken = ragged([[1, 2], [], [3]]).take(np.array([2, 0, 1, 2]))
    assert taken.values.tolist() == [3, 1, 2, 3]
    assert taken.offsets.tolist() == [0, 1, 3, 3, 4]
