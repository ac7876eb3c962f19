"""Frames: the kind, layout version, length and checksum of every persisted record.

Byte layout, big-endian::

    0   kind     4 bytes, ASCII, for example b"KSEG"
    4   version  u32, of the payload's layout, counted from 1
    8   length   u64, of the payload
    16  crc32    u32, of the 16 bytes before and of the payload
    20  payload

The checksum finds accidents (torn writes, flipped bits, a file cut short), not attacks. Records of before keyed 0.1
have their version in the upper half of the number, and are refused.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Generic, TypeVar

import msgspec

from keyed.errors import CorruptionError

T = TypeVar("T")

_HEAD = struct.Struct(">4sIQ")
_CRC = struct.Struct(">I")

FRAME_OVERHEAD = _HEAD.size + _CRC.size
"""Bytes that a frame adds to its payload."""


class RecordFormat(Generic[T]):
    """A kind of record whose payload is msgpack of values of one type: encodes and decodes it.

    Args:
        kind: Four bytes that identify this kind of record.
        version: Version of the payload's layout.
        type: Type of the values.
    """

    def __init__(self, kind: bytes, version: int, type: Any) -> None:
        self.kind = kind
        self._version = version
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(type).decode

    def encode(self, value: T) -> bytes:
        """Encode a value as a framed record."""
        return frame(self.kind, self._version, self._encode(value))

    def decode(self, record: bytes, where: str) -> T:
        """Decode the record that fills ``record``.

        Raises:
            CorruptionError: Another kind or version, a wrong checksum, or a payload of another type.
        """
        try:
            value: T = self._decode(unframe(self.kind, record, where=where, version=self._version))
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"a {_name(self.kind)} record is malformed: {error}", where=where) from error
        return value


def frame(kind: bytes, version: int, payload: bytes) -> bytes:
    """Frame a payload.

    Args:
        kind: Four bytes that identify this kind of record.
        version: Version of the payload's layout, 1 to 65535.
        payload: The record.
    """
    assert len(kind) == 4, f"frame kind {kind!r} is not four bytes long"
    assert 1 <= version <= 0xFFFF, f"frame version {version} is not in 1 to 65535"
    head = _HEAD.pack(kind, version, len(payload))
    return b"".join((head, _CRC.pack(zlib.crc32(payload, zlib.crc32(head))), payload))


def frame_length(head: bytes) -> int:
    """Return the length of the payload from the first bytes of a frame, unchecked.

    Args:
        head: At least `FRAME_OVERHEAD` bytes.
    """
    length: int = _HEAD.unpack_from(head)[2]
    return length


def unframe(kind: bytes, data: bytes, *, where: str, offset: int | None = None, version: int = 1) -> bytes:
    """Read the frame that fills ``data``.

    Args:
        kind: The kind that is expected.
        data: The bytes.
        where: The file, table or record of the bytes, for the error.
        offset: Offset of the bytes in it, if they are a part of it.
        version: The version that the caller reads.

    Returns:
        The payload.

    Raises:
        CorruptionError: Another kind or version, a wrong length or a wrong checksum.
    """
    name, size = _name(kind), len(data) - FRAME_OVERHEAD
    if size < 0:
        raise CorruptionError(f"a {name} record is cut short: {len(data)} bytes are left", where=where, offset=offset)
    head, number, length = _HEAD.unpack_from(data)
    payload, problem = data[FRAME_OVERHEAD:], None
    if head != kind:
        problem = f"expected a {name} record, found {head!r}"
    elif length > size:
        problem = f"a {name} record is cut short: {size} of {length} bytes are there"
    elif length < size:
        problem = f"{size - length} bytes follow the {name} record"
    elif _CRC.unpack_from(data, _HEAD.size)[0] != zlib.crc32(payload, zlib.crc32(data[: _HEAD.size])):
        problem = f"the checksum of a {name} record does not match"
    # After the checksum, so that a flipped bit does not count as another version.
    elif number != version:
        problem = f"a {name} record has {refusal_of_version(number, version)}"
    if problem is not None:
        raise CorruptionError(problem, where=where, offset=offset)
    return payload


def refusal_of_version(actual: int, version: int) -> str:
    """Return the reason why a record of another version is refused, and the remedy.

    Args:
        actual: The version in the record.
        version: The version that this program reads.
    """
    number = f"{actual >> 16} of before keyed 0.1" if actual >> 16 else f"{actual}"
    return (
        f"version {number}, and this program reads version {version}: start from a new checkpoint and an empty "
        "changelog, or run the keyed that wrote the record"
    )


def _name(kind: bytes) -> str:
    return kind.decode("ascii", "backslashreplace")
