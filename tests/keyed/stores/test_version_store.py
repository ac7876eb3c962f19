"""The versions of entries against dictionaries, one for each commit."""

from itertools import chain
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import encode_key
from keyed.content.addresses import key_of, state_prefix
from keyed.errors import LocalStoreError
from keyed.stores import version_store
from keyed.stores.database import Database
from keyed.stores.version_store import Era, Extent, VersionedBatch, VersionReader, VersionStore

NONE = encode_key(None)
ADDRESSES = [(state_prefix(1, 1, encode_key(key), NONE), sub) for key in range(4) for sub in (b"", b"\x05")]
FIRST, END = b"\x01", b"\x02"
changes = st.lists(st.tuples(st.sampled_from(ADDRESSES), st.none() | st.binary(max_size=3)), max_size=5)


def batch(commit: int, entries: int = 0) -> VersionedBatch:
    return VersionedBatch(
        commit=commit,
        batch=commit + 5,
        log_id="log",
        watermark=commit * 10,
        processing_time=commit * 1000,
        hashes=(),
        entries=entries,
    )


def parts_of(changes: list, buckets: int | None) -> list:
    """Changes with their buckets, if these are known."""
    if buckets is None:
        return [(None, changes)]
    return [(group_of(key_hash(key_of(change[0])), buckets), [change]) for change in changes]


def test_a_reopening_that_is_interrupted_leaves_look_ups_refused_and_is_repeated(tmp_path, monkeypatch):
    database = Database(tmp_path / "store", LocalStoreError, wal=True)
    close = database._close

    def interrupt():
        close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(database, "_close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            database.reopen()
    # Otherwise each waits for the lock that it holds.
    assert database.get != database._get_later
    database.reopen()
    assert database.look_up(b"key") is None
    database.close()


def seen(store: VersionStore, commit: int) -> dict:
    return {(prefix, sub): value for prefix, sub, value in store.scan(FIRST, END, commit)}


@given(st.data())
@settings(deadline=None)
def test_every_commit_from_the_oldest_one_on_is_as_it_was(data):
    with TemporaryDirectory() as folder:
        patched, version_store._SWEEP_LEAST = version_store._SWEEP_LEAST, 1
        steps, version_store._SWEEP_STEP = version_store._SWEEP_STEP, data.draw(st.integers(1, 8))
        store = VersionStore(folder)
        buckets = data.draw(st.sampled_from([None, 1, 3]))
        store.buckets = buckets or 1
        try:
            states: list[dict] = [{}]
            oldest, last = 1, data.draw(st.integers(1, 8))
            together: list = []
            for commit in range(1, last + 1):
                state = dict(states[-1])
                parts = data.draw(st.lists(changes, min_size=1, max_size=2))
                for part in parts:
                    for address, value in part:
                        state.pop(address, None)
                        if value is not None:
                            state[address] = value
                written = [[(*address, value) for address, value in part] for part in parts]
                ahead = [] if together else written[:-1]
                for part in ahead:
                    store.write(commit, parts_of(part, buckets))
                    if commit > 1:
                        assert seen(store, commit - 1) == states[-1]
                parts = [part for change in written[len(ahead) :] for part in parts_of(change, buckets)]
                together.append((batch(commit, len(state)), parts))
                states.append(state)
                if 1 < commit < last and data.draw(st.booleans()):
                    continue
                oldest = data.draw(st.integers(oldest, commit))
                store.apply(together, oldest)
                together = []
                if data.draw(st.booleans()):
                    # What was written of a commit that never came is gone when the next one is written.
                    lost = data.draw(changes)
                    store.write(commit + 1, [(None, [(*address, value) for address, value in lost])])
                    if data.draw(st.booleans()):
                        store.close()
                        store = VersionStore(folder)
                    else:
                        store.undo()
                for past in range(oldest, commit + 1):
                    assert seen(store, past) == states[past]
                    assert [*store.scan(FIRST, END, past, reverse=True)] == [*store.scan(FIRST, END, past)][::-1]
                    joined = [prefix + sub for prefix, sub in ADDRESSES]
                    expected = [states[past].get(address) for address in ADDRESSES]
                    assert [store.get(address, past) for address in joined] == expected
                    assert store.get_many(joined, past) == expected
                    assert store.batch(past) == batch(past, len(states[past]))
                    for parallelism in (1, 2, 3, 6):
                        groups = [list(store.group(index, parallelism, past)) for index in range(parallelism)]
                        assert sorted(chain(*groups)) == sorted((*a, v) for a, v in states[past].items())
                assert sum(1 for _ in store._database.range(b"C", b"D")) == commit + 1 - oldest
                for address in ADDRESSES:
                    versions = list(store.history(b"".join(address)))
                    for past in range(oldest, commit + 1):
                        at = next((value for number, value in versions if number <= past), None)
                        assert at == states[past].get(address)
        finally:
            version_store._SWEEP_LEAST, version_store._SWEEP_STEP = patched, steps
            store.close()


A, B = state_prefix(1, 1, encode_key("a"), NONE), state_prefix(1, 1, encode_key("b"), NONE)


def test_a_sweep_leaves_what_the_oldest_commit_sees_and_later_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(version_store, "_SWEEP_LEAST", 1)
    with_rows = VersionStore(tmp_path)
    with_rows.buckets = 1
    for commit in range(1, 101):
        with_rows.apply([(batch(commit, 2), [(0, [(A, b"", b"%d" % commit), (B, b"", b"1")])])], commit)
    versions = sum(1 for _ in with_rows._database.range(b"V", b"W"))
    assert versions <= 8
    assert seen(with_rows, 100) == {(A, b""): b"100", (B, b""): b"1"}
    for commit in range(101, 110):
        with_rows.apply([(batch(commit, 0), [(0, [(A, b"", None), (B, b"", None)])])], commit)
    assert seen(with_rows, 109) == {}
    assert sum(1 for _ in with_rows._database.range(b"L", b"W")) <= 8
    with_rows.close()


def test_a_reader_shows_what_was_written_when_it_was_refreshed(tmp_path):
    store = VersionStore(tmp_path / "store")
    store.buckets = 1
    store.apply([(batch(1), [(0, [(A, b"", b"1")])])], 1)
    reader = VersionReader(tmp_path / "store")
    store.apply([(batch(2), [(0, [(A, b"", b"2")])])], 1)
    eras = (Era("log", 1, 6),)
    assert reader.extent == Extent(eras, 1, 1, 1)
    assert seen(reader, 1) == {(A, b""): b"1"}
    assert reader.refresh()
    assert reader.extent == Extent(eras, 1, 1, 2)
    assert seen(reader, 2) == {(A, b""): b"2"}
    new = store.successor()
    store.close(delete=True)
    assert seen(reader, 2) == {(A, b""): b"2"}
    new.buckets = 1
    new.apply([(batch(1), [(0, [(A, b"", b"7")])])], 1)
    assert not reader.refresh()
    reader.close()
    reader = VersionReader(tmp_path / "store")
    assert seen(reader, 1) == {(A, b""): b"7"}
    reader.close()
    new.close()


def test_batches_are_found_by_their_changelog(tmp_path):
    extent = Extent((Era("a", 1, 1), Era("b", 6, 4), Era("c", 9, 20)), 1, 3, 10)
    assert [extent.batch_of(commit) for commit in range(3, 11)] == [3, 4, 5, 4, 5, 6, 20, 21]
    assert [extent.commit_of(batch) for batch in (2, 3, 4, 5, 6, 7, 20, 21, 22)] == [
        None, 3, 6, 7, 8, None, 9, 10, None
    ]  # fmt: skip
    assert [extent.commit_of(batch, "a") for batch in range(2, 7)] == [None, 3, 4, 5, None]
    assert (extent.batch, extent.log_id) == (21, "c")


def test_a_damaged_store_begins_anew_and_says_so(tmp_path):
    store = VersionStore(tmp_path)
    store.buckets = 1
    store.apply([(batch(1), [(0, [(A, b"", b"1")])])], 1)
    store.close()
    for file in tmp_path.glob("*/MANIFEST-*"):
        file.write_bytes(b"nonsense")
    store = VersionStore(tmp_path)
    assert "cannot be opened" in store.damage
    assert store.extent is None
    assert len(list(tmp_path.iterdir())) == 1
    store.close()
