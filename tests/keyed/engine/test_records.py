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
from keyed.engine.meta import GroupMeta, WaitingCommit, decode_meta, encode_meta
from keyed.engine.segment import decode_row, encode_rows
from keyed.errors import CorruptionError

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
GOLDEN_ROW = (
    "4b534547000000010000000000000035fd79e2149507c3a26d65a368696d9292029391c404016f6c649091c4046c69766592"
    "019392c402016bc402056b92c40173c4017492c40176c0"
)
GOLDEN_META = (
    "4b4d4554000000010000000000000249680c4de7de001aa7617474656d7074a26d65a86368616e6e656c739284a5696e7075"
    "7400a9706172746974696f6ea0a973696c656e745f6d7300a977617465726d61726bfb84a5696e70757401a9706172746974"
    "696f6ea133a973696c656e745f6d7328a977617465726d61726b08a6636f6d6d697407ae636f6d6d69745f7265636f726473"
    "02ab636f6d6d69745f726f777302a8636f756e7465727381a4726f777303a5656e646564c3a86578706f7274656405a96669"
    "7273745f726f7703a567726f757001a468617368a23030a468656164a26d65ab6b65795f636f6c756d6e7391a16ba86b6579"
    "5f74797065a3737472a86c6173745f726f7704ad6c6173745f73746174655f696406a96c6f675f6279746573cd01f4a66c6f"
    "675f6964a36c6f67a86f70657261746f72a26f70ab706172616c6c656c69736d02a870726576696f7573a3796f75af70726f"
    "63657373696e675f74696d6509a7736b697070656400a673746174657381a16e82a2696401a6736368656d6180a777616974"
    "696e67918ea7617474656d7074a3796f75a86368616e6e656c739184a5696e70757400a9706172746974696f6ea0a973696c"
    "656e745f6d7300a977617465726d61726bf9a8636f756e74657273920103a7656e747269657302a468617368a23031a86b65"
    "795f74797065a3737472a870726576696f7573a474686579af70726f63657373696e675f74696d6508a77265636f72647303"
    "a4726f777301a873657175656e636506a7736b697070656400a6737461746573c0a977617465726d61726bf9a97761746572"
    "6d61726bfb"
)


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
    assert ROW.hex() == GOLDEN_ROW
    assert META_RECORD.hex() == GOLDEN_META
    assert decode_meta(META_RECORD, "here") == FULL_META


def test_unknown_blocks_and_uneven_columns_stop_a_reader():
    for blocks in ([[3, [[], [], []]]], [[1, [[b"\x01"], [], []]]], [[1, [[b"\x01"], [b"", b""], [None]]]]):
        payload = msgspec.msgpack.encode([1, True, "", "", blocks])
        with pytest.raises(CorruptionError, match="here"):
            decode_row(frame(b"KSEG", 1, payload), "here")
