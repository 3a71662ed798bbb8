"""Reading the documents of a bucket."""

import numpy as np
import pyarrow as pa
import pytest

from artifacts.errors import IntegrityError
from artifacts.tables import tokens_schema
from pipeline.mlm.bucket_documents import documents_of, read_documents
from tests.pipeline.synthetic_tokens import random_documents, tokens_table


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
    documents = read_documents(str(path))
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
