"""Hashes of rows: what they depend on and what they do not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.content.row_hash import row_bytes, row_hashes, rows_hash
from tests.keyed.table_state.model import SCHEMA, row, table

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "", "ü" * 20, None]), st.none() | st.integers(), st.none() | st.integers(-9, 9))
)


def rows(drawn: list[Any]) -> pa.Table:
    return table([row(k, None if w is None else w % 2**40, number) for k, w, number in drawn])


@given(ROWS, st.randoms(use_true_random=False))
def test_a_hash_is_that_of_the_row_alone(drawn: list[Any], random: Any) -> None:
    whole = rows(drawn)
    hashes = row_hashes(whole).tolist()
    assert hashes == [row_hashes(whole.slice(i, 1))[0] for i in range(whole.num_rows)]
    cut = random.randrange(len(drawn) + 1)
    assert row_hashes(pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])).tolist() == hashes
    names = random.sample(SCHEMA.names, len(SCHEMA.names))
    assert row_hashes(whole.select(names)).tolist() == hashes
    assert row_hashes(whole.append_column("added", pa.nulls(whole.num_rows, pa.float64()))).tolist() == hashes


@given(ROWS, st.randoms(use_true_random=False))
def test_the_hash_of_rows_does_not_depend_on_their_order(drawn: list[Any], random: Any) -> None:
    other = list(drawn)
    random.shuffle(other)
    assert rows_hash(rows(drawn), 1) == rows_hash(rows(other), 1)
    assert sum(rows_hash(rows([each]), 1) for each in drawn) % 2**128 == rows_hash(rows(drawn), 1)


VALUES: list[tuple[Any, list[Any]]] = [
    (pa.int64(), [0, 1, -1, 2**40, None]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.int8(), [1, -1]),
    (pa.bool_(), [True, False, None]),
    (pa.float64(), [0.0, 1.0, -1.0, float("nan"), float("inf"), 5e-324]),
    (pa.float32(), [0.0, 1.5]),
    (pa.string(), ["", "\x00", "\x00\x00", "a", "aa", "ab", "ba", "a" * 1000, None]),
    (pa.large_string(), ["", "a"]),
    (pa.binary(), [b"", b"\x00", b"\xff" * 9]),
    (pa.decimal128(20, 2), [Decimal(0), Decimal("-0.01"), Decimal("0.01"), Decimal(10**17)]),
    (pa.decimal256(50, 2), [Decimal(0), Decimal(10**40), Decimal(-(10**40))]),
    (pa.timestamp("us", "UTC"), [0, 1, -1, None]),
    (pa.date32(), [0, 1]),
    (pa.duration("ms"), [0, 1]),
    (pa.list_(pa.string()), [[], [""], ["", ""], [None], ["a", "b"], ["b", "a"], ["ab"], None]),
    (pa.list_(pa.int64(), 2), [[1, 2], [2, 1]]),
    (pa.struct([("a", pa.int64()), ("b", pa.int64())]), [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 1, "b": None}]),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", 2)], [("b", 1)]]),
]


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=[str(type_) for type_, _ in VALUES])
def test_different_values_have_different_hashes(type_: Any, values: list[Any]) -> None:
    hashes = row_hashes(pa.table({"a": pa.array(values, type_)}))
    assert len(set(hashes.tolist())) == len(values)
    assert set(hashes.tolist()).isdisjoint(row_hashes(pa.table({"b": pa.array(values[:1], type_)})).tolist())
    assert set(hashes.tolist()).isdisjoint(row_hashes(pa.table({"a": pa.array(values, type_)}), seed=1).tolist())
    sliced = pa.table({"a": pa.array([*values, *values], type_).slice(len(values) - 1)})
    assert row_hashes(sliced).tolist() == [hashes[-1], *hashes]


@pytest.mark.parametrize("type_", [type_ for type_, _ in VALUES], ids=str)
def test_an_added_column_of_nulls_changes_no_size(type_: Any) -> None:
    before = rows([("a", 1, 2), (None, None, None)])
    assert row_bytes(before.append_column("added", pa.nulls(2, type_))) == row_bytes(before) > 0


def test_equal_values_have_equal_hashes() -> None:
    zeros = row_hashes(pa.table({"a": [0.0, -0.0]}))
    two_nans = np.array([0x7FF8000000000000, 0xFFF8000000000001], "uint64").view("float64")
    nans = row_hashes(pa.table({"a": pa.array(two_nans)}))
    assert zeros[0] == zeros[1]
    assert nans[0] == nans[1]
    assert (
        row_hashes(pa.table({"a": ["x", "y", "x"]}))
        == row_hashes(pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()}))
    ).all()


def test_the_numbers_stay_as_they_are() -> None:
    # Commits of changelogs hold sums of these.
    fixed = pa.table({"s": ["", "abc", None], "i": [0, -1, 2**62], "f": [0.5, None, 1e300], "l": [[1], [], None]})
    assert row_hashes(fixed).tolist() == [0xBE6D87FDE54A0EEF, 0xFFEBB7DDC3ED7D55, 0x2A46AC30F1C20EF7]


def test_empty_tables_have_no_hashes() -> None:
    assert row_hashes(SCHEMA.empty_table()).tolist() == []
    assert rows_hash(SCHEMA.empty_table(), 1) == 0
