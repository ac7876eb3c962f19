"""A changelog in a SQLite database: an example of a third-party changelog.

`python -m examples.sqlite_changelog counts.db` runs a counter, records its changes in the database, one row per
commit, and resumes from the database alone.
`keyed.testing.changelog_conformance` has the contract of changelogs.
"""

from __future__ import annotations

import sqlite3
import sys
import time
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import attrs
import msgspec

import keyed
from keyed.changelog.model import Blocks, Commit, LogHeader, decode_commit, encode_commit, why_not_next
from keyed.codec.frames import RecordFormat
from keyed.content.blocks import decode_block, encode_block, records_of
from keyed.errors import ChangelogDiverged, ChangelogError

_TABLES = """
    create table if not exists header (log_id text, operator text, parallelism int, created_ms int);
    create table if not exists commits (grp int, sequence int, marker blob, content blob, primary key (grp, sequence));
    create table if not exists positions (sequence int primary key, data blob);
    create table if not exists kept (name text primary key, data blob);
"""
#: A version, a length and a checksum around the blocks, so that damage is detected.
_CONTENT: RecordFormat[Any] = RecordFormat(b"KSQB", 1, list[tuple[int, msgspec.Raw]])


@attrs.frozen
class SqliteChangelog:
    """A `keyed.Changelog` in one database file. It holds data only, because it is sent to the workers.

    Args:
        path: The file; the first batch creates it.
    """

    path: str

    @contextmanager
    def opened(self) -> Generator[sqlite3.Connection]:
        """Open the database, for each use, because threads and processes cannot share a connection."""
        try:
            with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as database:
                database.executescript(_TABLES)
                yield database
        except sqlite3.Error as error:
            raise ChangelogError(f"{self.path} cannot be read or written: {error}") from error

    def prepare(self, operator: str, parallelism: int) -> LogHeader:
        """See `keyed.Changelog.prepare`."""
        with self.opened() as database:
            database.execute("begin immediate")
            if database.execute("select * from header").fetchone() is None:
                row = (uuid.uuid4().hex, operator, parallelism, int(time.time() * 1000))
                database.execute("insert into header values (?, ?, ?, ?)", row)
            header = LogHeader(*database.execute("select * from header").fetchone())
            database.execute("commit")
        if (header.operator, header.parallelism) != (operator, parallelism):
            raise ChangelogError(
                f"{self.path} is the changelog of {header.operator!r} with {header.parallelism} key groups, the query "
                f"has {operator!r} with {parallelism}; give another file, and restore_from= this one"
            )
        return header

    def header(self) -> LogHeader | None:
        """See `keyed.Changelog.header`."""
        with self.opened() as database:
            row = database.execute("select * from header").fetchone()
        return None if row is None else LogHeader(*row)

    def writer(self, group: int) -> Group:
        """See `keyed.Changelog.writer`."""
        return self.reader(group)

    def reader(self, group: int) -> Group:
        """See `keyed.Changelog.reader`."""
        header = self.header()
        if header is None or not 0 <= group < header.parallelism:
            raise ChangelogError(f"{self.path} has no key group {group}: nothing was written to it")
        return Group(self, header.log_id, group)

    def put_position(self, sequence: int, data: bytes) -> None:
        """See `keyed.Changelog.put_position`."""
        self._put("positions", "sequence", sequence, data)

    def positions(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """See `keyed.Changelog.positions`."""
        with self.opened() as database:
            found = database.execute("select * from positions where sequence > ? order by 1", (after,)).fetchall()
        yield from found

    def keep(self, name: str, data: bytes) -> None:
        """See `keyed.Changelog.keep`."""
        self._put("kept", "name", name, data)

    def forget(self, names: Iterable[str]) -> None:
        """See `keyed.Changelog.forget`."""
        with self.opened() as database:
            database.executemany("delete from kept where name = ?", [(name,) for name in names])

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """See `keyed.Changelog.kept`."""
        with self.opened() as database:
            found = database.execute("select * from kept order by 1").fetchall()
        yield from found

    def _put(self, table: str, column: str, name: int | str, data: bytes) -> None:
        """Write a value once; writing it again changes nothing."""
        with self.opened() as database:
            database.execute(f"insert or ignore into {table} values (?, ?)", (name, data))  # noqa: S608 - of the two
            there = database.execute(f"select data from {table} where {column} = ?", (name,)).fetchone()  # noqa: S608
        if there[0] != data:
            raise ChangelogDiverged(f"{self.path}: other {table} of {name if isinstance(name, str) else name - 1}")


@attrs.frozen
class Group:
    """The log of one key group, for writers and readers."""

    log: SqliteChangelog
    log_id: str
    group: int

    def last(self) -> Commit | None:
        """See `keyed.changelog.ChangelogReader.last`."""
        with self.log.opened() as database:
            return self._last(database)

    def _last(self, database: sqlite3.Connection) -> Commit | None:
        query = "select sequence, marker from commits where grp = ? order by sequence desc limit 1"
        row = database.execute(query, (self.group,)).fetchone()
        return None if row is None else self._marker(*row)

    def _marker(self, sequence: int, marker: bytes) -> Commit:
        return decode_commit(marker, f"{self.log.path}, key group {self.group}, commit {sequence}")

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        """See `keyed.changelog.ChangelogWriter.append`."""
        content = list(blocks)
        commit = attrs.evolve(commit, log_id=self.log_id, group=self.group, records=sum(map(records_of, content)))
        encoded = _CONTENT.encode([(kind, body) for block in content for kind, _, body in encode_block(block)])
        with self.log.opened() as database:
            # One writer at a time: the second one finds the rows of the first.
            database.execute("begin immediate")
            query = "select sequence, marker from commits where grp = ? and sequence = ?"
            row = database.execute(query, (self.group, commit.sequence)).fetchone()
            there = None if row is None else self._marker(*row)
            if there is not None and there.attempt == commit.attempt:
                return there
            if (reason := why_not_next(commit, self._last(database))) is not None:
                raise ChangelogDiverged(f"{self.log.path}: {reason}; give changelog= an empty file")
            row = (self.group, commit.sequence, encode_commit(commit), encoded)
            database.execute("insert into commits values (?, ?, ?, ?)", row)
            database.execute("commit")
        return commit

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[tuple[Commit, Blocks]]:
        """See `keyed.changelog.ChangelogReader.commits`."""
        query = "select * from commits where grp = ? and sequence > ? and sequence <= ? order by sequence"
        with self.log.opened() as database:
            for _, sequence, marker, content in database.execute(query, (self.group, after, until or 2**62)):
                where = f"{self.log.path}, key group {self.group}, commit {sequence}"
                blocks = (decode_block(kind, body, where) for kind, body in _CONTENT.decode(content, where))
                yield self._marker(sequence, marker), blocks

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Count(keyed.KeyedProcessFunction):
    """Counts the elements of each key."""

    count = keyed.ValueState(int, default=0)

    def process_element(self, value: str, ctx: keyed.Context) -> Iterator[tuple[str, int]]:
        """Yield the key and its count."""
        self.count.update(self.count.value() + 1)
        yield value, self.count.value()


def main(path: str) -> None:
    """Run the counter twice; the second run restores the state from the database."""
    words = keyed.stream(["to", "be", "or", "not", "to", "be"]).key_by(str)
    print(words.process(Count(), changelog=SqliteChangelog(path)).run(rows_per_batch=2, drain=False).values)
    more = keyed.stream(["to", "be", "or", "not", "to", "be", "is"]).key_by(str)
    print(more.process(Count(), restore_from=SqliteChangelog(path)).run(drain=False).values)


if __name__ == "__main__":
    main(sys.argv[1])
