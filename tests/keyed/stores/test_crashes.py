"""A process is killed with SIGKILL at any moment: what is found afterwards is what some commit left, whole."""

# The programs that are killed tell the test on their standard output what they have done.
# ruff: noqa: T201

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from keyed.codec.keys import encode_key
from keyed.content.addresses import PLAIN, TIMER_EVENT, TTL_EVENT, encode_time, state_prefix, timer_prefix, timer_sub
from keyed.content.blocks import TableDelta
from keyed.stores.commit_store import CommitStore
from keyed.stores.rocks_store import RocksStore
from keyed.testing.store_conformance import ReferenceStore, assert_same

ROOT = Path(__file__).resolve().parents[3]
NONE = encode_key(None)
ROUNDS = 5

# What the killed processes run. Small write buffers make them flush and merge files all the time.
PROGRAM = """
import sys
from keyed.stores import database
from tests.keyed.stores import test_crashes
database.WRITE_BUFFER_BYTES = 64 << 10
getattr(test_crashes, sys.argv[1])(*sys.argv[2:])
"""


def changes_of(row):
    """Changes of a log row: values, entries with a time to live and timers, some of them from earlier rows."""
    number = random.Random(row)
    for key in number.sample(range(400), 40):
        yield state_prefix(PLAIN, 1, encode_key(key), NONE), b"", b"%d" % row + number.randbytes(100)
        yield state_prefix(TTL_EVENT, 2, encode_key(key), NONE), b"", encode_time(row + key % 50) + b"%d" % row
        yield timer_prefix(TIMER_EVENT, encode_key(key)), timer_sub(row), encode_time(row)
    for key in range(0, 400, 3):
        yield timer_prefix(TIMER_EVENT, encode_key(key)), timer_sub(row - 5), None
        if number.random() < 0.1:
            yield state_prefix(TTL_EVENT, 2, encode_key(key), NONE), b"", None


def table_change_of(row):
    """Changes of a log row in a table: rows by number and the row that wrote them, a range, and keys of some."""
    number = random.Random(-row)
    keys = number.sample(range(20_000), number.choice((3, 50, 4_000)))
    low = number.randrange(20_000)
    removed = number.sample(range(20_000), 40)
    written = pa.table({"k": keys, "row": [row] * len(keys), "text": [f"{row} {key}" for key in keys]})
    return TableDelta(1, ("k",), ((("k", low, low + 500),),), pa.table({"k": removed}), written)


def rows_after(row):
    """The rows of the table after a log row: the last row that wrote each key."""
    rows: dict[int, int] = {}
    for each in range(1, row + 1):
        delta = table_change_of(each)
        ((_, low, high),) = delta.ranges[0]
        rows = {key: value for key, value in rows.items() if not low <= key <= high}
        for key in delta.removed.column("k").to_pylist():
            rows.pop(key, None)
        rows.update(dict.fromkeys(delta.upserts.column("k").to_pylist(), each))
    return rows


def apply_rows(folder):
    """Apply row after row for ever, closing and opening the store now and then; tell each row that is applied."""
    store = RocksStore(folder)
    _, row = store.position() or ("", 0)
    while True:
        row += 1
        for _ in store.due(TIMER_EVENT, row - 2):
            pass
        store.apply("log", row, changes_of(row), [table_change_of(row)])
        if row % 7 == 0:
            store.close()
            print(-row, flush=True)
            store = RocksStore(folder)
        print(row, flush=True)


def commit_rows(folder):
    """Commit for ever: in each commit rows of two groups, meta records and the position; tell each commit."""
    store = CommitStore(folder)
    row = int(store.read("position") or b"0")
    while True:
        row += 1
        for group in (0, 1):
            log = store.group_log("counter", group)
            log.append(row, record_of(row, group))
            log.drop(max(row - 20, 0))
            log.write_meta(b"%d" % row)
        store.write("position", b"%d" % row)
        print(-row, flush=True)
        store.commit()
        print(row, flush=True)


def record_of(row, group):
    return random.Random(f"{row} {group}").randbytes(50_000 if row % 5 == 0 else 500)


def told_until_killed(function, folder, lines):
    """Run a function in a process, kill it after it told so many lines, and give all it told."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, function, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    with child:
        told = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        told += child.stdout.read().splitlines()
    assert child.returncode == -9, told[-3:]
    return [int(line) for line in told if line.strip()]


@pytest.mark.slow
def test_a_killed_local_store_is_as_some_row_left_it(tmp_path):
    number = random.Random(1)
    expected, applied = ReferenceStore(), 0
    for _ in range(ROUNDS):
        told = told_until_killed("apply_rows", tmp_path, number.randrange(5, 90))
        store = RocksStore(tmp_path)
        log_id, row = store.position() or ("", 0)
        assert log_id == "log"
        assert max([-line for line in told if line < 0], default=applied) <= row <= max(told) + 1
        for each in range(applied + 1, row + 1):
            expected.apply("log", each, changes_of(each))
        assert_same(store, expected)
        table = store.table(1)
        assert table is not None
        found: list[Any] = [each for _, part in table.select(None) for each in part.to_pylist()]
        rows = rows_after(row)
        assert {each["k"]: each["row"] for each in found} == rows
        assert len(found) == len(rows)
        assert all(each["text"] == f"{each['row']} {each['k']}" for each in found)
        applied = row
        store.close()


@pytest.mark.slow
def test_a_killed_commit_store_is_as_its_last_commit_left_it(tmp_path):
    number = random.Random(2)
    for _ in range(ROUNDS):
        told = told_until_killed("commit_rows", tmp_path, number.randrange(3, 120))
        acknowledged, begun = max(told), max(-line for line in told)
        store = CommitStore(tmp_path)
        row = int(store.read("position") or b"")
        assert acknowledged <= row <= begun
        for group in (0, 1):
            log = store.group_log("counter", group)
            assert log.read_meta() == b"%d" % row
            kept = range(max(1, row - 19), row + 1)
            assert list(log.read(0, 2**62)) == [(each, record_of(each, group)) for each in kept]
        store.close()
