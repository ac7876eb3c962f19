"""Conformance tests for exactly-once sinks, those of `keyed` and functions of third parties.

Subclass `SinkConformance`, define how the sink is created and read, and let a test runner collect it, as with
`keyed.testing.store_conformance`. The sink is run in the local runtime.
"""

# A test's name states its claim.
# ruff: noqa: D102

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keyed
from keyed.arrow.write import table_of
from keyed.base.schemas import schema_of
from keyed.destinations.choose import SinkLike, sink_of
from keyed.destinations.ownership import Owner
from keyed.destinations.sink import Sink, SinkBatch
from keyed.errors import KeyedError, QueryFailed
from keyed.rows import row_class

if TYPE_CHECKING:
    import pyarrow as pa


_ROW = row_class(("name", "n"))
_SCHEMA = schema_of("name string, n bigint")
_DIES = keyed.OutputTag("dies", "n bigint")


class _Numbers(keyed.KeyedProcessFunction):
    """Emits each number with its name, also to a side output; nothing for negative ones."""

    def process_element(self, value: int, ctx: keyed.Context) -> Iterator[Any]:
        if value >= 0:
            yield f"number {value}", value
            yield _DIES, (value,)


class _Batch(SinkBatch):
    """So many rows."""

    def __init__(self, count: int) -> None:
        self._count = count

    @property
    def rows(self) -> list[Any]:
        return [_ROW((f"number {n}", n)) for n in range(self._count)]

    @property
    def table(self) -> pa.Table | None:
        return table_of(self.rows, _SCHEMA) if self._count else None


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
        batch = _Batch(count)
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
        found = sorted((n, name) for name, n in self.read(path / "sink"))
        assert found == [(n, f"number {n}") for n in numbers], found
