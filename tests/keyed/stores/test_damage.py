"""Files of a store are flipped, cut and deleted: an error that names the folder, or a whole state that is older."""

import random
import re
import shutil
from collections import Counter
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from keyed.base.arguments import MAX_TIMESTAMP
from keyed.codec.frames import RecordFormat
from keyed.content.blocks import TableDelta
from keyed.content.row_hash import HASH_VERSION
from keyed.errors import CheckpointError, CorruptionError, LocalStoreError
from keyed.stores import database, disk_tables, open_rocks_store
from keyed.stores.commit_store import CommitStore
from keyed.stores.rocks_store import RocksStore
from keyed.testing.store_conformance import ReferenceStore, assert_same, random_changes
from tests.support.damages import KINDS
from tests.support.damages import damage as damage_file

STEPS = 12


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Small buffers, so that there are many files, and no cache, which would know the blocks of a damaged copy."""
    monkeypatch.setattr(database, "WRITE_BUFFER_BYTES", 64 << 10)
    monkeypatch.setattr(database, "CACHE_BYTES", 1)
    database._shared.cache_clear()
    yield
    database._shared.cache_clear()


def damage(path, number):
    """Delete a file, or damage it; its old copy is empty."""
    if number.randrange(8):
        damage_file(path, number.choice(KINDS), number, b"")
    else:
        path.unlink()


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(("LOG", "LOCK")))


def answers(call):
    """The answer of a call that reads, or None when it raised what it may."""
    try:
        return call()
    except LocalStoreError as error:
        check_named(error, "keyed-store-1")
        return None


def check_named(error, name):
    """An error tells where the damage is."""
    assert str(name) in str(error)


def check_store(store, state, number):
    """Every answer is right for the state, or an error."""
    entries = state.entries
    found = answers(lambda: sorted(store.items()))
    assert found is None or found == sorted(state.items())
    for prefix, sub in number.sample(sorted(entries), min(len(entries), 60)):
        value = answers(lambda prefix=prefix, sub=sub: (store.get(prefix, sub),))
        assert value is None or value == (entries[prefix, sub],)
        assert answers(lambda prefix=prefix: store.get(prefix, b"not there")) is None
        listed = answers(lambda prefix=prefix: list(store.scan(prefix)))
        assert listed is None or listed == list(state.scan(prefix))
    for kind in range(2, 6):
        for up_to in (-2, 3, MAX_TIMESTAMP):
            due = answers(lambda kind=kind, up_to=up_to: list(store.due(kind, up_to)))
            assert due is None or due == list(state.due(kind, up_to))


def states_of(store, number):
    """Apply rows to a store, closing it in between, and give what it holds after each of them."""
    states: dict[tuple[str, int] | None, ReferenceStore] = {None: ReferenceStore()}
    state = ReferenceStore()
    for row in range(1, STEPS + 1):
        changes = random_changes(number, 500, keys=150, times=60)
        store.apply("log", row, changes)
        state.apply("log", row, changes)
        copy = states["log", row] = ReferenceStore()
        copy.entries, copy.applied = dict(state.entries), state.applied
        if row % 3 == 0:
            store.close()
            store = RocksStore(store.path)
    store.close()
    return states


@pytest.mark.slow
def test_a_damaged_local_store_is_an_error_or_an_older_state(tmp_path):
    number = random.Random(7)
    original = tmp_path / "original"
    states = states_of(RocksStore(original), number)
    outcomes: Counter[str] = Counter()
    for attempt in range(60):
        folder = tmp_path / str(attempt)
        shutil.copytree(original, folder)
        path = number.choice(files_of(folder))
        damage(path, number)
        try:
            store = RocksStore(folder)
        except LocalStoreError as error:
            check_named(error, folder)
            outcomes["refused"] += 1
            store = open_rocks_store(folder)
            assert_same(store, ReferenceStore())
        else:
            state = states[store.position()]
            outcomes["older" if state.applied != ("log", STEPS) else "opened"] += 1
            check_store(store, state, number)
        store.reset()
        changes = random_changes(number, 200)
        store.apply("log", 1, changes)
        expected = ReferenceStore()
        expected.apply("log", 1, changes)
        assert_same(store, expected)
        store.close()
        shutil.rmtree(folder)
    assert outcomes["refused"] > 15
    assert outcomes["opened"] > 3


@pytest.mark.parametrize("name", ["MANIFEST-*", "*.log"])
def test_a_record_type_on_which_rocksdb_spins_is_refused(tmp_path, name):
    CommitStore(tmp_path).close()
    CommitStore(tmp_path).close()
    (path,) = tmp_path.rglob(name)
    with path.open("ab") as file:
        file.write(bytes.fromhex("290cf026077e0525c4aadb2810eb443b5bfa229f"))
    with pytest.raises(CorruptionError, match=r"^the checkpoint cannot be opened: .*unknown record type 5"):
        CommitStore(tmp_path)


def test_damage_while_a_store_is_open_is_an_error_after_which_it_can_be_reset(tmp_path):
    store = RocksStore(tmp_path)
    state = ReferenceStore()
    changes = random_changes(random.Random(1), 3_000, keys=400)
    for each in (store, state):
        each.apply("log", 1, changes)
    store.close()
    store = RocksStore(tmp_path)
    for path in tmp_path.rglob("*.sst"):
        with path.open("r+b") as file:
            for at in range(0, path.stat().st_size, 1_000):
                file.seek(at)
                file.write(b"damage")
    check_store(store, state, random.Random(2))
    with pytest.raises(LocalStoreError, match=re.escape(str(tmp_path))) as caught:
        list(store.items())
    # Frames of an error that is held exist.
    store.reset()
    assert_same(store, ReferenceStore())
    store.close()
    assert "cannot be read" in str(caught.value)


def test_a_store_whose_folder_is_deleted_while_it_is_open_can_be_reset(tmp_path):
    folder = tmp_path / "group"
    store = open_rocks_store(folder)
    store.apply("log", 1, random_changes(random.Random(1), 100))
    shutil.rmtree(folder)
    store.reset()
    assert_same(store, ReferenceStore())
    store.close()
    store = open_rocks_store(folder)
    shutil.rmtree(folder)
    store.apply("log", 1, random_changes(random.Random(1), 100))
    store.close()


def commits_of(folder):
    """Commit to a store, and give what it holds after each commit."""
    number = random.Random(3)
    store = CommitStore(folder)
    states: dict[bytes | None, dict[int, bytes]] = {None: {}}
    rows: dict[int, bytes] = {}
    for commit in range(1, STEPS + 1):
        log = store.group_log("op", 0)
        rows[commit] = number.randbytes(number.choice((300, 40_000)))
        log.append(commit, rows[commit])
        if commit > 5:
            log.drop(commit - 5)
            del rows[commit - 5]
        store.write("position", b"%d" % commit)
        store.commit()
        states[b"%d" % commit] = dict(rows)
        if commit == 6:
            store.close()
            database.WRITE_BUFFER_BYTES = 32 << 20
            store = CommitStore(folder)
        if commit == STEPS - 2:
            # A copy of an open store that does nothing is what a crash leaves: its last commits are in the log only.
            shutil.copytree(folder, folder.with_name("crashed"))
    store.close()
    return states


@pytest.mark.parametrize("name", ["original", "crashed"])
def test_a_damaged_commit_store_is_an_error_or_an_older_commit(tmp_path, name):
    number = random.Random(5)
    states = commits_of(tmp_path / "original")
    last = b"%d" % (STEPS if name == "original" else STEPS - 2)
    outcomes: Counter[str] = Counter()
    for attempt in range(50):
        folder = tmp_path / str(attempt)
        shutil.copytree(tmp_path / name, folder)
        damage(number.choice(files_of(folder)), number)
        try:
            store = CommitStore(folder)
        except (CorruptionError, CheckpointError) as error:
            check_named(error, folder)
            outcomes["refused"] += 1
        else:
            try:
                position = store.read("position")
                rows = dict(store.group_log("op", 0).read(0, 99))
            except CorruptionError as error:
                check_named(error, folder)
                outcomes["refused"] += 1
            else:
                assert rows == states[position]
                outcomes["older" if position != last else "opened"] += 1
            store.close()
        shutil.rmtree(folder)
    assert outcomes["refused"] > 10
    assert outcomes["opened"] > 3


def test_a_table_whose_rows_have_hashes_of_another_version_is_not_read(tmp_path, monkeypatch):
    rows = pa.table({"k": [1, 2], "v": [3, 4]})
    with closing(open_rocks_store(tmp_path / "store")) as store:
        store.apply("log", 1, [], [TableDelta(7, ("k",), upserts=rows)])
    record = disk_tables._DIRECTORY
    newest = HASH_VERSION + 1
    newer: Any = RecordFormat(record.kind, newest, disk_tables._Directory)
    monkeypatch.setattr(disk_tables, "_DIRECTORY", newer)
    # What runs on the store resets it then, and builds it anew from the log.
    with (
        closing(open_rocks_store(tmp_path / "store")) as store,
        pytest.raises(LocalStoreError, match="KTBL record has version 1, and this program reads version 2"),
    ):
        store.table(7)


def test_a_file_where_the_folder_should_be_is_no_damage(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "beneath"):
        with pytest.raises(LocalStoreError, match=r"keyed-store-1 cannot be created: .*file"):
            open_rocks_store(path)
    assert (tmp_path / "file").is_file()
