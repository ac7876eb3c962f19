"""Rows of tables as entries and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed import StateTtl, TimeDomain
from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.codec.keys import encode_key
from keyed.codec.state_schema import StateSchema
from keyed.content.addresses import PLAIN, TTL_EVENT, decode_time, key_of, state_prefix
from keyed.content.blocks import TableBlock
from keyed.content.table_entries import TableEntries
from keyed.errors import CorruptionError
from keyed.table_state.layout import DUE_COLUMN, Layout
from keyed.vectorized import TableState
from tests.keyed.table_state.model import KEY, SCHEMA, row, table

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "", "ü"]), st.none() | st.integers(-3, 3), st.none() | st.integers(-50, 50)),
    unique_by=lambda drawn: drawn[:2],
)


def converter(state: TableState, stream_keys: int = 1) -> TableEntries:
    state.set_name("rows")
    schema = StateSchema.of_table("rows", list(state.key), Layout.of(state).fingerprint(stream_keys), state.ttl)
    return TableEntries({"id": 7, "schema": schema.to_json()}, "here")


def block(written: pa.Table | None, removed: pa.Table | None = None) -> TableBlock:
    parts = [None if part is None else write_stream(part) for part in (removed, written)]
    return TableBlock(7, sum(part.num_rows for part in (removed, written) if part is not None), *parts)


@given(ROWS)
def test_rows_come_back_as_they_were(drawn: list[Any]) -> None:
    entries = converter(TableState(SCHEMA, key=KEY))
    rows = table([row(*each) for each in drawn])
    changes = entries.changes(block(rows))
    back = entries.block(changes)
    assert back.rows == len(changes) == rows.num_rows
    assert back.removed is None
    assert drawn == [] or read_stream(back.written or b"", "here").equals(rows)


def test_addresses_are_those_of_entries() -> None:
    entries = converter(TableState(SCHEMA, key=KEY))
    ((prefix, sub, value), (removed, _, none)) = entries.changes(
        block(table([row("a", 5, 1)]), table([row("b", None, 1)]).select(KEY))
    )[::-1]
    assert prefix == state_prefix(PLAIN, 7, encode_key("a"), encode_key(None))
    assert (sub, key_of(prefix), key_of(removed), none) == (encode_key((5,)), "a", "b", None)
    assert value is not None


def test_removed_rows_are_tombstones() -> None:
    entries = converter(TableState(SCHEMA, key=KEY))
    keys = table([row("a", 1, 1), row("b", None, 1)]).select(KEY)
    changes = entries.changes(block(None, keys))
    assert [value for _, _, value in changes] == [None, None]
    assert read_stream(entries.block(changes).removed or b"", "here").equals(keys)


def test_the_whole_key_may_be_that_of_the_stream() -> None:
    entries = converter(TableState("a string, b bigint, n bigint", key=("a", "b")), stream_keys=2)
    rows = pa.table({"a": ["x"], "b": [1], "n": [2]})
    ((prefix, sub, value),) = changes = entries.changes(block(rows))
    assert (key_of(prefix), sub) == (("x", 1), b"")
    assert value is not None
    assert read_stream(entries.block(changes).written or b"", "here").equals(rows)


def test_a_table_may_have_no_columns_but_those_of_its_key() -> None:
    entries = converter(TableState("a string, b bigint", key=("a", "b")))
    rows = pa.table({"a": ["x", "x"], "b": [1, 2]})
    changes = entries.changes(block(rows))
    assert len(changes) == 2
    assert read_stream(entries.block(changes).written or b"", "here").equals(rows)


def test_the_due_time_of_a_row_stands_before_its_value() -> None:
    state = TableState("a string, n bigint", key="a", ttl=StateTtl(5, time_domain=TimeDomain.EVENT_TIME))
    entries = converter(state)
    rows = pa.table({"a": ["x"], "n": [2], DUE_COLUMN: [-9]})
    ((prefix, _, value),) = changes = entries.changes(block(rows))
    assert (prefix[0], decode_time(value or b"")) == (TTL_EVENT, -9)
    assert read_stream(entries.block(changes).written or b"", "here").equals(rows)


def test_a_column_that_old_rows_lack_is_null() -> None:
    entries = converter(TableState("a string, n bigint, added double", key="a"))
    changes = entries.changes(block(pa.table({"a": ["x"], "n": [2]})))
    assert read_stream(entries.block(changes).written or b"", "here").to_pylist() == [{"a": "x", "n": 2, "added": None}]


@pytest.mark.parametrize(
    ("prefix", "sub", "value"),
    [
        (b"", b"", b"\x80"),
        (state_prefix(PLAIN, 8, encode_key("a"), encode_key(None)), encode_key((1,)), b"\x80"),
        (state_prefix(PLAIN, 7, encode_key("a"), encode_key(None)), b"", b"\x80"),
        (state_prefix(PLAIN, 7, encode_key("a"), encode_key(None)), encode_key((1, 2)), b"\x80"),
        (state_prefix(PLAIN, 7, encode_key(5), encode_key(None)), encode_key((1,)), b"\x80"),
        (state_prefix(PLAIN, 7, encode_key("a"), encode_key(None)), encode_key((1,)), b"\xc1"),
        (state_prefix(PLAIN, 7, encode_key("a"), encode_key(None)), encode_key((1,)), b"\x81\xa1n\xa1x"),
    ],
)
def test_other_entries_are_corruption(prefix: bytes, sub: bytes, value: bytes) -> None:
    with pytest.raises(CorruptionError, match="here"):
        converter(TableState(SCHEMA, key=KEY)).block([(prefix, sub, value)])


@pytest.mark.parametrize("state", [{}, {"id": 1, "schema": {"key": None, "value": "int", "ttl": None}}])
def test_other_states_are_corruption(state: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError, match="does not describe a table"):
        TableEntries(state, "here")
