"""Frames: round trip, damage, other kinds and versions, and the layout itself."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.codec.frames import FRAME_OVERHEAD, frame, unframe
from keyed.errors import CorruptionError
from tests.keyed.codec.support import PICKLES, mutations

KIND = b"KTST"
PAYLOADS = st.binary(max_size=50)
FRAMES = st.builds(lambda payload: frame(KIND, 1, payload), PAYLOADS)


@given(st.integers(1, 0xFFFF), PAYLOADS)
def test_a_frame_comes_back(version, payload):
    framed = frame(KIND, version, payload)
    assert len(framed) == len(payload) + FRAME_OVERHEAD
    assert unframe(KIND, framed, where="here", version=version) == payload


@given(FRAMES.flatmap(lambda framed: st.tuples(st.just(framed), mutations(st.just(framed)))))
def test_a_damaged_frame_is_corruption(frames):
    framed, damaged = frames
    if damaged != framed:
        with pytest.raises(CorruptionError):
            unframe(KIND, damaged, where="here")


@pytest.mark.parametrize("data", [*PICKLES, b"", b"KTST"])
def test_other_bytes_are_corruption(data):
    with pytest.raises(CorruptionError):
        unframe(KIND, data, where="here")


def before_0_1(version):
    """A frame in the former layout."""
    head = struct.pack(">4sHHQ", KIND, version, 0, 0)
    return head + struct.pack(">I", zlib.crc32(head))


def test_the_error_says_where_and_what():
    good = frame(KIND, 1, b"payload")
    for data, expected in (
        (frame(b"KOTH", 1, b""), r"expected a KTST record, found b'KOTH' in log 7 at byte 27"),
        (good[:10], r"a KTST record is cut short: 10 bytes are left in log 7 at byte 27"),
        (good[:-1], r"a KTST record is cut short: 6 of 7 bytes are there in log 7 at byte 27"),
        (good[:-1] + b"?", r"the checksum of a KTST record does not match in log 7 at byte 27"),
        (frame(KIND, 2, b""), r"has version 2, and this program reads version 1: .* log 7 at byte 27"),
        (before_0_1(3), r"has version 3 of before keyed 0.1, and this program reads version 1: .* log 7 at byte 27"),
        (good + b"ab", r"2 bytes follow the KTST record in log 7 at byte 27"),
    ):
        with pytest.raises(CorruptionError, match=expected) as raised:
            unframe(KIND, data, where="log 7", offset=27)
        assert (raised.value.where, raised.value.offset) == ("log 7", 27)


def test_the_layout_is_as_documented():
    framed = bytes.fromhex("4b545354 00000002 0000000000000003 937fcf5a") + b"abc"
    assert frame(KIND, 2, b"abc") == framed
    assert unframe(KIND, framed, where="here", version=2) == b"abc"
