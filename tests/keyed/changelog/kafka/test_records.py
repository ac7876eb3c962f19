"""The records of a topic: what keyed did not write is refused as such."""

from __future__ import annotations

import struct

import pytest

from keyed.changelog.kafka.kafka_records import base_of, sequence_of
from keyed.content.table_entries import tables_of
from keyed.errors import CorruptionError

NUMBER = struct.pack(">Q", 7)
HEADERS = [("group", struct.pack(">I", 0)), ("sequence", NUMBER), ("batch", b"a"), ("base", NUMBER)]


def test_headers_are_read():
    assert (sequence_of(HEADERS, "here"), base_of(HEADERS, "here")) == (7, 7)


@pytest.mark.parametrize(
    "headers",
    [None, [], HEADERS[:1], [HEADERS[0], ("sequence", None)], [HEADERS[0], ("sequence", b"7")], HEADERS[::-1]],
)
def test_headers_of_others_are_refused(headers):
    with pytest.raises(CorruptionError, match=r"no header 'sequence'.* here"):
        sequence_of(headers, "here")


@pytest.mark.parametrize("state", [None, 5, {}, {"id": 1}, {"id": 1, "schema": 5}, {"schema": {"kind": "table"}}])
def test_malformed_descriptions_of_states_are_refused(state):
    with pytest.raises(CorruptionError, match=r"does not describe.* here"):
        tables_of({"s": state}, "here")
