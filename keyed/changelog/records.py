"""The records of a changelog that are the same wherever it is kept: header, commit marker, position, what is kept.

Each is a frame (`keyed.codec.frames`), version 1, whose payload is msgpack:

    kind   payload
    KCLH   the fields of `LogHeader` as a map
    KCLC   the fields of `Commit` as a map
    KCLP   [sequence: int, position: bytes]
    KCLK   [name: str, data: bytes]

Fields added later need a default, and readers pass over those that they do not know.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from keyed.changelog.model import Commit, LogHeader
from keyed.codec.frames import frame, unframe
from keyed.errors import CorruptionError

__all__ = [
    "COMMIT",
    "decode_commit",
    "decode_header",
    "decode_kept",
    "decode_position",
    "encode_commit",
    "encode_header",
    "encode_kept",
    "encode_position",
]

COMMIT = b"KCLC"
"""The kind of the frame of a commit marker."""

_HEADER, _POSITION, _KEPT = b"KCLH", b"KCLP", b"KCLK"
_VERSION = 1
_T = TypeVar("_T")
_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(LogHeader)
_decode_commit = msgspec.msgpack.Decoder(Commit)
_decode_position = msgspec.msgpack.Decoder(tuple[int, bytes])
_decode_kept = msgspec.msgpack.Decoder(tuple[str, bytes])


def encode_header(header: LogHeader) -> bytes:
    """The record of a header."""
    return frame(_HEADER, _VERSION, _encode(header))


def decode_header(record: bytes, where: str) -> LogHeader:
    """Decode a header.

    Raises:
        CorruptionError: Bad checksum, a format that is not known, or malformed fields.
    """
    header = _decoded(_HEADER, record, where, _decode_header)
    if header.format != 1:
        raise CorruptionError(
            f"format {header.format} of a changelog is unknown: a newer program wrote it", where=where
        )
    if header.parallelism < 1:
        raise CorruptionError(f"malformed header: {header.parallelism} key groups", where=where)
    return header


def encode_commit(commit: Commit) -> bytes:
    """The record of a commit marker."""
    return frame(COMMIT, _VERSION, _encode(commit))


def decode_commit(record: bytes, where: str) -> Commit:
    """Decode a commit marker.

    Raises:
        CorruptionError: Bad checksum, unknown version or malformed fields.
    """
    commit = _decoded(COMMIT, record, where, _decode_commit)
    if commit.sequence < 1 or commit.group < 0 or commit.records < 0 or commit.entries < 0:
        raise CorruptionError("malformed commit marker: a number is out of range", where=where)
    return commit


def encode_position(sequence: int, position: bytes) -> bytes:
    """The record of a position."""
    return frame(_POSITION, _VERSION, _encode((sequence, position)))


def decode_position(record: bytes, where: str) -> tuple[int, bytes]:
    """Decode a position.

    Raises:
        CorruptionError: Bad checksum, unknown version or malformed fields.
    """
    return _decoded(_POSITION, record, where, _decode_position)


def encode_kept(name: str, data: bytes) -> bytes:
    """The record of something that is kept."""
    return frame(_KEPT, _VERSION, _encode((name, data)))


def decode_kept(record: bytes, where: str) -> tuple[str, bytes]:
    """Decode something that is kept.

    Raises:
        CorruptionError: Bad checksum, unknown version or malformed fields.
    """
    return _decoded(_KEPT, record, where, _decode_kept)


def _decoded(kind: bytes, record: bytes, where: str, decoder: msgspec.msgpack.Decoder[_T]) -> _T:
    _, payload = unframe(kind, record, where=where, newest=_VERSION)
    try:
        return decoder.decode(payload)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"malformed record {kind.decode()}: {error}", where=where) from error
