"""The local stores that a worker process keeps, and the log in Spark's state."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from keyed.errors import LocalStoreError
from keyed.job.functions import Store
from keyed.runtimes.spark.worker import worker_caches
from keyed.runtimes.spark.worker.processor import SparkGroupLog
from keyed.runtimes.spark.worker.worker_caches import ReplicaCache, default_local_dir
from keyed.stores.lmdb_store import LmdbStore
from keyed.stores.rocks_store import RocksStore
from tests.support.sqlite_store import SqliteStore


def test_a_store_in_memory_is_kept_from_batch_to_batch_by_log():
    cache = ReplicaCache()
    with cache.replica("op", 0, "log", None) as first:
        first.store.apply("log", 1, [(b"\x01p", b"", b"v")])
    with cache.replica("op", 0, "log", None) as again:
        assert again is first
    for other in (("op", 1, "log"), ("op", 0, "other"), ("po", 0, "log")):
        with cache.replica(*other, None) as replica:
            assert replica.store.position() is None


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "lmdb"])
def test_a_first_batch_that_fails_leaves_no_store(tmp_path, kind):
    cache, folder = ReplicaCache(), tmp_path if kind != "memory" else None
    with pytest.raises(RuntimeError), cache.replica("op", 0, "log", folder, new=True, kind=kind) as first:
        raise RuntimeError
    assert not any(tmp_path.iterdir())
    with cache.replica("op", 0, "log", folder, new=True, kind=kind) as other:
        assert other is not first
    with cache.replica("op", 0, "log", folder, kind=kind) as again:
        assert again is other


def test_a_store_that_is_idle_for_long_is_dropped(monkeypatch):
    cache = ReplicaCache()
    with cache.replica("op", 0, "log", None) as first:
        pass
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with cache.replica("op", 1, "log", None):
        pass
    with cache.replica("op", 0, "log", None) as again:
        assert again is not first


def test_a_store_survives_a_batch_that_fails():
    cache = ReplicaCache()
    with pytest.raises(RuntimeError), cache.replica("op", 0, "log", None) as first:
        raise RuntimeError
    with cache.replica("op", 0, "log", None) as again:
        assert again is first


@pytest.mark.parametrize("kind", ["rocksdb", SqliteStore], ids=["rocksdb", "third party"])
def test_a_store_on_disk_is_open_during_a_batch_only(tmp_path, kind):
    cache, other_worker = ReplicaCache(), ReplicaCache()
    with cache.replica("op", 0, "log", tmp_path, kind=kind) as replica:
        assert isinstance(replica.store, RocksStore if kind == "rocksdb" else SqliteStore)
        replica.store.apply("log", 3, [(b"\x01p", b"", b"v")])
    for worker in (other_worker, cache):
        with worker.replica("op", 0, "log", tmp_path, kind=kind) as again:
            assert again.stores_opened == 1
            assert (again.store.position(), again.store.get(b"\x01p", b"")) == (("log", 3), b"v")


def test_a_shared_store_is_opened_once_and_reads_during_a_batch_only(tmp_path, monkeypatch):
    cache = ReplicaCache()
    with cache.replica("op", 0, "log", tmp_path, kind="lmdb") as first:
        assert (isinstance(first.store, LmdbStore), first.stores_opened) == (True, 1)
        store: Any = first.store
        store.apply("log", 3, [(b"\x01p", b"", b"v")])
        first.stores_opened = 0
    database = store._database
    assert database._reading is None
    with cache.replica("op", 0, "log", tmp_path, kind="lmdb") as again:
        assert (again, again.store, store._database, again.stores_opened) == (first, store, database, 0)
        assert again.store.get(b"\x01p", b"") == b"v"
    assert database._reading is None
    later = time.monotonic() + 3600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with cache.replica("op", 1, "log", None):
        assert not database.is_there()
    with cache.replica("op", 0, "log", tmp_path, kind="lmdb") as replica:
        assert (replica.store.position(), replica.stores_opened) == (("log", 3), 1)
        replica.close()


def test_a_shared_store_that_is_damaged_while_it_is_open_starts_empty(tmp_path):
    cache = ReplicaCache()
    with cache.replica("op", 0, "log", tmp_path, kind="lmdb") as replica:
        store: Any = replica.store
        store.apply("log", 3, [(b"\x01p", b"", b"v")])
        with store._database.transaction():
            store._database.write({b"M": b"damaged"})
    with cache.replica("op", 0, "log", tmp_path, kind="lmdb") as replica:
        assert (replica.store.position(), replica.stores_opened) == (None, 1)
        replica.close()


def test_the_processes_that_hold_a_store_in_memory_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_caches, "default_local_dir", lambda: str(tmp_path))
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    cache = ReplicaCache()
    with cache.replica("op", 0, "log", None) as replica:
        assert replica.copies == 1
    marks = tmp_path / "in-memory" / "op-0-log"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for process in (os.getppid(), ended.pid):
        (marks / str(process)).touch()
    with cache.replica("op", 0, "log", None) as replica:
        assert replica.copies == 2
    clock += 10_000
    with cache.replica("op", 1, "log", None) as replica:
        assert replica.copies == 1
    assert [each.name for each in marks.iterdir()] == [str(os.getppid())]
    monkeypatch.setattr(worker_caches, "default_local_dir", lambda: "/proc/keyed")
    with cache.replica("op", 2, "log", None) as replica:
        assert replica.copies == 1


def test_a_job_may_change_its_store(tmp_path):
    cache = ReplicaCache()
    kinds: list[Store] = ["lmdb", "memory", "rocksdb", "lmdb"] * 2
    for kind in kinds:
        folder = None if kind == "memory" else tmp_path
        with cache.replica("op", 0, "log", folder, kind=kind) as replica:
            replica.store.apply("log", 1, [(b"\x01p", b"", b"v")])
            assert replica.store.get(b"\x01p", b"") == b"v"


def test_stores_on_disk_that_nobody_uses_are_deleted_and_other_folders_are_not(tmp_path):
    with ReplicaCache().replica("old", 0, "log", tmp_path):
        pass
    with ReplicaCache().replica("new", 0, "log", tmp_path):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    long_ago = time.time() - 30 * 86_400
    for folder in ("old-0-log", "mine"):
        for path in [tmp_path / folder, *(tmp_path / folder).rglob("*")]:
            os.utime(path, (long_ago, long_ago))
    with ReplicaCache().replica("op", 0, "log", tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "new-0-log", "op-0-log"]


def test_the_default_folder_is_the_user_s_own():
    assert Path(default_local_dir()).name.startswith("keyed-")


@pytest.mark.parametrize("temporary", ["a-file", "missing", None], ids=["no folder", "missing", "none is usable"])
def test_a_machine_without_a_usable_temporary_folder_gets_a_typed_error(tmp_path, monkeypatch, temporary):
    (tmp_path / "a-file").touch()
    if temporary is None:
        # A full or read-only disk: no candidate can be written to.
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/keyed"])
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / temporary))
    with pytest.raises(LocalStoreError, match=r"cannot be created on .*give local_dir= a folder"):
        default_local_dir()


class Values:
    def __init__(self):
        self.value, self.reads = None, 0

    def get(self):
        self.reads += 1
        return self.value

    def update(self, value):
        self.value = value


class Rows(dict):
    def getValue(self, key):  # noqa: N802
        return self.get(key)

    def updateValue(self, key, value):  # noqa: N802
        self[key] = (bytearray(value[0]),)

    def removeKey(self, key):  # noqa: N802
        self.pop(key, None)


class Handle:
    def __init__(self):
        self.rows, self.values = Rows(), Values()
        self.schemas = []

    def getMapState(self, name, key, value):  # noqa: N802
        self.schemas += [key, value]
        return self.rows

    def getValueState(self, name, value):  # noqa: N802
        self.schemas.append(value)
        return self.values


def test_the_log_keeps_rows_and_meta_in_spark_s_state():
    handle = Handle()
    log = SparkGroupLog(handle)  # type: ignore[arg-type]
    assert log.read_meta() is None
    for row in (1, 2, 4):
        log.append(row, b"r%d" % row)
    log.drop(1)
    log.drop(7)
    log.write_meta(b"meta")
    assert list(log.read(1, 5)) == [(2, b"r2"), (4, b"r4")]
    assert all(type(record) is bytes for _, record in log.read(1, 5))
    assert (log.read_meta(), handle.values.reads) == (b"meta", 1)
    log.start()
    assert (log.read_meta(), log.read_meta(), handle.values.reads) == (b"meta", b"meta", 2)


def test_the_worker_passes_schemas_that_the_jvm_need_not_parse():
    from pyspark.sql.types import StructType

    handle = Handle()
    SparkGroupLog(handle)  # type: ignore[arg-type]
    assert all(isinstance(schema, StructType) for schema in handle.schemas)
    names = [schema.simpleString() for schema in handle.schemas]
    assert names == ["struct<row:bigint>", "struct<record:binary>", "struct<record:binary>"]


def test_workers_that_end_in_a_store_do_so_twice_at_most(tmp_path):
    found: list[Any] = []
    for _ in range(3):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(60)
            with ReplicaCache().replica("op", 0, "log", tmp_path, kind="lmdb") as replica:
                store: Any = replica.store
                os.write(writing, repr((store.position(), store.is_doubtful())).encode())
                if store.position() is None:
                    store.apply("log", 3, [(b"\x01p", b"", b"v")])
                # As LMDB does at a page that is not its own.
                os.abort()
        os.waitpid(child, 0)
        found.append(os.read(reading, 100).decode())
        os.close(reading)
        os.close(writing)
    assert found == ["(None, False)", "(('log', 3), True)", "(None, False)"]


def test_a_worker_whose_store_was_changed_since_its_batch_gets_an_empty_one(tmp_path):
    cache = ReplicaCache()
    with cache.replica("op", 0, "log", tmp_path, kind="lmdb") as replica:
        replica.store.apply("log", 3, [(b"\x01p", b"", b"v")])
        replica.stores_opened = 0
    (file,) = tmp_path.rglob("data.mdb")
    with file.open("r+b") as opened:
        opened.seek(8192)
        opened.write(bytes(4096))
    with cache.replica("op", 0, "log", tmp_path, kind="lmdb") as replica:
        assert (replica.store.position(), replica.stores_opened) == (None, 1)
        replica.close()
