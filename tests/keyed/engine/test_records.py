"""Log rows and meta records: round trip, their layout as bytes, and damage of every kind."""

from __future__ import annotations

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.changelog.model import Channel
from keyed.codec.frames import frame
from keyed.content.blocks import Change
from keyed.content.delta import Delta, deltas
from keyed.engine.group_log import GroupMeta, WaitingCommit, decode_meta, decode_row, encode_meta, encode_rows
from keyed.errors import CorruptionError
from tests.support.data_files import read_data

CHANGE = st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=4), st.none() | st.binary(max_size=9))


def rows_of(commit, reappended, changes, attempt, before):
    return encode_rows(commit, Delta(reappended).log_blocks(), Delta(changes).log_blocks(), attempt, before)


def entries_of(blocks):
    return [entry for delta in deltas(blocks, {}, "here") for entry in delta.entries]


ROW = rows_of(7, [(b"\x01old", b"", b"live")], [(b"\x01k", b"s", b"v"), (b"\x05k", b"t", None)], "me", "him")[0]
META = GroupMeta("log", "op", 1, 2, 7, "me", 3, 4, "me", 500, -5, 9, True, {"n": {"id": 1, "schema": {}}}, {"rows": 3})
FULL_META = attrs.evolve(
    META,
    previous="you",
    commit_rows=2,
    hash="00",
    key_columns=["k"],
    key_type="str",
    channels=[Channel(0, "", -5), Channel(1, "3", 8, 40)],
    last_state_id=6,
    commit_records=2,
    exported=5,
    waiting=[
        WaitingCommit(
            sequence=6,
            attempt="you",
            previous="they",
            skipped=0,
            rows=1,
            records=3,
            entries=2,
            hash="01",
            watermark=-7,
            processing_time=8,
            counters=[1, 3],
            states=None,
            key_type="str",
            channels=[Channel(0, "", -7)],
        )
    ],
)
META_RECORD = encode_meta(FULL_META)


@given(st.integers(1, 2**63), st.lists(CHANGE, max_size=5), st.lists(CHANGE, max_size=5))
def test_a_segment_comes_back(commit, reappended, changes):
    (record,) = rows_of(commit, reappended, changes, "attempt", "before")
    row = decode_row(record, "here")
    assert (row.commit, row.last, row.attempt, row.before) == (commit, True, "attempt", "before")
    assert row.reappended == ([reappended] if reappended else [])
    assert row.changed == ([changes] if changes else [])


def test_a_large_segment_is_cut_into_rows_that_name_each_other():
    changes: list[Change] = [(b"\x01%d" % i, b"", b"v" * 300_000) for i in range(10)]
    records = rows_of(3, changes[:3], changes, "me", "him")
    rows = [decode_row(record, "here") for record in records]
    assert [row.last for row in rows] == [False] * (len(rows) - 1) + [True]
    assert [row.before for row in rows] == ["him"] + ["me"] * (len(rows) - 1)
    assert [entry for row in rows for entry in entries_of([*row.reappended, *row.changed])] == changes[:3] + changes
    assert all(len(record) < 1_400_000 for record in records)
    assert len(records) >= 4


def test_the_layouts_are_what_they_were():
    # A change here needs a new version of the record.
    golden = {name: "".join(lines) for name, lines in read_data("keyed/engine/golden_records.json").items()}
    assert {"row": ROW.hex(), "meta": META_RECORD.hex()} == golden
    assert decode_meta(META_RECORD, "here") == FULL_META


def test_unknown_blocks_and_uneven_columns_stop_a_reader():
    for blocks in ([[3, [[], [], []]]], [[1, [[b"\x01"], [], []]]], [[1, [[b"\x01"], [b"", b""], [None]]]]):
        payload = msgspec.msgpack.encode([1, True, "", "", blocks])
        with pytest.raises(CorruptionError, match="here"):
            decode_row(frame(b"KSEG", 1, payload), "here")
