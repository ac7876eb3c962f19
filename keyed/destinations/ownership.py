"""Ownership of destinations: what a query writes has the query's id and the batch's.

A query has an id, which is kept with its checkpoint; without a checkpoint each run is a query. A query that is restored
from the changelogs of another one has a new id, and knows that of the earlier one. A target records the id of the query
and that of its last batch, in the same transaction as the rows: a folder of Parquet files in a mark and the names of
files, a table of a lakehouse in ``keyed-<query id>`` and the properties of a commit, a topic in a committed offset. A
batch whose id is not above the recorded one was written before.

The mark of a folder is a frame (`keyed.codec.frames`) of kind ``KSNK``, version 1, whose payload is msgpack of
``{"queries": [id, ...]}``: the query, after those that it was restored from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    def continues(self, queries: Iterable[str]) -> bool:
        """Return true if it is one of these queries, or was restored from one."""
        return not {*queries}.isdisjoint(self.queries)


#: Of what keyed records in tables.
PREFIX = "keyed-"


@attrs.frozen
class BatchMark:
    """The last batch of a query, as a target records it in the transaction of the rows.

    Attributes:
        query: Id of the query.
        batch: Id of the batch; −1 before the first.
        note: Further properties.
    """

    query: str
    batch: int = -1
    note: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """The mark as properties of a commit."""
        values = {"query": self.query, "batch": str(self.batch), **self.note}
        return {PREFIX + name: value for name, value in values.items()}

    @classmethod
    def of_commits(cls, query: str, commits: Iterable[Mapping[str, Any]]) -> Iterator[BatchMark]:
        """Yield the marks of a query in the properties of commits."""
        for commit in commits:
            note = {name.removeprefix(PREFIX): value for name, value in commit.items() if name.startswith(PREFIX)}
            if note.pop("query", None) == query:
                yield cls(query, int(note.pop("batch")), note)

    @property
    def offset(self) -> tuple[int, str]:
        """The mark as a committed offset, that of the next batch, and its metadata, with the note's ``digest``."""
        return self.batch + 1, f"{self.query} {self.note.get('digest', '')}"

    @classmethod
    def of_offset(cls, offset: int, metadata: str) -> BatchMark:
        """Return the mark of an offset and its metadata. One that was set by hand has no digest."""
        query, _, digest = metadata.partition(" ")
        return cls(query, offset - 1, {"digest": digest} if digest else {})


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
