"""Segment pairs: identical to the plain algorithm, and consistent with its invariants."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.rng import stream_seed
from cloze.artifacts.tables import tokens_schema
from cloze.pipeline.mlm.pairing import (
    IS_NEXT,
    NOT_ASKED,
    RANDOM_NEXT,
    PairingRule,
    documents_of,
    pair_segments,
    read_bucket,
    tokens_to_cut,
)
from tests.pipeline.mlm.plain_reference import AddressedChance, plain_pairs
from tests.pipeline.synthetic_tokens import document_digest, random_documents, tokens_table

START = stream_seed(7, "examples", 64, 0)
WORDS = 60_000


def unique_documents(shapes):
    """Documents of the given sentence lengths in which every token occurs once."""
    token = iter(range(5, WORDS))
    return [[[next(token) for _ in range(n)] for n in shape] for shape in shapes]


def bucket(documents, weights=None):
    table = tokens_table(documents, vocabulary_size=WORDS, weights=weights)
    return documents_of(table, source="test")


def rule(max_seq_length=64, *, short=0.1, second="next_sentence"):
    return PairingRule(max_seq_length, short, second)


def segments(documents, pairs):
    ids = documents.token_ids_T
    for row in range(pairs.count):
        a, b = pairs.a_start_N[row], pairs.b_start_N[row]
        yield (
            ids[a : a + pairs.a_length_N[row]].tolist(),
            ids[b : b + pairs.b_length_N[row]].tolist(),
            int(pairs.label_N[row]),
        )


document_shapes = st.lists(
    st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=8
)


@pytest.mark.parametrize("max_seq_length", [16, 64, 128])
@pytest.mark.parametrize("short", [0.0, 0.1, 1.0])
def test_pairs_are_those_of_the_plain_algorithm(max_seq_length, short):
    # the last document has a sentence that loses hundreds of tokens
    plain = [*random_documents(3, count=40), [[9] * 700, [10] * 3, [11] * 900]]
    plain.sort(key=document_digest)
    documents = bucket(plain)
    found = list(
        segments(
            documents,
            pair_segments(documents, rule=rule(max_seq_length, short=short), start=START),
        )
    )
    expected = [
        (list(pair.a), list(pair.b), pair.label)
        for index, document in enumerate(plain)
        for pair in plain_pairs(
            plain,
            index,
            max_tokens=max_seq_length - 3,
            short=short,
            chance=AddressedChance(document_digest(document), START, own=index, count=len(plain)),
        )
    ]
    assert found == expected


@settings(max_examples=60)
@given(shapes=document_shapes, max_seq_length=st.integers(8, 80))
def test_segments_fit_and_are_what_their_label_says(shapes, max_seq_length):
    plain = unique_documents(shapes)
    documents = bucket(plain)
    pairs = pair_segments(documents, rule=rule(max_seq_length), start=START)
    home = {token: index for index, document in enumerate(plain) for s in document for token in s}
    for a, b, label in segments(documents, pairs):
        assert len(a) >= 1
        assert len(a) + len(b) <= max_seq_length - 3
        assert (len(b) == 0) == (label == NOT_ASKED)
        if label == RANDOM_NEXT:
            assert home[a[0]] != home[b[0]]
        else:
            assert len({home[token] for token in (*a, *b)}) == 1
        assert label != NOT_ASKED or len(plain) == 1


@settings(max_examples=60)
@given(shapes=document_shapes)
def test_without_truncation_a_true_pair_is_a_piece_of_text_and_no_sentence_is_lost(shapes):
    documents = bucket(unique_documents(shapes))
    pairs = pair_segments(documents, rule=rule(2000, short=1.0), start=START)
    seen = set()
    for (a, b, label), cut in zip(segments(documents, pairs), pairs.cut_N, strict=True):
        seen.update(a if label == RANDOM_NEXT else (*a, *b))
        if label != RANDOM_NEXT and not cut:
            assert [*a, *b] == list(range(a[0], a[0] + len(a) + len(b)))
    assert not pairs.cut_N.any()
    assert seen == set(documents.token_ids_T.tolist())


@pytest.mark.parametrize("second", ["next_sentence", "sentence_order", "none"])
def test_every_sentence_begins_or_follows_in_some_example(second):
    plain = unique_documents([[5] * 40, [3] * 25, [30, 1, 1], [4]])
    documents = bucket(plain)
    pairs = pair_segments(documents, rule=rule(32, short=0.0, second=second), start=START)
    seen = {
        token
        for a, b, label in segments(documents, pairs)
        for token in (a if label == RANDOM_NEXT and second == "next_sentence" else (*a, *b))
    }
    for document in plain:
        for sentence in document:
            assert seen & set(sentence)


def test_a_lone_document_gives_true_pairs_and_single_segments_only():
    documents = bucket(unique_documents([[20, 20, 20, 20, 20, 20, 20, 70, 5]]))
    pairs = pair_segments(documents, rule=rule(64, short=0.0), start=START)
    assert set(pairs.label_N.tolist()) == {IS_NEXT, NOT_ASKED}


def test_random_next_never_comes_from_an_equal_document_whatever_its_weight():
    plain = unique_documents([[9] * 30, [9] * 4])
    documents = bucket(plain, weights=[50, 1])
    pairs = pair_segments(documents, rule=rule(40), start=START)
    home = {token: index for index, document in enumerate(plain) for s in document for token in s}
    random = [(a, b) for a, b, label in segments(documents, pairs) if label == RANDOM_NEXT]
    assert len(random) > 100
    assert all(home[a[0]] != home[b[0]] for a, b in random)


def test_a_document_of_weight_three_is_read_three_times_each_time_differently():
    plain = unique_documents([[7] * 30, [8] * 30])
    heavy = bucket(plain, weights=[3, 1])
    once = bucket(plain)
    of_heavy = pair_segments(heavy, rule=rule(64), start=START)
    of_once = pair_segments(once, rule=rule(64), start=START)
    tokens = {token for sentence in plain[0] for token in sentence}
    count = sum(a[0] in tokens for a, _, _ in segments(heavy, of_heavy))
    single = sum(a[0] in tokens for a, _, _ in segments(once, of_once))
    assert 2 * single < count < 4 * single
    assert len(np.unique(of_heavy.stream_N)) == of_heavy.count


def test_other_documents_are_drawn_by_weight():
    plain = unique_documents([[5] * 4, [5] * 4, [5] * 400])
    pairs_of = bucket(plain, weights=[3, 1, 1])
    pairs = pair_segments(pairs_of, rule=rule(32), start=START)
    home = {token: index for index, document in enumerate(plain) for s in document for token in s}
    drawn = [
        home[b[0]]
        for a, b, label in segments(pairs_of, pairs)
        if label == RANDOM_NEXT and home[a[0]] == 2
    ]
    share = drawn.count(0) / len(drawn)
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / len(drawn)) ** 0.5


def test_what_one_document_gives_does_not_depend_on_the_others_but_for_random_next():
    plain = unique_documents([[6] * 50, [9] * 20, [3] * 5])
    few, many = bucket(plain[:2]), bucket(plain)
    tokens = {token for sentence in plain[0] for token in sentence}

    def chunks(documents):  # a stream identifies the sentence at which a chunk begins
        pairs = pair_segments(documents, rule=rule(64), start=START)
        rows = zip(segments(documents, pairs), pairs.stream_N.tolist(), strict=True)
        return [(label, stream) for (a, _, label), stream in rows if a[0] in tokens]

    assert chunks(few) == chunks(many)


def test_sentence_order_swaps_half_of_the_pairs():
    documents = bucket(unique_documents([[6] * 2000]))
    pairs = pair_segments(documents, rule=rule(64, second="sentence_order"), start=START)
    labels = []
    for a, b, label in segments(documents, pairs):
        if label != NOT_ASKED:
            assert (a[0] > b[0]) == (label == RANDOM_NEXT)
            labels.append(label)
    assert abs(np.mean(labels) - 0.5) < 5 * (0.25 / len(labels)) ** 0.5


def test_without_second_segment_the_first_has_the_room():
    documents = bucket(unique_documents([[6] * 300]))
    pairs = pair_segments(documents, rule=rule(64, short=0.0, second="none"), start=START)
    assert set(pairs.label_N.tolist()) == {NOT_ASKED}
    assert not pairs.b_length_N.any()
    assert pairs.a_length_N[:-1].tolist() == [62] * (pairs.count - 1)


def test_an_empty_bucket_gives_no_pairs():
    assert pair_segments(bucket([]), rule=rule(), start=START).count == 0


@given(a=st.integers(1, 300), b=st.integers(1, 300), room=st.integers(2, 200))
def test_the_longer_segment_is_cut_and_b_if_they_are_equal(a, b, room):
    left_a, left_b = a, b
    while left_a + left_b > room:
        if left_a > left_b:
            left_a -= 1
        else:
            left_b -= 1
    cut_a, cut_b = tokens_to_cut(np.array([a]), np.array([b]), max_tokens=room)
    assert (a - cut_a[0], b - cut_b[0]) == (left_a, left_b)


def sentences_of(documents, index):
    sentences = range(*documents.first_sentence_D1[index : index + 2])
    return [
        documents.token_ids_T[documents.starts_S[s] : documents.ends_S[s]].tolist()
        for s in sentences
    ]


def test_documents_come_back_whole_and_in_order_of_digest(tmp_path):
    table = tokens_table(random_documents(0, count=20), vocabulary_size=200)
    path = tmp_path / "train-00000.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=6)
    documents = read_bucket(str(path))
    assert documents.count == 20
    for index, row in enumerate(table.to_pylist()):
        flat = [token for sentence in sentences_of(documents, index) for token in sentence]
        assert flat == row["token_ids"]
        assert documents.digests_D2[index].tobytes() == row["document_digest"]
        assert [len(s) for s in sentences_of(documents, index)] == row["sentence_lengths"]


def test_a_subset_reads_the_same_tokens():
    table = tokens_table(random_documents(1, count=9), vocabulary_size=200)
    documents = documents_of(table, source="test")
    part = documents.subset(np.array([2, 5, 8]))
    for mine, theirs in enumerate([2, 5, 8]):
        assert sentences_of(part, mine) == sentences_of(documents, theirs)


def test_sentences_and_documents_without_tokens_are_left_out():
    table = pa.table(
        {
            "document_digest": [bytes([i]) * 16 for i in range(4)],
            "copies": [1, 2, 3, 4],
            "token_ids": [[7, 8, 9], [], [10], []],
            "sentence_lengths": [[0, 2, 1], [], [1], [0, 0]],
        },
        schema=tokens_schema(200),
    )
    documents = documents_of(table, source="test")
    assert documents.weights_D.tolist() == [1, 3]
    assert sentences_of(documents, 0) == [[7, 8], [9]]
    assert sentences_of(documents, 1) == [[10]]


def test_an_empty_bucket_has_no_documents():
    documents = documents_of(tokens_schema(200).empty_table(), source="test")
    assert documents.count == 0
    assert len(documents.starts_S) == 0


def test_lengths_that_do_not_fit_the_tokens_are_refused():
    table = pa.table(
        {
            "document_digest": [bytes(16), bytes(16)],
            "copies": [1, 1],
            "token_ids": [[7, 8, 9], [7]],
            "sentence_lengths": [[2], [2]],
        },
        schema=tokens_schema(200),
    )
    with pytest.raises(IntegrityError, match="train-00003.arrow: sentence_lengths do not sum"):
        documents_of(table, source="train-00003.arrow")
