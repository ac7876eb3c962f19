"""Conformance tests for local stores, those of `keyed` and of third parties.

Subclass `LocalStoreConformance`, give it a factory, and let a test runner collect it:

    class TestMyStore(LocalStoreConformance):
        def make_store(self, path):
            return MyStore(path)

The tests need no library: they are methods named ``test_*`` with a folder as argument, pytest's ``tmp_path``, and use
``assert``.
"""

# A test's name states its claim, and the methods of the reference are those of the protocol; random numbers are for
# tests.
# ruff: noqa: D102, S311

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.codec.keys import encode_key
from keyed.content.addresses import (
    PLAIN,
    TIMER_EVENT,
    TIMER_PROCESSING,
    TTL_EVENT,
    TTL_PROCESSING,
    decode_time,
    encode_time,
    list_sub,
    named_timer_sub,
    state_prefix,
    timer_prefix,
    timer_sub,
)
from keyed.content.blocks import Change, TableDelta
from keyed.content.local_store import LocalStore

_KINDS = (PLAIN, TTL_PROCESSING, TTL_EVENT, TIMER_PROCESSING, TIMER_EVENT)
_NO_NAMESPACE = encode_key(None)
#: The key columns of the tables.
_KEYS = ("k", "t")
_Rows = dict[Any, int]


class ReferenceStore:
    """Model of a local store: a dictionary that is sorted and filtered at each read."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.entries: dict[tuple[bytes, bytes], bytes] = {}
        self.applied: tuple[str, int] | None = None

    def position(self) -> tuple[str, int] | None:
        return self.applied

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        return self.entries.get((prefix, sub))

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        of_prefix = ((sub, value) for (other, sub), value in self.entries.items() if other == prefix)
        return iter(sorted(entry for entry in of_prefix if entry[0] >= start))

    def due(self, kind: int, up_to: int) -> Iterator[tuple[int, bytes, bytes]]:
        timed = (item for item in self.entries.items() if item[0][0][0] == kind != PLAIN)
        timers = ((decode_time(value), prefix, sub) for (prefix, sub), value in timed)
        return iter(sorted(entry for entry in timers if entry[0] <= up_to))

    def items(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        return ((prefix, sub, value) for (prefix, sub), value in sorted(self.entries.items()))

    def table(self, state_id: int) -> None:
        return None

    def apply(self, log_id: str, row: int, changes: Iterable[Change], tables: Sequence[Any] = ()) -> None:
        assert not tables
        entries = dict(self.entries)
        for prefix, sub, value in changes:
            if value is None:
                entries.pop((prefix, sub), None)
            else:
                entries[prefix, sub] = value
        self.entries, self.applied = entries, (log_id, row)

    def close(self) -> None:
        pass


def assert_same(store: LocalStore, expected: LocalStore) -> None:
    """Assert that all reads of two stores are equal."""
    assert store.position() == expected.position()
    entries = list(expected.items())
    assert sorted(store.items()) == sorted(entries)
    for prefix, sub, value in entries:
        assert store.get(prefix, sub) == value
    for prefix in {prefix for prefix, _, _ in entries}:
        expected_entries = list(expected.scan(prefix))
        assert list(store.scan(prefix)) == expected_entries
        for sub, _ in expected_entries[:: max(1, len(expected_entries) // 4)]:
            for start in (sub, sub + b"\x00", sub[:-1]):
                assert list(store.scan(prefix, start)) == list(expected.scan(prefix, start))
    times = {time for kind in _KINDS for time, _, _ in expected.due(kind, MAX_TIMESTAMP)}
    for kind in _KINDS:
        for up_to in (*sorted(times)[:: max(1, len(times) // 4)], MAX_TIMESTAMP):
            assert list(store.due(kind, up_to)) == list(expected.due(kind, up_to))


def _apply_to_both(store: LocalStore, expected: LocalStore, log_id: str, row: int, changes: Sequence[Change]) -> None:
    """Apply changes to two stores, and assert that all reads of them are equal."""
    for each in (store, expected):
        each.apply(log_id, row, iter(changes))
    assert_same(store, expected)


def _apply_failing(store: LocalStore, changes: list[Change], tables: Sequence[TableDelta] = ()) -> None:
    """Apply changes after which an error is raised, and assert that the store raises it."""

    def failing() -> Iterator[Change]:
        yield from changes
        raise LookupError

    try:
        store.apply("log", 2, failing(), tables)
    except LookupError:
        return
    raise AssertionError("the error was swallowed")


def random_changes(random: Random, size: int, *, keys: int = 5, times: int = 8) -> list[Change]:
    """Return changes of all kinds that often hit the same few addresses and times.

    Args:
        random: Source of randomness.
        size: Number of changes.
        keys: Number of keys.
        times: Number of times.
    """
    changes: list[Change] = []
    for _ in range(size):
        kind = random.choice(_KINDS)
        key = encode_key(random.randrange(keys))
        time = random.randrange(times) - times // 2
        remove = random.random() < 0.4
        value = encode_time(time)
        if kind >= TIMER_PROCESSING:
            prefix = timer_prefix(kind, key)
            name = random.randrange(4)
            sub = named_timer_sub(encode_key(name)) if name < 2 else timer_sub(time)
        else:
            prefix = state_prefix(kind, random.randrange(2), key, _NO_NAMESPACE)
            sub = random.choice((b"", b"", encode_key(random.randrange(3)), list_sub(random.randrange(2), 0)))
            value = random.randbytes(random.randrange(12)) if kind == PLAIN else value + random.randbytes(2)
        changes.append((prefix, sub, None if remove else value))
    return changes


def _state(kind: int, key: object, state_id: int = 1) -> bytes:
    return state_prefix(kind, state_id, encode_key(key), _NO_NAMESPACE)


def _timer(key: object, time: int, *, kind: int = TIMER_EVENT) -> Change:
    return timer_prefix(kind, encode_key(key)), timer_sub(time), encode_time(time)


def _named_timer(key: object, name: object, time: int) -> Change:
    return timer_prefix(TIMER_EVENT, encode_key(key)), named_timer_sub(encode_key(name)), encode_time(time)


def _due(changes: Iterable[Change]) -> list[tuple[int, bytes, bytes]]:
    return sorted((decode_time(value), prefix, sub) for prefix, sub, value in changes if value is not None)


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


class LocalStoreConformance:
    """The contract of a local store. Override `make_store`, and `durable` for a store that outlives its process."""

    #: True if a store that is closed and opened again in the same folder keeps its content.
    durable = False

    def make_store(self, path: Path) -> LocalStore:
        """Create a store in a folder, or open the one that was closed there."""
        raise NotImplementedError(f"{type(self).__name__} does not define make_store")

    def test_a_new_store_is_empty(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            assert_same(store, ReferenceStore())
            assert store.get(_state(PLAIN, "a"), b"") is None
            assert list(store.scan(_state(PLAIN, "a"))) == []

    def test_entries_are_read_as_they_were_applied(self, tmp_path: Path) -> None:
        store, expected = self.make_store(tmp_path), ReferenceStore()
        changes = [
            (_state(PLAIN, "empty value"), b"", b""),
            (_state(PLAIN, "any bytes"), b"", bytes(range(256))),
            (_state(PLAIN, "\x00\xff"), b"\xff\xff", b"\x00"),
            (_state(PLAIN, "map"), encode_key("x"), b"1"),
            (_state(PLAIN, "map"), b"", b"beside the map"),
            (_state(PLAIN, "k" * 1000), b"s" * 1000, b"v" * 1_000_000),
            (_state(TTL_EVENT, "ttl"), b"", encode_time(5) + b"value"),
            _timer("t", 7),
            _named_timer("t", "name", 3),
        ]
        _apply_to_both(store, expected, "log", 1, changes)
        store.close()

    def test_reads_after_apply_see_what_it_changed(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            prefix = _state(PLAIN, "a")
            for row, value in enumerate((b"1", b"2", None, b"3", None), start=1):
                store.apply("log", row, [(prefix, b"", value), (prefix, b"sub", value)])
                assert store.get(prefix, b"") == store.get(prefix, b"sub") == value
                assert list(store.scan(prefix)) == ([] if value is None else [(b"", value), (b"sub", value)])

    def test_the_last_change_of_an_address_wins(self, tmp_path: Path) -> None:
        store, expected = self.make_store(tmp_path), ReferenceStore()
        for change in (_named_timer("k", "n", 4), (_state(TTL_PROCESSING, "k"), b"", encode_time(4)), _timer("k", 4)):
            prefix, sub, value = change
            assert value is not None
            later = value if sub[:1] == b"\x00" else encode_time(6)
            gone = (prefix, sub, None)
            for changes in ([change, gone], [gone, change], [change, gone, (prefix, sub, later)], [change, gone]):
                _apply_to_both(store, expected, "log", 1, changes)
        store.close()

    def test_removing_what_is_not_there_does_nothing(self, tmp_path: Path) -> None:
        store, expected = self.make_store(tmp_path), ReferenceStore()
        _apply_to_both(store, expected, "log", 1, [_timer("k", 4), (_state(PLAIN, "k"), b"a", b"1")])
        for prefix, sub, _ in (_timer("k", 5), _named_timer("k", 1, 5), _timer("other", 4)):
            _apply_to_both(store, expected, "log", 2, [(prefix, sub, None)])
        others = [(_state(kind, "k"), sub, None) for kind in (PLAIN, TTL_EVENT) for sub in (b"", b"b")]
        _apply_to_both(store, expected, "log", 3, others)
        store.close()

    def test_scan_gives_exactly_a_prefix_in_order_of_sub(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            subs = [encode_key(i) for i in range(-300, 300)]
            changes = [(_state(PLAIN, key, state), sub, sub * 2) for key in "abc" for state in (1, 2) for sub in subs]
            Random(0).shuffle(changes)
            store.apply("log", 1, changes)
            assert list(store.scan(_state(PLAIN, "b"))) == [(sub, sub * 2) for sub in subs]
            for at, sub in enumerate(subs):
                for start, first in ((sub, at), (sub + b"\x00", at + 1)):
                    assert list(store.scan(_state(PLAIN, "b"), start)) == [(sub, sub * 2) for sub in subs[first:]]
            store.apply("log", 2, [(_state(PLAIN, "b"), sub, None) for sub in subs[1:]])
            assert list(store.scan(_state(PLAIN, "b"))) == [(subs[0], subs[0] * 2)]
            assert list(store.scan(_state(PLAIN, ""))) == []

    def test_due_is_ordered_by_time_prefix_and_sub(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            times = [MIN_TIMESTAMP, -(2**40), -1, 0, 1, 255, 256, 2**40, MAX_TIMESTAMP]
            changes = [_timer(key, time) for key in ("b", "a", 3, None) for time in times]
            changes += [_named_timer(key, name, time) for key in ("a", 3) for name, time in enumerate(times)]
            Random(0).shuffle(changes)
            store.apply("log", 1, changes)
            for time in (*times, -5, 300):
                assert list(store.due(TIMER_EVENT, time)) == [entry for entry in _due(changes) if entry[0] <= time]

    def test_due_is_ordered_over_many_times(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            for row, size in enumerate(range(255, 265)):
                changes = [_timer(time % 7, time * 3) for time in range(size)]
                Random(size).shuffle(changes)
                store.reset()
                store.apply("log", row, changes)
                assert list(store.due(TIMER_EVENT, MAX_TIMESTAMP)) == _due(changes)
                assert list(store.due(TIMER_EVENT, 3 * size - 4)) == _due(changes)[:-1]

    def test_due_keeps_kinds_apart(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            store.apply("log", 1, [_timer("k", 1, kind=TIMER_PROCESSING), (_state(PLAIN, "k"), b"", encode_time(1))])
            assert list(store.due(TIMER_EVENT, MAX_TIMESTAMP)) == []
            assert list(store.due(TTL_EVENT, MAX_TIMESTAMP)) == []
            assert list(store.due(PLAIN, MAX_TIMESTAMP)) == []
            assert [time for time, _, _ in store.due(TIMER_PROCESSING, 1)] == [1]

    def test_an_entry_is_due_at_its_last_time_only(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            prefix, sub = _state(TTL_EVENT, "k"), encode_key("map key")
            for row, time in enumerate((5, 9, 9, 2, 7), start=1):
                store.apply("log", row, [(prefix, each, encode_time(time) + b"v") for each in (b"", sub)])
                assert list(store.due(TTL_EVENT, MAX_TIMESTAMP)) == [(time, prefix, b""), (time, prefix, sub)]
                assert list(store.due(TTL_EVENT, time - 1)) == []
            store.apply("log", 9, [(prefix, sub, None)])
            assert list(store.due(TTL_EVENT, MAX_TIMESTAMP)) == [(7, prefix, b"")]

    def test_what_becomes_due_before_a_time_that_was_asked_for_is_found(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            store.apply("log", 1, [_timer("k", 100)])
            assert list(store.due(TIMER_EVENT, 90)) == []
            assert [time for time, _, _ in store.due(TIMER_EVENT, 200)] == [100]
            store.apply("log", 2, [_timer("k", 50), _named_timer("k", 1, 40)])
            assert [time for time, _, _ in store.due(TIMER_EVENT, 90)] == [40, 50]
            prefix = timer_prefix(TIMER_EVENT, encode_key("k"))
            store.apply("log", 3, [(prefix, timer_sub(time), None) for time in (50, 100)])
            assert [time for time, _, _ in store.due(TIMER_EVENT, MAX_TIMESTAMP)] == [40]
            store.apply("log", 4, [_timer("k", MIN_TIMESTAMP), _timer("k", MAX_TIMESTAMP)])
            times = [time for time, _, _ in store.due(TIMER_EVENT, MAX_TIMESTAMP)]
            assert times == [MIN_TIMESTAMP, 40, MAX_TIMESTAMP]

    def test_iterators_are_lazy_and_independent(self, tmp_path: Path) -> None:
        with closing(self.make_store(tmp_path)) as store:
            changes = [_timer(key, time) for key in range(20) for time in range(50)]
            store.apply("log", 1, changes)
            one, two = store.due(TIMER_EVENT, 48), store.due(TIMER_EVENT, 49)
            first = list(islice(one, 700))
            second = list(islice(two, 10))
            assert list(store.due(TIMER_EVENT, 0)) == _due(changes)[:20]
            scan = store.scan(changes[0][0])
            next(scan)
            assert first + list(one) == _due(changes)[:-20]
            assert second + list(two) == _due(changes)
            assert len(list(scan)) == 49

    def test_a_failed_apply_leaves_the_store_as_before_or_empty(self, tmp_path: Path) -> None:
        store, before = self.make_store(tmp_path), ReferenceStore()
        _apply_to_both(store, before, "log", 1, [_timer("k", 1), (_state(PLAIN, "k"), b"", b"1")])
        _apply_failing(store, [_timer("k", 2), (_state(PLAIN, "k"), b"", b"2")])
        assert_same(store, ReferenceStore() if store.position() is None else before)
        store.close()

    def test_reset_drops_everything(self, tmp_path: Path) -> None:
        store, expected = self.make_store(tmp_path), ReferenceStore()
        store.apply("log", 1, random_changes(Random(1), 200))
        list(islice(store.due(TIMER_EVENT, MAX_TIMESTAMP), 1))
        store.reset()
        assert_same(store, expected)
        _apply_to_both(store, expected, "another log", 1, random_changes(Random(2), 200))
        store.close()

    def test_closing_twice_and_with_open_iterators_is_allowed(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.apply("log", 1, random_changes(Random(1), 200))
        iterators = [store.items(), store.due(TIMER_EVENT, MAX_TIMESTAMP), store.scan(_state(PLAIN, 1))]
        for iterator in iterators:
            next(iterator, None)
        store.close()
        store.close()
        again = self.make_store(tmp_path)
        assert (again.position() is not None) == self.durable
        again.close()

    def test_a_store_agrees_with_a_dictionary(self, tmp_path: Path) -> None:
        for seed in range(3):
            random = Random(seed)
            store, expected = self.make_store(tmp_path / str(seed)), ReferenceStore()
            for row in range(25):
                changes = random_changes(random, random.choice((0, 1, 10, 60)))
                _apply_to_both(store, expected, f"log {row // 10}", row, changes)
                if random.random() < 0.2:
                    store.close()
                    store = self.make_store(tmp_path / str(seed))
                    if not self.durable:
                        assert_same(store, ReferenceStore())
                        store.apply(f"log {row // 10}", row, ((*entry,) for entry in expected.items()))
                    assert_same(store, expected)
            store.close()

    # Tables ---------------------------------------------------------------------------------------------------

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
            _apply_failing(store, [], [_delta(written={("a", 1): 2})])
            assert _rows(store) == ({} if store.position() is None else {("a", 1): 1})

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
