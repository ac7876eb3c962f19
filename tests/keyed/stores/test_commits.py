"""Both commit stores: what is written, committed, rolled back and restored."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyed.errors import CheckpointError, CorruptionError
from keyed.stores.commit_store import CommitStore, MemoryCommitStore


@pytest.fixture(params=["disk", "memory"])
def store(request, tmp_path):
    made = CommitStore(tmp_path / "checkpoint") if request.param == "disk" else MemoryCommitStore()
    yield made
    made.close()


def test_a_new_store_is_empty(store):
    log = store.group_log("op", 0)
    assert (store.read("position"), log.read_meta(), list(log.read(0, 2**62))) == (None, None, [])


def test_what_is_written_is_read_at_once(store):
    log = store.group_log("op", 3)
    log.append(2, b"two")
    log.append(1, b"one")
    log.write_meta(b"meta")
    store.write("position", b"")
    assert (store.read("position"), log.read_meta(), list(log.read(1, 2))) == (b"", b"meta", [(1, b"one"), (2, b"two")])
    log.drop(1)
    assert list(store.group_log("op", 3).read(0, 9)) == [(2, b"two")]


def test_rollback_drops_what_is_not_committed(store):
    log = store.group_log("op", 0)
    log.append(1, b"one")
    log.write_meta(b"1")
    store.write("position", b"1")
    store.commit()
    log.append(2, b"two")
    log.append(1, b"another")
    log.write_meta(b"2")
    store.write("position", b"2")
    store.rollback()
    assert (store.read("position"), log.read_meta(), list(log.read(0, 9))) == (b"1", b"1", [(1, b"one")])
    store.commit()
    assert list(log.read(0, 9)) == [(1, b"one")]


def test_logs_of_groups_and_operators_are_apart(store):
    places = [(operator, group) for operator in ("a", "a_", "b", "a-1") for group in (0, 1, 255, 256)]
    for operator, group in places:
        log = store.group_log(operator, group)
        log.append(0, f"{operator}{group}".encode())
        log.append(2**40, b"last")
        log.write_meta(f"{operator}{group}".encode())
    store.commit()
    for operator, group in places:
        log = store.group_log(operator, group)
        assert list(log.read(0, 2**62)) == [(0, f"{operator}{group}".encode()), (2**40, b"last")]
        assert log.read_meta() == f"{operator}{group}".encode()


def test_read_is_inclusive_at_both_ends_and_in_order(store):
    log = store.group_log("op", 0)
    for row in (300, 5, 1, 256, 2):
        log.append(row, b"%d" % row)
    store.commit()
    log.append(255, b"255")
    log.append(3, b"3")
    log.drop(2)
    for first, last in ((1, 300), (2, 256), (3, 3), (4, 4), (5, 1), (256, 2**62)):
        expected = [row for row in (1, 3, 5, 255, 256, 300) if first <= row <= last]
        assert [row for row, _ in log.read(first, last)] == expected
        assert all(record == b"%d" % row for row, record in log.read(first, last))


@pytest.mark.parametrize("name", ["", "a/b", "ä", "a b", "x" * 129, "a\n"])
def test_names_are_letters_digits_underscore_and_hyphen(store, name):
    for call in (store.read, lambda each: store.write(each, b""), lambda each: store.group_log(each, 0)):
        with pytest.raises(CheckpointError, match="is not 1 to 128"):
            call(name)


def test_names_of_full_length_are_allowed(store):
    store.write("aZ09_-" + "x" * 122, b"1")
    store.commit()
    assert store.read("aZ09_-" + "x" * 122) == b"1"


def test_a_commit_store_of_a_later_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("keyed.stores.commit_store._VERSION", 2)
    CommitStore(tmp_path).close()
    monkeypatch.undo()
    with pytest.raises(CorruptionError, match="version 2"):
        CommitStore(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match=r"/file'; give the path of a folder"):
        CommitStore(tmp_path / "file")


def test_a_snapshot_restores_what_was_committed():
    store = MemoryCommitStore()
    log = store.group_log("op", 7)
    log.append(1, b"one")
    log.append(2, b"two")
    log.write_meta(b"meta")
    store.write("position", b"p")
    store.commit()
    log.drop(1)
    store.write("position", b"not committed")
    snapshot = store.snapshot()
    for other in (MemoryCommitStore(), store):
        other.restore(snapshot)
        restored = other.group_log("op", 7)
        assert (other.read("position"), restored.read_meta()) == (b"p", b"meta")
        assert list(restored.read(0, 9)) == [(1, b"one"), (2, b"two")]
        assert other.snapshot() == snapshot


ROWS = st.integers(0, 6)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), ROWS, st.binary(max_size=3)),
        st.tuples(st.just("drop"), ROWS),
        st.tuples(st.just("meta"), st.binary(max_size=3)),
        st.tuples(st.just("write"), st.sampled_from("ab"), st.binary(max_size=3)),
        st.tuples(st.just("read"), ROWS, ROWS),
        st.tuples(st.sampled_from(["commit", "rollback", "reopen"])),
    ),
    max_size=40,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS)
def test_both_stores_agree_on_all_sequences_of_operations(tmp_path, actions):
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    disk, memory = CommitStore(folder), MemoryCommitStore()
    for name, *arguments in [*actions, ("read", 0, 9), ("commit",), ("reopen",), ("read", 0, 9)]:
        logs = [store.group_log("op", 1) for store in (disk, memory)]
        if name == "read":
            assert list(logs[0].read(*arguments)) == list(logs[1].read(*arguments))
            assert logs[0].read_meta() == logs[1].read_meta()
            assert [disk.read(key) for key in "ab"] == [memory.read(key) for key in "ab"]
        elif name == "reopen":
            disk.close()
            disk = CommitStore(folder)
            memory.rollback()
        else:
            on_log = {"append": "append", "drop": "drop", "meta": "write_meta"}.get(name)
            for store, log in zip((disk, memory), logs, strict=True):
                getattr(log if on_log else store, on_log or name)(*arguments)
    disk.close()
