"""The versions of entries against dictionaries, one for each commit."""

from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from keyed.views import version_store
from keyed.views.version_store import Extent, VersionedBatch, VersionReader, VersionStore

ADDRESSES = [(b"\x01" + bytes([key]), sub) for key in range(4) for sub in (b"", b"\x05")]
FIRST, END = b"\x01", b"\x02"
changes = st.lists(st.tuples(st.sampled_from(ADDRESSES), st.none() | st.binary(max_size=3)), max_size=5)


def batch(commit: int, entries: int = 0) -> VersionedBatch:
    return VersionedBatch(
        commit=commit, watermark=commit * 10, processing_time=commit * 1000, hashes=(), entries=entries
    )


def seen(store: VersionStore, commit: int) -> dict:
    return {(prefix, sub): value for prefix, sub, value in store.scan(FIRST, END, commit)}


@given(st.data())
@settings(deadline=None)
def test_every_commit_from_the_oldest_one_on_is_as_it_was(data):
    with TemporaryDirectory() as folder:
        patched, version_store._SWEEP_LEAST = version_store._SWEEP_LEAST, 1
        steps, version_store._SWEEP_STEP = version_store._SWEEP_STEP, data.draw(st.integers(1, 8))
        store = VersionStore(folder)
        try:
            states: list[dict] = [{}]
            oldest = 1
            for commit in range(1, data.draw(st.integers(1, 6)) + 1):
                state = dict(states[-1])
                parts = data.draw(st.lists(changes, min_size=1, max_size=2))
                for part in parts:
                    for address, value in part:
                        state.pop(address, None)
                        if value is not None:
                            state[address] = value
                written = [[(*address, value) for address, value in part] for part in parts]
                for part in written[:-1]:
                    store.write(commit, part)
                    if commit > 1:
                        assert seen(store, commit - 1) == states[-1]
                oldest = data.draw(st.integers(oldest, commit))
                store.apply("log", batch(commit, len(state)), written[-1], oldest)
                states.append(state)
                if data.draw(st.booleans()):
                    store.close()
                    store = VersionStore(folder)
                for past in range(oldest, commit + 1):
                    assert seen(store, past) == states[past]
                    joined = [prefix + sub for prefix, sub in ADDRESSES]
                    expected = [states[past].get(address) for address in ADDRESSES]
                    assert [store.get(address, past) for address in joined] == expected
                    assert store.get_many(joined, past) == expected
                    assert store.batch(past) == batch(past, len(states[past]))
                assert [found.commit for found in store.batches()] == list(range(oldest, commit + 1))
                for address in ADDRESSES:
                    versions = list(store.history(b"".join(address)))
                    for past in range(oldest, commit + 1):
                        at = next((value for number, value in versions if number <= past), None)
                        assert at == states[past].get(address)
        finally:
            version_store._SWEEP_LEAST, version_store._SWEEP_STEP = patched, steps
            store.close()


def test_a_sweep_leaves_what_the_oldest_commit_sees_and_later_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(version_store, "_SWEEP_LEAST", 1)
    with_rows = VersionStore(tmp_path)
    for commit in range(1, 101):
        with_rows.apply("log", batch(commit, 2), [(b"\x01a", b"", b"%d" % commit), (b"\x01b", b"", b"1")], commit)
    versions = sum(1 for _ in with_rows._database.range(b"V", b"W"))
    assert versions <= 8
    assert seen(with_rows, 100) == {(b"\x01a", b""): b"100", (b"\x01b", b""): b"1"}
    for commit in range(101, 110):
        with_rows.apply("log", batch(commit, 0), [(b"\x01a", b"", None), (b"\x01b", b"", None)], commit)
    assert seen(with_rows, 109) == {}
    assert sum(1 for _ in with_rows._database.range(b"L", b"W")) <= 8
    with_rows.close()


def test_a_reader_shows_what_was_written_when_it_was_refreshed(tmp_path):
    store = VersionStore(tmp_path / "store")
    store.apply("log", batch(1), [(b"\x01a", b"", b"1")], 1)
    own = tmp_path / "own"
    own.mkdir()
    reader = VersionReader(tmp_path / "store", own)
    store.apply("log", batch(2), [(b"\x01a", b"", b"2")], 1)
    assert reader.extent == Extent("log", 1, 1)
    assert seen(reader, 1) == {(b"\x01a", b""): b"1"}
    assert reader.refresh()
    assert reader.extent == Extent("log", 1, 2)
    assert seen(reader, 2) == {(b"\x01a", b""): b"2"}
    new = store.successor()
    store.close(delete=True)
    assert seen(reader, 2) == {(b"\x01a", b""): b"2"}
    new.apply("other", batch(7), [(b"\x01a", b"", b"7")], 7)
    assert not reader.refresh()
    reader.close()
    own.mkdir()
    reader = VersionReader(tmp_path / "store", own)
    assert reader.extent == Extent("other", 7, 7)
    assert seen(reader, 7) == {(b"\x01a", b""): b"7"}
    reader.close()
    new.close()
