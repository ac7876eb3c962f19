"""Conformance tests for exactly-once sinks, those of `keyed` and functions of third parties.

Subclass `SinkConformance`, or `CopyConformance` for a sink of copies of state tables, define how the sink is created
and read, and let a test runner collect it, as with `keyed.testing.store_conformance`. The sink is run in the local
runtime.
"""

# A test's name states its claim.
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

import keyed
from keyed.arrow.write import arrow_schema, table_of
from keyed.base.schemas import schema_of
from keyed.destinations.function import SinkLike, sink_of
from keyed.destinations.sink import Owner, Sink, SinkBatch, SinkWriter, TableChanges
from keyed.errors import KeyedError, QueryFailed
from keyed.rows import row_class

_ROW = row_class(("name", "n"))
_SCHEMA = schema_of("name string, n bigint")
_DIES = keyed.OutputTag("dies", "n bigint")


class _Numbers(keyed.KeyedProcessFunction):
    """Emits each number with its name, also to a side output; nothing for negative ones."""

    def process_element(self, value: int, ctx: keyed.Context) -> Iterator[Any]:
        if value >= 0:
            yield f"number {value}", value
            yield _DIES, (value,)


@attrs.frozen
class _Rows(SinkBatch):
    """Rows, or dicts of the columns that they have."""

    _content: list[Any]

    @property
    def rows(self) -> list[Any]:
        return self._content

    @property
    def table(self) -> pa.Table | None:
        if not self._content:
            return None
        names = [name for name in _SCHEMA.names if not isinstance(self._content[0], dict) or name in self._content[0]]
        schema = pa.schema([arrow_schema(_SCHEMA).field(name) for name in names])
        return pa.Table.from_pylist([{name: row[name] for name in names} for row in self._content], schema)


class SinkConformance:
    """Contract of a sink that holds each row exactly once."""

    def make_sink(self, path: Path) -> SinkLike:
        """Return a sink, new or in the state after another run.

        Args:
            path: A folder for this test alone.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define make_sink")

    def read(self, path: Path) -> list[tuple[str, int]]:
        """Return the rows that the sink holds, in any order: pairs of a text and a number."""
        raise NotImplementedError(f"{type(self).__name__} does not define read")

    def test_all_rows_are_there(self, tmp_path: Path) -> None:
        self._run(tmp_path, range(7))
        self._expect(tmp_path, range(7))

    def test_a_run_that_goes_on_adds_its_rows(self, tmp_path: Path) -> None:
        for end in (3, 4, 9):
            self._run(tmp_path, range(end))
            self._expect(tmp_path, range(end))

    def test_batches_without_rows_change_nothing(self, tmp_path: Path) -> None:
        numbers = [-1, -1, 0, 1, -1, -1, 2, -1]
        self._run(tmp_path, numbers)
        self._expect(tmp_path, range(3))

    def test_a_batch_that_is_run_again_is_there_once(self, tmp_path: Path) -> None:
        for dies_at in (0, 1, 3):
            try:
                self._run(tmp_path, range(8), dies_at)
            except QueryFailed:
                continue
            raise AssertionError(f"batch {dies_at} did not die")
        self._run(tmp_path, range(8))
        self._expect(tmp_path, range(8))

    def test_a_batch_that_was_written_is_there_once_when_it_comes_again(self, tmp_path: Path) -> None:
        for repeated in (None, 0, 0):
            self._write(tmp_path, 3, repeated)
        self._expect(tmp_path, range(3))

    def test_a_batch_that_comes_again_without_rows_replaces_that_with_rows(self, tmp_path: Path) -> None:
        """Records are committed with state, so that they are the same when they come again."""
        if self._write(tmp_path, 3, None):
            self._write(tmp_path, 0, 0)
            self._expect(tmp_path, ())

    def test_another_query_is_refused_or_adds_its_rows(self, tmp_path: Path) -> None:
        """A function has no owner, and is not asked."""
        if not isinstance(self.make_sink(tmp_path / "sink"), Sink):
            return
        self._run(tmp_path, range(3))
        try:
            self._run(tmp_path, [10, 11], query="another")
        except KeyedError:
            self._expect(tmp_path, range(3))
        else:
            self._expect(tmp_path, [0, 1, 2, 10, 11])

    def _write(self, path: Path, count: int, repeated: int | None) -> bool:
        """Write batch 0 with so many rows twice, as a run does; return whether the sink replaces batches."""
        batch = _Rows([_ROW((f"number {n}", n)) for n in range(count)])
        writer = sink_of(self.make_sink(path / "sink")).open(Owner(["query"], batches=int(repeated == 0)), _SCHEMA)
        try:
            writer.claim(repeated)
            table = table_of([_ROW(("number 0", 0))], _SCHEMA)
            assert table is not None
            writer.prepare(table.schema)
            records = writer.pack(batch)
            for _ in range(2):
                writer.write(batch if records is None else records, 0)
        finally:
            writer.close()
            writer.close()
        return records is None

    def _run(self, path: Path, numbers: Any, dies_at: int | None = None, query: str = "checkpoint") -> None:
        """Run to the end of the numbers, two to a batch, or to a batch that dies after the sink has written it."""

        def dies(_: Any, batch: int) -> None:
            if batch == dies_at:
                raise OSError("the other sink is gone")

        output = keyed.stream(list(numbers)).key_by(lambda n: n % 3).process(_Numbers(), "name string, n bigint")
        sinks = output.to(self.make_sink(path / "sink")), output.side_output(_DIES).to(dies)
        keyed.run(*sinks, checkpoint=path / query, rows_per_batch=2, drain=False)

    def _expect(self, path: Path, numbers: Any) -> None:
        held = sorted((n, name) for name, n in self.read(path / "sink"))
        assert held == [(n, f"number {n}") for n in numbers], held


class _Names:
    """A state table of names and numbers. See `keyed.destinations.sink.CopiedTable`."""

    key: tuple[str, ...] = ("name",)
    digest = "names and numbers"

    def schema(self) -> pa.Schema:
        return arrow_schema(_SCHEMA)

    stored_schema = schema

    @property
    def columns(self) -> dict[str, pa.DataType | None]:
        return {field.name: field.type for field in self.schema()}


def _changes(upserts: Mapping[str, int], removed: Iterable[str] = (), *, replaces: bool = False) -> TableChanges:
    """Return changes, each row in a part of its own."""
    rows = (_Rows([{"name": name, "n": n}]) for name, n in upserts.items())
    keys = (_Rows([{"name": name}]) for name in removed)
    return TableChanges(_Names(), rows, keys, replaces)


class CopyConformance:
    """Contract of a sink that holds copies of state tables, for `keyed.tables.StateTable.replicate`."""

    def make_sink(self, path: Path) -> Sink:
        """Return a sink for rows with the key ``name``, new or in the state after another run."""
        raise NotImplementedError(f"{type(self).__name__} does not define make_sink")

    def read(self, path: Path) -> list[tuple[str, int]]:
        """Return the rows that the sink holds, in any order: pairs of the columns ``name`` and ``n``."""
        raise NotImplementedError(f"{type(self).__name__} does not define read")

    def test_changes_replace_and_remove_rows(self, tmp_path: Path) -> None:
        with self._open(tmp_path) as writer:
            assert writer.last_copy() == (0, {})
            assert self._commit(writer, 1, _changes({"a": 1, "b": 2, "c": 3}))
            self._expect_rows(tmp_path, a=1, b=2, c=3)
            assert self._commit(writer, 2, _changes({"b": 4, "d": 5}, ["a", "c"]))
            self._expect_rows(tmp_path, b=4, d=5)
            assert self._commit(writer, 3, _changes({}, ["b"]))
            self._expect_rows(tmp_path, d=5)

    def test_a_run_continues_after_the_last_transaction_and_its_note(self, tmp_path: Path) -> None:
        for number in range(3):
            with self._open(tmp_path) as writer:
                self._expect_last(writer, number)
                assert self._commit(writer, number + 1, _changes({"a": number}))
        self._expect_rows(tmp_path, a=2)

    def test_a_whole_table_replaces_all_rows(self, tmp_path: Path) -> None:
        with self._open(tmp_path) as writer:
            for number, rows in enumerate(({"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5}), 1):
                assert self._commit(writer, number, _changes(rows, replaces=True))
                self._expect_rows(tmp_path, **rows)
            # The columns of a table without rows may not be known.
            assert self._commit(writer, 3, TableChanges(None, replaces=True))
            self._expect_rows(tmp_path)
            assert self._commit(writer, 4, _changes({"e": 6}))
            self._expect_rows(tmp_path, e=6)

    def test_a_note_without_changes_leaves_the_rows(self, tmp_path: Path) -> None:
        with self._open(tmp_path) as writer:
            assert self._commit(writer, 1, _changes({"a": 1}))
            assert self._commit(writer, 2, TableChanges(None))
        self._expect_rows(tmp_path, a=1)
        with self._open(tmp_path) as writer:
            self._expect_last(writer, 2)

    def test_a_transaction_that_comes_again_or_out_of_order_is_not_written(self, tmp_path: Path) -> None:
        for _ in range(2):
            with self._open(tmp_path) as writer:
                writer.last_copy()
                self._commit(writer, 1, _changes({"a": 1}))
                for number in (1, 3):
                    assert not self._commit(writer, number, _changes({"a": 5, "b": 5}))
            self._expect_rows(tmp_path, a=1)

    def test_a_transaction_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        def failing() -> Iterator[SinkBatch]:
            yield _Rows([{"name": "b", "n": 2}])
            raise OSError("the table cannot be read")

        with self._open(tmp_path) as writer:
            assert self._commit(writer, 1, _changes({"a": 1}))
            with suppress(OSError):
                self._commit(writer, 2, TableChanges(_Names(), failing()))
                raise AssertionError("the error was lost")
        with self._open(tmp_path) as writer:
            self._expect_last(writer, 1)
        self._expect_rows(tmp_path, a=1)

    def test_one_of_two_writers_continues(self, tmp_path: Path) -> None:
        with self._open(tmp_path) as one:
            assert self._commit(one, 1, _changes({"a": 1}))
            with self._open(tmp_path) as other:
                other.last_copy()
                results = [self._tries(one, {"a": 2}), self._tries(other, {"a": 3})]
        assert sum(results) == 1, results
        self._expect_rows(tmp_path, a=2 if results[0] else 3)

    def test_the_copy_of_another_table_is_refused(self, tmp_path: Path) -> None:
        with self._open(tmp_path) as writer:
            assert self._commit(writer, 1, _changes({"a": 1}))
        with suppress(KeyedError), self._open(tmp_path, "job.others") as writer:
            assert writer.last_copy() is None
        self._expect_rows(tmp_path, a=1)

    @contextmanager
    def _open(self, path: Path, table: str = "job.names") -> Iterator[SinkWriter]:
        writer = self.make_sink(path / "sink").open_copy(Owner([table]))
        try:
            writer.claim()
            yield writer
        finally:
            writer.close()
            writer.close()

    def _commit(self, writer: SinkWriter, number: int, changes: TableChanges) -> bool:
        note = {"token": f"token {number}", "state-batch": str(number), "columns": _Names.digest}
        return writer.write_changes(changes, number, note)

    def _tries(self, writer: SinkWriter, rows: Mapping[str, int]) -> bool:
        """Write the second transaction; return whether it was written."""
        with suppress(KeyedError):
            return self._commit(writer, 2, _changes(rows))
        return False

    def _expect_last(self, writer: SinkWriter, number: int) -> None:
        last = writer.last_copy()
        assert last is not None
        assert last[0] == number, last
        expected = {"token": f"token {number}", "columns": _Names.digest} if number else {}
        assert {name: last[1][name] for name in expected} == expected, last

    def _expect_rows(self, path: Path, **rows: int) -> None:
        stored = sorted(self.read(path / "sink"))
        assert stored == sorted(rows.items()), stored
