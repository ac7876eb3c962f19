"""Where a query of the local runtime stands in its source.

The position is committed with each batch, and logged into the changelogs of the query before the batch is exported, so
that a restored query goes on where the batch ended. It is a frame (`keyed.codec.frames`) of kind ``KRUN``, version 1,
whose payload is msgpack of the fields of `Position` as a map.
"""

from __future__ import annotations

import attrs
import msgspec

from keyed.codec.frames import frame, unframe
from keyed.errors import CorruptionError

__all__ = ["Position", "decode_position", "encode_position", "is_position"]

_KIND = b"KRUN"
_VERSION = 1


@attrs.define
class Position:
    """The runner's own record.

    Attributes:
        operators: Names of the operators in order.
        batches: Batches committed so far; the next batch has this id.
        rows: Rows of the source consumed so far.
        ended: Whether the input has ended.
    """

    operators: list[str]
    batches: int = 0
    rows: int = 0
    ended: bool = False


def encode_position(position: Position) -> bytes:
    """The record of a position."""
    return frame(_KIND, _VERSION, msgspec.msgpack.encode(position))


def decode_position(record: bytes, where: str) -> Position:
    """Decode a record.

    Raises:
        CorruptionError: It is damaged, or no position of a local run.
    """
    _, payload = unframe(_KIND, record, where=where, newest=_VERSION)
    try:
        return msgspec.msgpack.decode(payload, type=Position)
    except (ValueError, RecursionError) as error:
        raise CorruptionError(f"malformed position: {error}", where=where) from error


def is_position(record: bytes | None) -> bool:
    """Whether a record of a changelog is a position of this runtime, and not of another one."""
    return record is not None and record.startswith(_KIND)
