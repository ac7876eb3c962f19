"""The store that processes share: crashes, forks, growth, restarts of the machine, and other processes."""

import mmap
import os
import resource
import signal
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from keyed.codec.keys import encode_key
from keyed.content.addresses import PLAIN, TIMER_EVENT, encode_time, state_prefix
from keyed.errors import LocalStoreError
from keyed.stores import lmdb_store, open_lmdb_store
from keyed.stores.database import delete_folder
from keyed.stores.store_mark import StoreMark
from keyed.testing.store_conformance import ReferenceStore, assert_same

PREFIX = state_prefix(PLAIN, 1, encode_key("a"), encode_key(None))


@pytest.fixture
def other():
    """Do something in a process of its own, and wait for it; an exception there fails the test."""

    def run(work, *, killed=False):
        child = os.fork()
        if not child:
            signal.alarm(60)
            with suppress(BaseException):
                work()
                os._exit(0)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status == (-signal.SIGKILL if killed else 0)

    return run


@contextmanager
def child(work, *, killed=False):
    """Run `work(told)` in a forked process: `told(answer)` sends an answer, and waits for the end of this block.

    The block gets the answer. At its end the child goes on, and must end well, or by a signal that kills it.
    """
    answers, go = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(120)

        def told(answer=b"x"):
            os.write(answers[1], answer)
            os.read(go[0], 1)

        with suppress(BaseException):
            work(told)
            os._exit(0)
        os._exit(1)
    yield os.read(answers[0], 9)
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-signal.SIGKILL if killed else 0)
    for end in (*answers, *go):
        os.close(end)


def applied(path, row, value):
    """Apply a value, as a process that opens the store for it."""
    store = open_lmdb_store(path)
    store.apply("log", row, [(PREFIX, b"", value)])
    store.close()


def test_processes_see_what_each_other_has_applied_without_opening_anything(tmp_path, monkeypatch):
    def work(told):
        # It is forked before the store is open here.
        told()
        applied(tmp_path, 2, b"2")

    with child(work):
        store = open_lmdb_store(tmp_path)
        store.apply("log", 1, [(PREFIX, b"", b"1")])
        assert store.get(PREFIX, b"") == b"1"
    # Until the next batch it has its snapshot, and cannot change what it has not seen.
    assert (store.position(), store.get(PREFIX, b"")) == (("log", 1), b"1")
    with pytest.raises(LocalStoreError, match="changed by another process"):
        store.apply("log", 2, [(PREFIX, b"", b"other 2")])
    monkeypatch.setattr(lmdb_store.LmdbStore, "_open", None)
    store.refresh()
    assert (store.position(), store.get(PREFIX, b"")) == (("log", 2), b"2")
    store.apply("log", 3, [(PREFIX, b"", b"3")])
    assert store.get(PREFIX, b"") == b"3"
    store.close()


def test_a_change_right_after_the_own_one_is_noticed(tmp_path, monkeypatch):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    with store._database._environment.begin() as reading:
        position = reading.get(b"M") or b""
    transaction = store._database.transaction

    @contextmanager
    def followed():
        with transaction():
            yield
        with store._database._environment.begin(write=True) as other:
            other.put(b"M", position)

    with monkeypatch.context() as patch:
        patch.setattr(store._database, "transaction", followed)
        with pytest.raises(LocalStoreError, match="changed by another process"):
            store.apply("log", 2, [(PREFIX, b"", b"2")])
    store.reset()
    assert store.position() is None
    store.close()


def test_a_process_that_is_killed_while_it_writes_leaves_the_last_commit(tmp_path, other):
    def work():
        store = open_lmdb_store(tmp_path)
        store.apply("log", 1, [(PREFIX, b"", b"1")])

        def changes():
            yield PREFIX, b"", b"2"
            for number in range(1000):
                yield PREFIX, b"%d" % number, b"v" * 1000

        with store._database.transaction():
            store._apply("log", 2, list(changes()), ())
            os.kill(os.getpid(), signal.SIGKILL)

    other(work, killed=True)
    store = open_lmdb_store(tmp_path)
    assert (store.position(), store.get(PREFIX, b"")) == (("log", 1), b"1")
    assert list(store.scan(PREFIX)) == [(b"", b"1")]
    # Its lock went with it.
    store.apply("log", 2, [(PREFIX, b"", b"2")])
    store.close()


def test_a_snapshot_of_a_killed_process_is_cleared(tmp_path, other):
    def work():
        store = open_lmdb_store(tmp_path)
        store.apply("log", 1, [(PREFIX, b"", b"1")])
        assert store.get(PREFIX, b"") == b"1"
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        other(work, killed=True)
        store = open_lmdb_store(tmp_path)
        store.apply("log", 1, [])
        store.release()
        assert store._database._environment.readers() == "(no active readers)\n"
        store.reset()
        store.close()


def test_a_forked_child_has_no_share_in_an_open_store(tmp_path, other):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    assert store.get(PREFIX, b"") == b"1"

    def work():
        for use in (
            lambda: store.get(PREFIX, b"sub"),
            lambda: store.apply("log", 2, []),
            lambda: open_lmdb_store(tmp_path),
        ):
            with pytest.raises(LocalStoreError, match=r"forked|already open"):
                use()
        store.close()

    other(work)
    assert store._database.is_there()
    assert "1" in store._database._environment.readers()
    store.apply("log", 2, [(PREFIX, b"", b"2")])
    assert store.get(PREFIX, b"") == b"2"
    store.close()


def test_the_map_grows_while_a_batch_is_applied(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_store, "MAP_BYTES", 64 << 10)
    store, expected = open_lmdb_store(tmp_path), ReferenceStore()
    for row in range(1, 4):
        changes = [(PREFIX, encode_key(number), b"v" * 1000 * row) for number in range(200)]
        for each in (store, expected):
            each.apply("log", row, iter(changes))
    assert_same(store, expected)
    store.close()


def test_a_map_that_another_process_made_larger_is_taken_on(tmp_path, monkeypatch):
    monkeypatch.setattr(lmdb_store, "MAP_BYTES", 64 << 10)

    def work(told):
        told()
        changes = [(PREFIX, encode_key(number), b"v" * 1000) for number in range(500)]
        open_lmdb_store(tmp_path).apply("log", 2, changes)

    with child(work):
        store = open_lmdb_store(tmp_path)
        store.apply("log", 1, [(PREFIX, b"", b"1")])
        store.release()
    store.refresh()
    assert store.position() == ("log", 2)
    assert len(list(store.scan(PREFIX))) == 501
    store.apply("log", 3, [(PREFIX, b"", None)])
    assert len(list(store.scan(PREFIX))) == 500
    store.close()


def test_a_file_that_cannot_grow_is_an_error_and_the_store_is_as_before(tmp_path, other):
    def work():
        store = open_lmdb_store(tmp_path)
        store.apply("log", 1, [(PREFIX, b"", b"1")])
        limit = (tmp_path / lmdb_store._subfolder() / "data.mdb").stat().st_size + (1 << 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        big = [(PREFIX, encode_key(number), b"v" * 1000) for number in range(5000)]
        for _ in range(2):
            with pytest.raises(LocalStoreError, match="cannot be written"):
                store.apply("log", 2, big)
            assert (store.position(), list(store.scan(PREFIX))) == (("log", 1), [(b"", b"1")])
        store.apply("log", 2, [(PREFIX, b"", b"2")])
        assert list(store.scan(PREFIX)) == [(b"", b"2")]
        store.close()

    other(work)


@pytest.mark.parametrize("number", [28, 30], ids=["full", "read-only"])
def test_a_disk_that_takes_no_writes_is_an_error_with_the_remedy(tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(LocalStoreError, match=r"the disk is full: free space|the file system is read-only: mount it"):
        open_lmdb_store(tmp_path)


def test_a_full_disk_is_named_whatever_part_of_a_write_it_takes(small_disk):
    store, problems = open_lmdb_store(small_disk / "store"), set()
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    filler = small_disk / "filler"
    for kept in range(0, 40_000, 3_000):
        # LMDB writes up to 64 pages at once.
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1 << 20)) == 1 << 20:
                pass
        os.truncate(filler, filler.stat().st_size - kept)
        with pytest.raises(LocalStoreError, match=r"cannot be \w+: the disk is full: free space") as raised:
            store.apply("log", 2, [(PREFIX, encode_key(number), b"v" * 1000) for number in range(500)])
        problems.add(str(raised.value.__cause__))
        assert (store.position(), list(store.scan(PREFIX))) == (("log", 1), [(b"", b"1")])
    assert len(problems) == 2, "LMDB met no write of which a part was taken"
    filler.unlink()
    store.apply("log", 2, [(PREFIX, b"", b"2")])
    store.close()


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """Name the own store as if another machine, boot or namespace had written it, and open it from here."""

    def move(*names):
        (path,) = tmp_path.glob("keyed-store-lmdb-*")
        return path.rename(path.with_name("-".join(("keyed-store-lmdb-1", *names))))

    applied(tmp_path, 1, b"1")
    return move


def test_a_restart_of_the_machine_means_an_empty_store(tmp_path, moved):
    machine, _, namespace = lmdb_store._machine()
    old = moved(machine, "earlier", namespace)
    store = open_lmdb_store(tmp_path)
    assert (store.position(), old.exists()) == (None, False)
    store.close()


def test_an_idle_store_of_another_machine_stays(tmp_path, moved):
    _, _, namespace = lmdb_store._machine()
    old = moved("other", "earlier", namespace)
    for each in (old, *old.iterdir()):
        os.utime(each, (1, 1))
    applied(tmp_path, 7, b"7")
    assert sorted(each.name for each in old.iterdir()) == ["data.mdb", "keyed-mark", "lock.mdb"]


def test_the_store_of_a_container_is_deleted_once_no_process_has_it_open(tmp_path, moved, monkeypatch):
    _, boot, _ = lmdb_store._machine()
    old = moved("container", boot, "1")

    def work(told):
        monkeypatch.setattr(lmdb_store, "_machine", lambda: ("container", boot, "1"))
        store = open_lmdb_store(tmp_path)
        told(b"%d" % (store.position() == ("log", 1)))
        os.kill(os.getpid(), signal.SIGKILL)

    with child(work, killed=True) as opened:
        assert opened == b"1"
        applied(tmp_path, 7, b"7")
        assert old.exists()
    store = open_lmdb_store(tmp_path)
    assert (store.position(), old.exists()) == (("log", 7), False)
    store.close()


def test_a_snapshot_that_another_process_holds_does_not_let_the_file_grow(tmp_path):
    applied(tmp_path, 1, b"1")

    def work(told):
        store = open_lmdb_store(tmp_path)
        told(store.get(PREFIX, b""))
        # It has the same snapshot still, cannot write, and gets the new file with its next batch.
        assert store.get(PREFIX, b"") == b"1"
        with suppress(LocalStoreError):
            store.apply("log", 2, [(PREFIX, b"", b"other 2")])
        store.refresh()
        assert (store.position(), store.get(PREFIX, b"")) == (("log", 300), b"300")
        store.apply("log", 301, [(PREFIX, b"", b"301")])
        store.close()

    with child(work) as value:
        assert value == b"1"
        store, largest, files = open_lmdb_store(tmp_path), 0, set()
        for number in range(2, 301):
            large = bytes([number % 256]) * 200_000
            store.apply("log", number, [(PREFIX, b"", b"%d" % number), (PREFIX, b"large", large)])
            largest = max(largest, data_of(tmp_path).stat().st_size)
            files.add(data_of(tmp_path).stat().st_ino)
            store.release()
            store.refresh()
        assert largest < lmdb_store.SLACK_BYTES + (2 << 20)
        # The reader has the first one; the second one grows no more.
        assert len(files) == 2
        assert data_of(tmp_path).stat().st_mode & 0o777 == 0o600
        assert [each.name for each in tmp_path.iterdir()] == [lmdb_store._subfolder()]
    store.refresh()
    assert store.get(PREFIX, b"") == b"301"
    store.close()


def test_a_process_that_has_not_seen_a_change_cannot_change_the_file_that_it_renews(tmp_path, monkeypatch):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    store.apply("log", 2, [(PREFIX, b"", b"2")])
    # Another process applied the second row.
    store._position = ("log", 1)
    monkeypatch.setattr(lmdb_store.LmdbDatabase, "clear_readers", lambda _: True)
    with pytest.raises(LocalStoreError, match="changed by another process"):
        store.apply("log", 2, [(PREFIX, b"", b"other 2")])
    store.close()
    store = open_lmdb_store(tmp_path)
    assert (store.position(), store.get(PREFIX, b"")) == (("log", 2), b"2")
    store.close()


def test_a_store_of_another_version_is_left_alone_and_not_read(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(lmdb_store, "_VERSION", 2)
        applied(tmp_path, 1, b"1")
    store = open_lmdb_store(tmp_path)
    assert store.position() is None
    store.close()


@pytest.mark.parametrize("keep", [0, mmap.PAGESIZE, 3 * mmap.PAGESIZE, None])
def test_a_file_that_was_cut_off_or_overwritten_is_a_store_that_starts_empty(tmp_path, keep):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, encode_key(number), b"v" * 1000) for number in range(200)])
    store.close()
    if keep is None:
        data_of(tmp_path).write_bytes(b"\xff" * data_of(tmp_path).stat().st_size)
    else:
        os.truncate(data_of(tmp_path), keep)
    store = open_lmdb_store(tmp_path)
    assert_same(store, ReferenceStore())
    store.close()


def data_of(path):
    return path / lmdb_store._subfolder() / "data.mdb"


def rot(path, old, new):
    """Change bytes in the file as a failing disk does: its status stays."""
    data = data_of(path).read_bytes()
    assert old in data
    data_of(path).write_bytes(data.replace(old, new))
    mark = StoreMark(data_of(path).parent, "data.mdb")
    mark.written()
    mark.close()


def test_an_entry_with_a_flipped_bit_is_an_error_at_each_way_of_reading_it(tmp_path):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, b"", b"right value"), (PREFIX, b"s" * 1000, b"long right")])
    store.close()
    for old, sub in ((b"right value", b""), (b"long right", b"s" * 1000)):
        rot(tmp_path, old, old.replace(b"r", b"s", 1))
        store = open_lmdb_store(tmp_path)
        assert store.position() == ("log", 1)
        for read in (
            partial(store.get, PREFIX, sub),
            partial(sorted, store.scan(PREFIX)),
            partial(sorted, store.items()),
        ):
            with pytest.raises(LocalStoreError, match="checksum of an entry does not match"):
                read()
        store.close()
        rot(tmp_path, old.replace(b"r", b"s", 1), old)


def test_a_file_that_something_else_has_changed_is_not_opened(tmp_path, monkeypatch):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    older = data_of(tmp_path).read_bytes()
    store.apply("log", 2, [(PREFIX, b"", b"2")])
    store.close()
    data_of(tmp_path).write_bytes(older)
    with monkeypatch.context() as patch:
        patch.setattr(lmdb_store.LmdbDatabase, "_open", None)
        with pytest.raises(LocalStoreError, match=r"something else has changed data\.mdb"):
            lmdb_store.LmdbStore(tmp_path)
    store = open_lmdb_store(tmp_path)
    assert store.position() is None
    store.close()


def test_a_file_that_something_else_changes_while_it_is_open_is_not_written(tmp_path):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    with data_of(tmp_path).open("r+b") as file:
        file.seek(5000)
        file.write(b"x")
    with pytest.raises(LocalStoreError, match="something else has changed"):
        store.apply("log", 2, [(PREFIX, b"", b"2")])
    store.release()
    with pytest.raises(LocalStoreError, match="something else has changed"):
        store.refresh()
    store.reset()
    assert store.position() is None
    store.apply("log", 2, [(PREFIX, b"", b"2")])
    store.close()


def test_a_store_in_which_two_processes_in_a_row_ended_is_not_opened_again(tmp_path, other):
    def work(*, ends):
        store = open_lmdb_store(tmp_path)
        assert store.position() == ("log", 1)
        if ends:
            store.release()
        os.kill(os.getpid(), signal.SIGKILL)

    applied(tmp_path, 1, b"1")
    for _ in range(3):
        # Between its batches a worker may be killed as often as Spark likes.
        other(lambda: work(ends=True), killed=True)
    store = open_lmdb_store(tmp_path)
    assert not store.is_doubtful()
    store.close()
    other(lambda: work(ends=False), killed=True)
    store = open_lmdb_store(tmp_path)
    assert (store.is_doubtful(), store.position()) == (True, ("log", 1))
    store.check()
    assert not store.is_doubtful()
    store.close()
    for _ in range(2):
        other(lambda: work(ends=False), killed=True)
    store = open_lmdb_store(tmp_path)
    assert (store.is_doubtful(), store.position()) == (False, None)
    store.close()


def test_a_batch_that_ran_ends_the_row_of_abnormal_ends(tmp_path, other):
    def work():
        store = open_lmdb_store(tmp_path)
        assert store.position() == ("log", 1)
        store.keep_rows("attempt", {})
        os.kill(os.getpid(), signal.SIGKILL)

    applied(tmp_path, 1, b"1")
    for _ in range(4):
        other(work, killed=True)
    store = open_lmdb_store(tmp_path)
    assert (store.is_doubtful(), store.position()) == (True, ("log", 1))
    store.close()


def test_a_batch_in_another_process_is_no_abnormal_end(tmp_path):
    def work(told):
        store = open_lmdb_store(tmp_path)
        told()
        store.close()

    with child(work):
        for _ in range(3):
            store = open_lmdb_store(tmp_path)
            assert not store.is_doubtful()
            store.close()


@pytest.mark.parametrize("key", [b"E", b"I"])
def test_an_index_that_does_not_fit_the_entries_is_found(tmp_path, key):
    prefix = state_prefix(TIMER_EVENT, 1, encode_key("a"), encode_key(None))
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(prefix, b"\x01" + encode_key("name"), encode_time(5)), (PREFIX, b"", b"1")])
    store.check()
    (found,) = [each for each, _ in store._database.range(key, key + b"\xff") if each[1] == TIMER_EVENT]
    with store._database.transaction():
        batch = store._database.batch()
        batch.delete(found)
        store._database.write(batch)
    with pytest.raises(LocalStoreError, match="index of times"):
        store.check()
    store.close()


def test_a_store_that_was_deleted_is_opened_again(tmp_path):
    store = open_lmdb_store(tmp_path)
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    delete_folder(tmp_path / lmdb_store._subfolder())
    store.refresh()
    assert store.position() is None
    store.apply("log", 1, [(PREFIX, b"", b"1")])
    store.close()


def test_long_keys_keep_their_order(tmp_path):
    store, expected = open_lmdb_store(tmp_path), ReferenceStore()
    sizes = (300, 400, 450, 470, 479, 480, 600, 2000)
    changes = [(PREFIX, bytes([first]) * size, b"%d" % size) for first in (1, 2, 255) for size in sizes]
    for each in (store, expected):
        each.apply("log", 1, changes)
        each.apply("log", 2, changes[::3])
        each.apply("log", 3, [(prefix, sub, None) for prefix, sub, _ in changes[::4]])
    assert_same(store, expected)
    store.close()


def test_rows_are_kept_until_those_of_another_attempt(tmp_path):
    store = open_lmdb_store(tmp_path)
    assert store.kept_rows("a") is None
    store.keep_rows("a", {1: b"one", 2: b"two"})
    assert store.position() is None
    assert (store.kept_rows("a"), store.kept_rows("b")) == ({1: b"one", 2: b"two"}, None)
    store.keep_rows("b", {2: b"other"})
    assert (store.kept_rows("a"), store.kept_rows("b")) == (None, {2: b"other"})
    store.close()
    store = open_lmdb_store(tmp_path)
    assert store.kept_rows("b") == {2: b"other"}
    store.close()
