"""Ownership of destinations: what a query writes has the query's id and the batch's.

A query has an id, which is kept with its checkpoint; without a checkpoint each run is a query. A query that is restored
from the changelogs of another one has a new id, and knows that of the earlier one. A target records the id of the query
and that of its last batch, in the same transaction as the rows: a folder of Parquet files in a mark and the names of
files, a table of a lakehouse in ``keyed-<query id>``, a topic in a committed offset. A batch whose id is not above the
recorded one was written before.

A mark is a frame (`keyed.codec.frames`) of kind ``KSNK``, version 1, whose payload is msgpack of
``{"queries": [id, ...]}``: the query, after those that it was restored from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from keyed.codec.frames import RecordFormat


@attrs.frozen
class Owner:
    """A query as the owner of the targets that it writes to.

    Attributes:
        queries: Id of the query, after those of the queries that it was restored from.
        next_batch: Id of the batch that it writes next.
        batches: Number of batches that the query itself has committed.
    """

    queries: Sequence[str]
    next_batch: int = 0
    batches: int = 0

    @property
    def query(self) -> str:
        """Id of the query."""
        return self.queries[-1]

    @property
    def earlier(self) -> Sequence[str]:
        """Ids of the queries that it was restored from."""
        return self.queries[:-1]


#: Of what keyed records in tables.
PREFIX = "keyed-"


def marks_of(query: str, batch_id: int, note: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a commit of a batch, with a note."""
    return {PREFIX + name: value for name, value in {"query": query, "batch": str(batch_id), **note}.items()}


def note_of(query: str, commits: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the note of the newest commit of a query; empty if the commits, the newest first, have none."""
    newest = next((each for each in commits if each.get(PREFIX + "query") == query), {})
    return {name.removeprefix(PREFIX): value for name, value in newest.items() if name.startswith(PREFIX)}


@attrs.frozen
class _Mark:
    queries: list[str]


_RECORD: RecordFormat[_Mark] = RecordFormat(b"KSNK", 1, _Mark)


def encode_mark(queries: Sequence[str]) -> bytes:
    """Return the mark of a query."""
    return _RECORD.encode(_Mark([*queries]))


def decode_mark(mark: bytes, where: str) -> list[str]:
    """Return the ids in a mark.

    Raises:
        CorruptionError: It is damaged.
    """
    return _RECORD.decode(mark, where).queries
