"""Tests of local stores with table states, part of `keyed.testing.store_conformance.LocalStoreConformance`."""

# A test's name states its claim; the random numbers are for tests.
# ruff: noqa: D102, S311

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from keyed.content.blocks import Change, TableDelta
from keyed.content.local_store import LocalStore

_KEYS = ("k", "t")
_Rows = dict[Any, int]


def _table(rows: _Rows) -> Any:
    import pyarrow as pa

    columns: dict[str, Any] = {"t": [t for _, t in rows], "v": list(rows.values()), "k": [k for k, _ in rows]}
    types: dict[str, Any] = {"t": pa.int64(), "v": pa.int64(), "k": pa.string()}
    return pa.table(columns, schema=pa.schema(types))


def _delta(
    state_id: int = 1, written: _Rows | None = None, removed: list[Any] | None = None, ranges: Any = ()
) -> TableDelta:
    keys = None if removed is None else _table(dict.fromkeys(removed, 0)).select(_KEYS)
    return TableDelta(state_id, _KEYS, tuple(ranges), keys, None if written is None else _table(written))


def _rows(store: LocalStore, state_id: int = 1) -> _Rows:
    """Return the rows of a table, and check that each occurs once."""
    table = store.table(state_id)
    if table is None:
        return {}
    stored = [row for _, part in table.select(None) for row in part.to_pylist()]
    rows = {(row["k"], row["t"]): row["v"] for row in stored}
    assert len(rows) == len(stored) == table.num_rows
    return rows


def _expect(rows: _Rows, written: _Rows, removed: list[Any], ranges: Any) -> None:
    """Apply a delta to the expected rows."""
    for comparisons in ranges:
        for key, value in list(rows.items()):
            columns: dict[str, Any] = {"t": key[1], "v": value}
            if all(columns[c] is not None and low <= columns[c] <= high for c, low, high in comparisons):
                del rows[key]
    for key in removed:
        rows.pop(key, None)
    rows.update(written)


class TableConformance:
    """The contract of a local store for table states."""

    durable = False

    def make_store(self, path: Path) -> LocalStore:
        """Create a store in a folder, or open the one that was closed there."""
        raise NotImplementedError(f"{type(self).__name__} does not define make_store")

    def test_a_new_store_has_no_tables(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            assert store.table(1) is None

    def test_written_rows_replace_those_with_their_keys(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            store.apply("log", 1, [], [_delta(written={("a", 1): 1, ("b", None): 2, ("", -5): 3})])
            store.apply("log", 2, [], [_delta(written={("b", None): 4, ("c", 1): 5})])
            assert _rows(store) == {("a", 1): 1, ("b", None): 4, ("", -5): 3, ("c", 1): 5}
            assert store.position() == ("log", 2)

    def test_ranges_and_keys_are_removed_before_rows_are_written(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            rows = {(k, t): t * 10 for k in "abc" for t in range(5)}
            store.apply("log", 1, [], [_delta(written={**rows, ("n", None): 0})])
            ranges = [[("t", -(2**63), 1)], [("t", 3, 3), ("v", 30, 2**63 - 1)]]
            store.apply("log", 2, [], [_delta(ranges=ranges, removed=[("a", 4), ("x", 9)], written={("a", 0): 7})])
            left = {("a", 0): 7, ("a", 2): 20, ("b", 2): 20, ("c", 2): 20, ("b", 4): 40, ("c", 4): 40, ("n", None): 0}
            assert _rows(store) == left
            store.apply("log", 3, [], [_delta(ranges=[()])])
            assert _rows(store) == {}

    def test_several_deltas_apply_in_their_order(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            deltas = [_delta(written={("a", 1): 1, ("b", 1): 1}), _delta(removed=[("a", 1)], written={("b", 1): 2})]
            store.apply("log", 1, [], [*deltas, _delta(2, {("a", 1): 9}), _delta(written={("c", 1): 3})])
            assert _rows(store) == {("b", 1): 2, ("c", 1): 3}
            assert _rows(store, 2) == {("a", 1): 9}

    def test_a_failed_apply_leaves_tables_as_before_or_empty(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            store.apply("log", 1, [], [_delta(written={("a", 1): 1})])

            def failing() -> Iterator[Change]:
                raise LookupError
                yield

            try:
                store.apply("log", 2, failing(), [_delta(written={("a", 1): 2})])
            except LookupError:
                assert _rows(store) == ({} if store.position() is None else {("a", 1): 1})
            else:
                raise AssertionError("the error was swallowed")

    def test_reset_drops_tables(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            store.apply("log", 1, [], [_delta(written={("a", 1): 1})])
            assert _rows(store)
            store.reset()
            assert store.table(1) is None
            store.apply("other", 1, [], [_delta(written={("b", 1): 1})])
            assert _rows(store) == {("b", 1): 1}

    def test_a_table_agrees_with_a_dictionary(self, tmp_path: Path) -> None:
        for seed in range(2):
            random = Random(seed)
            store = self.make_store(tmp_path / str(seed))
            rows: _Rows = {}
            for number in range(1, 25):
                deltas = []
                for _ in range(random.choice((1, 1, 3))):
                    size = random.choice((0, 1, 40, 3000))
                    keys = [(random.choice("abc"), random.randrange(4000)) for _ in range(size)]
                    written = {key: random.randrange(10**6) for key in keys}
                    removed = random.sample(sorted(rows), min(len(rows), random.choice((0, 5, 500))))
                    start = random.randrange(4000)
                    ranges = [[("t", start, start + random.choice((0, 100, 2000)))]] if random.random() < 0.4 else []
                    _expect(rows, written, removed, ranges)
                    deltas.append(_delta(written=written or None, removed=removed or None, ranges=ranges))
                store.apply("log", number, [], deltas)
                assert _rows(store) == rows
                if self.durable and random.random() < 0.3:
                    store.close()
                    store = self.make_store(tmp_path / str(seed))
                    assert store.position() == ("log", number)
                    assert _rows(store) == rows
            store.close()
