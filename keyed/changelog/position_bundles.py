"""Positions after several batches, stored in a changelog as one, when their commits are exported together.

The bundle is stored under the last of their sequences. It is a frame (`keyed.codec.frames`) of kind ``KCLQ``, version
1, whose payload is msgpack of ``[[sequence, position], ...]``, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keyed.changelog.model import Changelog
from keyed.codec.frames import RecordFormat
from keyed.errors import ChangelogDiverged

_KIND = b"KCLQ"
_RECORD: RecordFormat[list[tuple[int, bytes]]] = RecordFormat(_KIND, 1, list[tuple[int, bytes]])
encode_bundle = _RECORD.encode
decode_bundle = _RECORD.decode


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
