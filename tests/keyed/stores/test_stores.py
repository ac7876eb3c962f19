"""Both local stores keep the contract, and what is particular to each of them."""

import os
import re
import signal
import subprocess
import sys
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import keyed
from keyed.base.arguments import MAX_TIMESTAMP
from keyed.codec.keys import encode_key
from keyed.content.addresses import (
    PLAIN,
    TIMER_EVENT,
    encode_time,
    named_timer_sub,
    state_prefix,
    timer_prefix,
    timer_sub,
)
from keyed.content.local_store import LocalStore
from keyed.errors import DefinitionError, LocalStoreError
from keyed.stores import MemoryStore, open_lmdb_store, open_rocks_store
from keyed.stores.database import Database
from keyed.stores.lmdb_store import LmdbStore
from keyed.stores.opening import open_store
from keyed.stores.rocks_store import RocksStore
from keyed.testing.store_conformance import LocalStoreConformance, ReferenceStore, assert_same, random_changes
from tests.support.jobs import Tally
from tests.support.sqlite_store import SqliteStore

ROOT = Path(__file__).resolve().parents[3]


class TestMemoryStore(LocalStoreConformance):
    def make_store(self, path):
        return MemoryStore()


class TestAnotherStore(LocalStoreConformance):
    durable = True

    def make_store(self, path):
        return open_store(SqliteStore, path)


def test_stores_of_two_functions_in_one_folder_are_apart(tmp_path):
    one = open_store(SqliteStore, tmp_path)
    one.apply("log", 1, [(b"\x01p", b"", b"v")])
    one.close()
    other = open_store(other_store, tmp_path)
    assert other.position() is None
    other.close()
    again = open_store(SqliteStore, tmp_path)
    assert again.get(b"\x01p", b"") == b"v"
    again.close()


def other_store(folder):
    return SqliteStore(folder)


def failing_store(folder):
    raise OSError("no room")


@pytest.mark.parametrize(
    ("store", "error", "message"),
    [
        (failing_store, LocalStoreError, "failing_store cannot open .*: OSError: no room"),
        (str, DefinitionError, r"store=builtins.str returned a str, which has no apply\(\)"),
    ],
)
def test_a_function_that_opens_no_store_is_refused(tmp_path, store, error, message):
    with pytest.raises(error, match=message):
        open_store(store, tmp_path)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("redis", "must be 'memory', 'rocksdb', 'lmdb', or a function"),
        (7, "must be 'memory'"),
        (lambda folder: MemoryStore(), "must have a name"),
        (partial(other_store), "must have a name"),
    ],
)
def test_what_is_no_kind_of_store_is_refused(store, message):
    with pytest.raises(DefinitionError, match=message):
        keyed.stream([{"k": 1}]).key_by("k").process(Tally(), store=store)


def test_a_job_runs_with_a_store_of_its_own(tmp_path):
    rows = [{"k": number % 3} for number in range(9)]

    def run(rows):
        counting = keyed.stream(rows).key_by("k").process(Tally(), store=SqliteStore, parallelism=2)
        return counting.run(checkpoint=tmp_path / "checkpoint", local_dir=tmp_path / "local", rows_per_batch=2)

    assert sorted(run(rows)) == sorted((number % 3, number // 3 + 1) for number in range(9))
    result = run([*rows, {"k": 0}])
    assert list(result) == [(0, 4)]
    assert len(list((tmp_path / "local").rglob("entries.db"))) == 2


class TestRocksStore(LocalStoreConformance):
    durable = True

    def make_store(self, path):
        return open_rocks_store(path)


class TestLmdbStore(LocalStoreConformance):
    durable = True

    def make_store(self, path):
        return open_lmdb_store(path)


class Agreement(RuleBasedStateMachine):
    """A dictionary, the memory store and the stores on disk answer alike, whatever is done to them."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.row = 0
        self.expected = ReferenceStore()
        self.memory = MemoryStore()
        self.rocks = open_rocks_store(folder)
        self.lmdb = open_lmdb_store(folder / "lmdb")
        self.stores: list[LocalStore] = [self.expected, self.memory, self.rocks, self.lmdb]

    @rule(random=st.randoms(use_true_random=False), size=st.sampled_from([0, 1, 2, 8, 30, 120]))
    def apply(self, random, size):
        changes = random_changes(random, size)
        self.row += 1
        for store in self.stores:
            store.apply("log", self.row, iter(changes))

    @rule(kind=st.integers(1, 5), up_to=st.one_of(st.integers(-6, 6), st.just(MAX_TIMESTAMP)), take=st.integers(0, 5))
    def look_at_what_is_due(self, kind, up_to, take):
        expected, *found = [list(islice(store.due(kind, up_to), take)) for store in self.stores]
        assert found == [expected] * 3

    @rule(random=st.randoms(use_true_random=False))
    def look_up(self, random):
        for prefix, sub, _ in random_changes(random, 20):
            expected, *found = [store.get(prefix, sub) for store in self.stores]
            assert found == [expected] * 3

    @rule()
    def reopen(self):
        self.rocks.close()
        self.rocks = self.stores[2] = open_rocks_store(self.folder)
        self.lmdb.close()
        self.lmdb = self.stores[3] = open_lmdb_store(self.folder / "lmdb")

    @rule()
    def reset(self):
        for store in self.stores:
            store.reset()

    @rule()
    def compare(self):
        assert_same(self.memory, self.expected)
        assert_same(self.rocks, self.expected)
        assert_same(self.lmdb, self.expected)

    def teardown(self):
        self.compare()
        for store in (self.rocks, self.lmdb):
            store.reset()
            store.close()


def test_stores_agree_on_all_sequences_of_operations(tmp_path):
    class Here(Agreement):
        def __init__(self):
            super().__init__(tmp_path)

    run_state_machine_as_test(Here, settings=settings(max_examples=30, stateful_step_count=20))


def value(key, state=1, kind=PLAIN):
    return state_prefix(kind, state, encode_key(key), encode_key(None))


def timer(key, time):
    return timer_prefix(TIMER_EVENT, encode_key(key)), timer_sub(time), encode_time(time)


def test_importing_the_package_does_not_load_rocksdict():
    code = "import sys; from keyed.stores import MemoryStore, open_rocks_store; print('rocksdict' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Memory -------------------------------------------------------------------------------------------------------------


def test_timers_that_move_do_not_pile_up_in_memory():
    store = MemoryStore()
    name = named_timer_sub(encode_key("session"))
    for time in range(2_000):
        store.apply("log", time, [(timer_prefix(TIMER_EVENT, encode_key("k")), name, encode_time(time))])
    assert len(store._indexes[TIMER_EVENT].heap) < 200
    assert [time for time, _, _ in store.due(TIMER_EVENT, MAX_TIMESTAMP)] == [1_999]


def test_a_look_at_what_is_due_first_does_not_visit_what_is_pending():
    store = MemoryStore()
    store.apply("log", 1, [timer(key, key) for key in range(5_000)])
    buckets = store._indexes[TIMER_EVENT].buckets = CountingDict(store._indexes[TIMER_EVENT].buckets)
    assert len(list(islice(store.due(TIMER_EVENT, MAX_TIMESTAMP), 10))) == 10
    assert len(list(store.due(TIMER_EVENT, 20))) == 21
    assert buckets.gets < 50


class CountingDict(dict):
    gets = 0

    def get(self, *args):
        self.gets += 1
        return super().get(*args)


# RocksDB ------------------------------------------------------------------------------------------------------------


def test_what_fired_is_not_read_again(tmp_path, monkeypatch):
    store = open_rocks_store(tmp_path)
    store.apply("log", 1, [timer(key, time) for key in range(5) for time in (10, 20, 30)])
    fired = list(store.due(TIMER_EVENT, 20))
    store.apply("log", 2, [(prefix, sub, None) for _, prefix, sub in fired])
    assert [time for time, _, _ in store.due(TIMER_EVENT, 30)] == [30] * 5
    store.apply("log", 3, [])
    store.close()
    store = open_rocks_store(tmp_path)
    starts = []
    read = store._database.range

    def watched(first, end):
        starts.append(first)
        return read(first, end)

    monkeypatch.setattr(store._database, "range", watched)
    assert list(store.due(TIMER_EVENT, 29)) == []
    assert starts == []
    assert len(list(store.due(TIMER_EVENT, 30))) == 5
    assert starts == [b"I\x05" + encode_time(30)]
    store.close()


def test_a_second_get_is_answered_from_memory_until_the_next_apply(tmp_path, monkeypatch):
    store = open_rocks_store(tmp_path)
    store.apply("log", 1, [(value("a"), b"", b"1")])
    assert store.get(value("a"), b"") == b"1"
    assert store.get(value("b"), b"") is None
    monkeypatch.setattr(store, "_get", None)
    assert store.get(value("a"), b"") == b"1"
    assert store.get(value("b"), b"") is None
    monkeypatch.undo()
    store.apply("log", 2, [(value("a"), b"", None), (value("b"), b"", b"2")])
    assert store.get(value("a"), b"") is None
    assert store.get(value("b"), b"") == b"2"
    store.close()


def test_what_is_remembered_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("keyed.stores.disk_store._MEMORY", 10_000)
    store = open_rocks_store(tmp_path)
    store.apply("log", 1, [(value(i), b"", bytes(1_000)) for i in range(200)])
    for i in range(200):
        assert store.get(value(i), b"") == bytes(1_000)
        assert len(store._read) < 12
    store.close()


def test_a_store_in_use_in_this_process_is_left_alone(tmp_path):
    folder = tmp_path / "group"
    first = open_rocks_store(folder)
    first.apply("log", 1, [(value("a"), b"", b"1")])
    second, third = open_rocks_store(folder), open_rocks_store(folder)
    assert second.position() is third.position() is None
    for store in (second, third):
        store.apply("log", 5, [(value("b"), b"", b"2")])
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(LocalStoreError, match=re.escape(str(folder))):
        RocksStore(folder)
    for store in (second, third):
        store.close()
    assert list(tmp_path.iterdir()) == [folder]
    assert first.get(value("a"), b"") == b"1"
    first.close()


HOLD = """
import sys
from keyed.stores import open_rocks_store
stores = [open_rocks_store(sys.argv[1]) for _ in range(int(sys.argv[2]))]
stores[0].apply("log", 1, [])
print("open", flush=True)
sys.stdin.read()
"""


def holding(folder, number):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(number)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    assert child.stdout.readline() == "open\n"
    return child


def test_a_store_in_use_by_another_process_is_left_alone(tmp_path):
    folder = tmp_path / "group"
    with holding(folder, 1) as child:
        store = open_rocks_store(folder)
        assert store.position() is None
        assert store.path != folder
        assert f"-{os.getpid()}-" in store.path.name
        store.close()
        child.stdin.close()
    assert list(tmp_path.iterdir()) == [folder]


def test_folders_beside_a_store_are_deleted_when_their_process_has_died(tmp_path):
    folder = tmp_path / "group"
    (tmp_path / "group-1-x").mkdir()
    with holding(folder, 2) as living, holding(folder, 1) as dying:
        assert len(list(tmp_path.iterdir())) == 4
        dying.kill()
        dying.wait()
        open_rocks_store(folder).close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["group", "group-1-x", f"group-{living.pid}-0"]
        living.stdin.close()


def test_files_that_are_not_the_stores_own_are_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    store = open_rocks_store(tmp_path)
    store.apply("log", 1, [(value("a"), b"", b"1")])
    store.reset()
    store.close()
    assert (tmp_path / "mine.txt").read_text() == "x"


@pytest.mark.parametrize(("opened", "store_class"), [(open_rocks_store, RocksStore), (open_lmdb_store, LmdbStore)])
def test_a_position_record_of_a_later_version_empties_the_store(tmp_path, monkeypatch, opened, store_class):
    monkeypatch.setattr("keyed.stores.disk_store._VERSION", 2)
    store = opened(tmp_path)
    store.apply("log", 1, [(value("a"), b"", b"1")])
    store.close()
    monkeypatch.undo()
    with pytest.raises(LocalStoreError, match="version 2"):
        store_class(tmp_path)
    store = opened(tmp_path)
    assert_same(store, ReferenceStore())
    store.close()


def test_bloom_filters_and_the_shared_cache_survive_reopening(tmp_path):
    for _ in range(2):
        store = open_rocks_store(tmp_path)
        store.apply("log", 1, [(value("a"), b"", b"1")])
        store.close()
    log = (tmp_path / "keyed-store-1" / "LOG").read_text()
    assert "filter_policy: bloomfilter" in log
    assert "HyperClockCache" in log


def test_a_forked_child_has_no_share_in_an_open_database(tmp_path):
    database = Database(tmp_path / "database", LocalStoreError, wal=True)
    child = os.fork()
    if not child:
        # It may hang.
        signal.alarm(60)
        status = 1
        try:
            database.look_up(b"key")
        except LocalStoreError:
            database.close()
            Database(tmp_path / "own", LocalStoreError, wal=True).close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert database.look_up(b"key") is None
    database.close()


FORKING = """
import os, sys
from keyed.stores import open_rocks_store
store = open_rocks_store(sys.argv[1])
child = os.fork()
if child:
    status = os.waitpid(child, 0)[1]
    store.close()
    sys.exit(status)
"""


@pytest.mark.slow
def test_a_forked_child_with_an_open_store_ends(tmp_path):
    command = [sys.executable, "-c", FORKING, str(tmp_path / "store")]
    assert subprocess.run(command, cwd=ROOT, timeout=300, check=False).returncode == 0
