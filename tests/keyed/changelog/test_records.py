"""The records of a changelog: round trip, their bytes as they have always been, and damage of every kind."""

from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.changelog import model
from keyed.changelog.directory.disk import OpenFile
from keyed.changelog.directory.segment_file import Segment, SegmentFile
from keyed.codec.frames import frame
from keyed.codec.keys import encode_key
from keyed.codec.state_schema import StateSchema
from keyed.content.addresses import PLAIN, TIMER_EVENT, encode_time, state_prefix, timer_prefix, timer_sub
from keyed.content.blocks import Change, TableBlock
from keyed.content.contents import hash_sum, hash_text
from keyed.errors import CorruptionError

GOLDEN = Path(__file__).parent / "golden"
HEADER = model.LogHeader("0123456789abcdef0123456789abcdef", "totals", 4, 1_700_000_000_000)
PREFIX = state_prefix(PLAIN, 1, encode_key("ann"), encode_key(None))
CHANGES: list[Change] = [
    (PREFIX, b"", b"\x05"),
    (state_prefix(PLAIN, 2, encode_key("ann"), encode_key((0, 10))), encode_key("x"), None),
    (timer_prefix(TIMER_EVENT, encode_key("bob")), timer_sub(1000), encode_time(1000)),
]
COMMIT = model.Commit(
    log_id=HEADER.log_id,
    group=2,
    sequence=7,
    attempt="attempt 7",
    previous="attempt 6",
    source_log="source",
    records=5,
    entries=4,
    hash=hash_text(hash_sum(CHANGES)),
    watermark=-(2**63),
    processing_time=1_700_000_000_000,
    states={"total": {"id": 1, "schema": StateSchema.of("total", "value", None, int).to_json()}},
    counters={"rows_in": 3},
    key_columns=["name"],
    key_type="str",
    channels=[model.Channel(0, "", -5), model.Channel(1, "3", 8, 40)],
)
TABLE = TableBlock(3, 2, b"removed", b"written")


def segment(commit=COMMIT, blocks=(CHANGES, TABLE)):
    """The bytes of a segment."""
    return b"".join(Segment(commit, blocks))


RECORDS: dict[str, tuple[Any, Any, Any]] = {
    "header": (lambda: model.encode_header(HEADER), model.decode_header, HEADER),
    "commit": (lambda: model.encode_commit(COMMIT), model.decode_commit, COMMIT),
    "position": (
        lambda: model.encode_position(7, b"where the sources are"),
        model.decode_position,
        (7, b"where the sources are"),
    ),
    "kept": (
        lambda: model.encode_kept("files-0", b"what has been read"),
        model.decode_kept,
        ("files-0", b"what has been read"),
    ),
}


def read(path, data):
    """The marker and the content of a segment."""
    path.write_bytes(data)
    with OpenFile(path) as file:
        found = SegmentFile(file)
        commit = found.commit()
        return commit, list(found.blocks()) if commit else []


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_what_they_were(name):
    # A change here needs a new version of the record.
    encode, decode, value = RECORDS[name]
    golden = bytes.fromhex((GOLDEN / f"{name}.hex").read_text())
    assert encode() == golden
    assert decode(golden, "here") == value


def test_segments_are_what_they_were(tmp_path):
    golden = bytes.fromhex((GOLDEN / "segment.hex").read_text())
    assert segment() == golden
    assert read(tmp_path / "s", golden) == (COMMIT, [CHANGES, TABLE])


def test_bases_are_what_they_were(tmp_path):
    base = attrs.evolve(COMMIT, snapshot=True, records=2)
    live = sorted(change for change in CHANGES if change[2] is not None)
    golden = bytes.fromhex((GOLDEN / "base.hex").read_text())
    assert segment(base, [live]) == golden
    assert read(tmp_path / "s", golden) == (base, [live])


@given(
    st.lists(
        st.lists(
            st.tuples(st.binary(min_size=1, max_size=9), st.binary(max_size=4), st.none() | st.binary(max_size=9)),
            max_size=5,
        )
    )
)
def test_a_segment_comes_back(tmp_path_factory, blocks):
    data = segment(attrs.evolve(COMMIT, records=0), blocks)
    commit, found = read(tmp_path_factory.getbasetemp() / "segment", data)
    assert commit is not None
    assert found == [block for block in blocks if block]
    assert commit.records == sum(map(len, blocks))


@pytest.mark.parametrize(("name", "number"), [("header", "parallelism"), ("commit", "sequence"), ("commit", "records")])
def test_numbers_out_of_range(name, number):
    _, decode, value = RECORDS[name]
    fields = attrs.asdict(value) | {number: -1}
    kind = {"header": b"KCLH", "commit": b"KCLC"}[name]
    with pytest.raises(CorruptionError, match="here"):
        decode(frame(kind, 1, msgspec.msgpack.encode(fields)), "here")
