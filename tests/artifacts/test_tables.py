"""Table schemas: the narrowest id type, no nulls."""

import pyarrow as pa
import pytest

from cloze.artifacts.tables import (
    examples_name,
    examples_schema,
    id_type,
    tokens_name,
    tokens_schema,
)


@pytest.mark.parametrize(
    ("size", "type_"), [(30522, pa.uint16()), (65536, pa.uint16()), (65537, pa.uint32())]
)
def test_ids_take_the_narrowest_type(size: int, type_: pa.DataType) -> None:
    assert id_type(size) == type_
    assert examples_schema(size).field("input_ids").type.value_type == type_
    assert tokens_schema(size).field("token_ids").type.value_type == type_


def test_nothing_may_be_null() -> None:
    for schema in (examples_schema(100), tokens_schema(100)):
        assert not any(field.nullable for field in schema)


def test_names_sort_by_split_length_and_bucket() -> None:
    assert tokens_name("train", 3) == "train-00003.arrow"
    assert examples_name("heldout", 128, 12) == "heldout-128-00012.arrow"
