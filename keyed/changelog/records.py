"""The records that all changelogs share: header, commit marker, positions, named data.

Each is a frame (`keyed.codec.frames`), version 1, whose payload is msgpack:

    kind   payload
    KCLH   the fields of `LogHeader` as a map
    KCLC   the fields of `Commit` as a map
    KCLP   [sequence: int, position: bytes]
    KCLK   [name: str, data: bytes]
    KCLQ   [[sequence: int, position: bytes], ...]

A bundle, ``KCLQ``, has the positions after several batches whose commits are exported together, in order. It is stored
as the position after the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keyed.changelog.model import Changelog, Commit, LogHeader
from keyed.codec.frames import RecordFormat
from keyed.errors import ChangelogDiverged, ChangelogError, CorruptionError

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


_KIND = b"KCLQ"
_BUNDLE: RecordFormat[list[tuple[int, bytes]]] = RecordFormat(_KIND, 1, list[tuple[int, bytes]])
encode_bundle = _BUNDLE.encode
decode_bundle = _BUNDLE.decode


def put_positions(changelog: Changelog, positions: Sequence[tuple[int, bytes]]) -> None:
    """Store positions after batches in one record. Storing the same ones again has no effect.

    Args:
        changelog: The changelog.
        positions: Sequences and positions, in order.

    Raises:
        ChangelogDiverged: Another position is stored for the last sequence.
        ChangelogError: They cannot be written.
    """
    sequence, last = positions[-1]
    try:
        changelog.put_position(sequence, last if len(positions) == 1 else encode_bundle(list(positions)))
    except ChangelogDiverged:
        # An earlier run with another export interval may have stored it with others.
        if next(all_positions(changelog, sequence - 1), None) != (sequence, last):
            raise


def all_positions(changelog: Changelog, after: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the positions after a sequence, in order, also those stored together with a later one.

    Raises:
        CorruptionError: One is damaged.
    """
    for sequence, data in changelog.positions(after):
        bundle = [(sequence, data)]
        if data[: len(_KIND)] == _KIND:
            bundle = decode_bundle(data, f"positions up to commit {sequence} in {changelog}")
        for number, position in bundle:
            if number > after:
                yield number, position
                after = number
