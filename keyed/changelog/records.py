"""The records that all changelogs share: header, commit marker, position, named data.

Each is a frame (`keyed.codec.frames`), version 1, whose payload is msgpack:

    kind   payload
    KCLH   the fields of `LogHeader` as a map
    KCLC   the fields of `Commit` as a map
    KCLP   [sequence: int, position: bytes]
    KCLK   [name: str, data: bytes]
"""

from __future__ import annotations

from keyed.changelog.model import Commit, LogHeader
from keyed.codec.frames import RecordFormat
from keyed.errors import ChangelogError, CorruptionError

COMMIT = b"KCLC"
"""The kind of the frame of a commit marker."""

_HEADER: RecordFormat[LogHeader] = RecordFormat(b"KCLH", 1, LogHeader)
_COMMIT: RecordFormat[Commit] = RecordFormat(COMMIT, 1, Commit)
_POSITION: RecordFormat[tuple[int, bytes]] = RecordFormat(b"KCLP", 1, tuple[int, bytes])
_KEPT: RecordFormat[tuple[str, bytes]] = RecordFormat(b"KCLK", 1, tuple[str, bytes])
encode_header = _HEADER.encode
encode_commit = _COMMIT.encode
decode_position = _POSITION.decode
decode_kept = _KEPT.decode


def decode_header(record: bytes, where: str) -> LogHeader:
    """Decode a header.

    Raises:
        CorruptionError: Bad checksum, another version, or malformed fields.
    """
    try:
        header = _HEADER.decode(record, where)
    except ChangelogError as error:
        raise CorruptionError(str(error), where=where) from error
    if header.parallelism < 1:
        raise CorruptionError(f"malformed header: {header.parallelism} key groups", where=where)
    return header


def decode_commit(record: bytes, where: str) -> Commit:
    """Decode a commit marker.

    Raises:
        CorruptionError: Bad checksum, another version, or malformed fields.
    """
    commit = _COMMIT.decode(record, where)
    if commit.sequence < 1 or commit.group < 0 or commit.records < 0 or commit.entries < 0:
        raise CorruptionError("malformed commit marker: a number is out of range", where=where)
    return commit


def encode_position(sequence: int, position: bytes) -> bytes:
    """Return the record of a position."""
    return _POSITION.encode((sequence, position))


def encode_kept(name: str, data: bytes) -> bytes:
    """Return the record of named data."""
    return _KEPT.encode((name, data))
