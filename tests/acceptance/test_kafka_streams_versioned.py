"""Kafka Streams' versioned store: RocksDBVersionedStoreTest of 4.x, each test under its own name.

Tests with the same steps are one test, with the other name as a case.

Stream time is the watermark here: a put moves it to just before its timestamp, as a stream without a delay does. Ranges
come with the oldest version first, where Kafka's default is the newest.
"""

from __future__ import annotations

import pytest

import keyed
from keyed import NOT_PUT, VersionedRecord
from tests.acceptance.support import Harness, Told

HISTORY = 300_000
SEGMENT = HISTORY // 3
BASE = 10
NEWEST = None


class Versions(Told):
    state = keyed.VersionedState(str, history=HISTORY)


class NoHistory(Told):
    state = keyed.VersionedState(str, history=0)


class Store:
    """One store of all keys, as the original has it.

    Args:
        restored: Whether it is restored, at another parallelism, before the first look at it.
    """

    def __init__(self, backend: str, restored: bool, function: type[Told] = Versions) -> None:
        self._function, self._backend, self._restored = function, backend, restored
        self.harness = Harness(function(), store=backend)
        self._time = -1

    def put(self, key, value, timestamp, valid_to=...):
        if timestamp - 1 > self._time:
            self._time = timestamp - 1
            self.harness.advance_watermark(self._time)
        found = self.harness.call(lambda f, _: f.state.put(value, timestamp), key=key)
        assert valid_to is ... or found == valid_to

    def delete(self, key, timestamp, expected):
        if timestamp - 1 > self._time:
            self._time = timestamp - 1
            self.harness.advance_watermark(self._time)
        found = self.harness.call(lambda f, _: f.state.delete(timestamp), key=key)
        assert (found and (found.value, found.timestamp)) == expected

    def has(self, key, value, timestamp):
        expected = None if value is None else VersionedRecord(value, timestamp)
        assert self._look(key, lambda state: state.get()) == expected

    def lacks(self, key):
        assert self._look(key, lambda state: state.get()) is None

    def had(self, key, as_of, value, timestamp, valid_to):
        expected = None if value is None else VersionedRecord(value, timestamp, valid_to)
        assert self._look(key, lambda state: state.get(as_of)) == expected

    def had_nothing(self, key, as_of):
        assert self._look(key, lambda state: state.get(as_of)) is None

    def had_between(self, key, from_, to, expected):
        assert self._look(key, lambda state: state.get_range(from_, to)) == [VersionedRecord(*one) for one in expected]

    def dropped(self, count):
        assert self.harness.metrics()["versions_dropped"] == count

    def restore(self, times=1):
        for _ in range(times):
            old = self.harness
            self.harness = old.again(self._function(), store=self._backend, parallelism=2)
            old.close()

    def _look(self, key, look):
        if self._restored:
            self._restored = False
            self.restore()
        return self.harness.call(lambda f, _: look(f.state), key=key)


@pytest.fixture(params=[("memory", False), ("rocksdb", True)], ids=["memory", "rocksdb restored"])
def store(request):
    store = Store(*request.param)
    yield store
    store.harness.close()


def test_should_put_latest(store):
    store.put("k", "v", BASE, NEWEST)
    store.put("k", "v2", BASE + 1, NEWEST)
    store.has("k", "v2", BASE + 1)
    store.had("k", BASE, "v", BASE, BASE + 1)
    store.had("k", BASE + 1, "v2", BASE + 1, NEWEST)
    store.had("k", BASE + 2, "v2", BASE + 1, NEWEST)


def test_should_put_null_as_latest(store):
    store.put("k", None, BASE, NEWEST)
    store.put("k", None, BASE + 1, NEWEST)
    store.lacks("k")
    store.had_nothing("k", BASE)
    store.had_nothing("k", BASE + 1)
    store.had_nothing("k", BASE + 2)


@pytest.mark.parametrize("latest", ["v", None], ids=["non_null_latest", "null_latest"])
def test_should_put_older(store, latest):
    store.put("k", latest, BASE, NEWEST)
    store.put("k", "v2", BASE - 2, BASE)
    store.put("k", "v1", BASE - 1, BASE)
    store.put("k", "v4", BASE - 4, BASE - 2)
    store.has("k", latest, BASE)
    store.had("k", BASE, latest, BASE, NEWEST)
    store.had("k", BASE - 1, "v1", BASE - 1, BASE)
    store.had("k", BASE - 2, "v2", BASE - 2, BASE - 1)
    store.had("k", BASE - 3, "v4", BASE - 4, BASE - 2)


def test_should_put_older_null_with_non_null_latest(store):
    store.put("k", "v", BASE, NEWEST)
    store.put("k", None, BASE - 2, BASE)
    store.put("k", None, BASE - 1, BASE)
    store.put("k", None, BASE - 4, BASE - 2)
    store.put("k", "v5", BASE - 5, BASE - 4)
    store.put("k", "v3", BASE - 3, BASE - 2)
    store.put("k", None, BASE - 6, BASE - 5)
    store.has("k", "v", BASE)
    store.had("k", BASE, "v", BASE, NEWEST)
    store.had_nothing("k", BASE - 1)
    store.had_nothing("k", BASE - 2)
    store.had("k", BASE - 3, "v3", BASE - 3, BASE - 2)
    store.had_nothing("k", BASE - 4)
    store.had("k", BASE - 5, "v5", BASE - 5, BASE - 4)
    store.had_nothing("k", BASE - 6)


def test_should_put_older_null_with_null_latest(store):
    store.put("k", None, BASE, NEWEST)
    store.put("k", None, BASE - 2, BASE)
    store.put("k", None, BASE - 1, BASE)
    store.put("k", None, BASE - 4, BASE - 2)
    store.put("k", "v3", BASE - 3, BASE - 2)
    store.put("k", "v5", BASE - 5, BASE - 4)
    store.put("k", None, BASE - 6, BASE - 5)
    store.lacks("k")
    store.had_nothing("k", BASE)
    store.had_nothing("k", BASE - 1)
    store.had_nothing("k", BASE - 2)
    store.had("k", BASE - 3, "v3", BASE - 3, BASE - 2)
    store.had_nothing("k", BASE - 4)
    store.had("k", BASE - 5, "v5", BASE - 5, BASE - 4)
    store.had_nothing("k", BASE - 6)


def test_should_put_repeat_timestamp_as_latest(store):
    store.put("k", "to_be_replaced", BASE, NEWEST)
    store.put("k", "b", BASE, NEWEST)
    store.has("k", "b", BASE)
    store.had("k", BASE, "b", BASE, NEWEST)
    store.had_nothing("k", BASE - 1)
    store.put("k", None, BASE, NEWEST)
    store.lacks("k")
    store.had_nothing("k", BASE)
    store.had_nothing("k", BASE - 1)
    store.put("k", None, BASE, NEWEST)
    store.lacks("k")
    store.had_nothing("k", BASE)
    store.had_nothing("k", BASE - 1)
    store.put("k", "b", BASE, NEWEST)
    store.has("k", "b", BASE)
    store.had("k", BASE, "b", BASE, NEWEST)
    store.had_nothing("k", BASE - 1)


def assert_nulls_with_values_between(store, vp5="vp5", vn5="vn5", vn6="vn6"):
    store.lacks("k")
    store.had_nothing("k", SEGMENT + 30)
    store.had_nothing("k", SEGMENT + 15)
    store.had("k", SEGMENT + 6, vp5, SEGMENT + 5, SEGMENT + 10)
    store.had_nothing("k", SEGMENT + 2)
    store.had_nothing("k", SEGMENT)
    store.had_nothing("k", SEGMENT - 1)
    store.had("k", SEGMENT - 5, vn5, SEGMENT - 5, SEGMENT - 1)
    store.had("k", SEGMENT - 6, vn6, SEGMENT - 6, SEGMENT - 5)
    store.had_nothing("k", SEGMENT - 8)


@pytest.mark.parametrize(
    "restores", [pytest.param(0, id="put"), pytest.param(1, id="restore_with_nulls_and_repeat_timestamps")]
)
def test_should_put_repeat_timestamps(store, restores):
    store.put("k", "to_be_replaced", SEGMENT + 20, NEWEST)
    store.put("k", None, SEGMENT - 10, SEGMENT + 20)
    store.put("k", "to_be_replaced", SEGMENT - 10, SEGMENT + 20)
    store.put("k", None, SEGMENT - 10, SEGMENT + 20)
    store.put("k", "to_be_replaced", SEGMENT - 1, SEGMENT + 20)
    store.put("k", "to_be_replaced", SEGMENT + 1, SEGMENT + 20)
    store.put("k", None, SEGMENT - 1, SEGMENT + 1)
    store.put("k", None, SEGMENT + 1, SEGMENT + 20)
    store.put("k", None, SEGMENT + 10, SEGMENT + 20)
    store.put("k", None, SEGMENT + 5, SEGMENT + 10)
    store.put("k", "vp5", SEGMENT + 5, SEGMENT + 10)
    store.put("k", "to_be_replaced", SEGMENT - 5, SEGMENT - 1)
    store.put("k", "vn5", SEGMENT - 5, SEGMENT - 1)
    store.put("k", None, SEGMENT + 20, NEWEST)
    store.put("k", None, SEGMENT + 20, NEWEST)
    store.put("k", "vn6", SEGMENT - 6, SEGMENT - 5)
    store.restore(restores)
    assert_nulls_with_values_between(store)


@pytest.mark.parametrize("restores", [pytest.param(0, id="put"), pytest.param(2, id="restore_multiple_batches")])
def test_should_put_into_multiple_segments(store, restores):
    store.put("k", None, SEGMENT - 20, NEWEST)
    store.put("k", "vn10", SEGMENT - 10, NEWEST)
    store.put("k", None, SEGMENT - 1, NEWEST)
    store.put("k", None, SEGMENT + 1, NEWEST)
    store.put("k", "vp10", SEGMENT + 10, NEWEST)
    store.put("k", None, SEGMENT + 20, NEWEST)
    store.restore(restores)
    store.lacks("k")
    store.had_nothing("k", SEGMENT + 30)
    store.had("k", SEGMENT + 15, "vp10", SEGMENT + 10, SEGMENT + 20)
    store.had_nothing("k", SEGMENT + 5)
    store.had_nothing("k", SEGMENT + 2)
    store.had_nothing("k", SEGMENT)
    store.had_nothing("k", SEGMENT - 1)
    store.had("k", SEGMENT - 5, "vn10", SEGMENT - 10, SEGMENT - 1)
    store.had_nothing("k", SEGMENT - 15)


@pytest.mark.parametrize("restores", [pytest.param(0, id="put"), pytest.param(1, id="restore")])
def test_should_move_record_to_older_segment_during_put(store, restores):
    store.put("k", "vp20", SEGMENT + 20, NEWEST)
    store.put("k", "vp10", SEGMENT + 10, SEGMENT + 20)
    store.put("k", "vn10", SEGMENT - 10, SEGMENT + 10)
    store.put("k", "vn2", SEGMENT - 2, SEGMENT + 10)
    store.put("k", "vn1", SEGMENT - 1, SEGMENT + 10)
    store.put("k", "vp1", SEGMENT + 1, SEGMENT + 10)
    store.restore(restores)
    store.has("k", "vp20", SEGMENT + 20)
    store.had("k", SEGMENT + 30, "vp20", SEGMENT + 20, NEWEST)
    store.had("k", SEGMENT + 15, "vp10", SEGMENT + 10, SEGMENT + 20)
    store.had("k", SEGMENT + 5, "vp1", SEGMENT + 1, SEGMENT + 10)
    store.had("k", SEGMENT, "vn1", SEGMENT - 1, SEGMENT + 1)
    store.had("k", SEGMENT - 1, "vn1", SEGMENT - 1, SEGMENT + 1)
    store.had("k", SEGMENT - 2, "vn2", SEGMENT - 2, SEGMENT - 1)
    store.had("k", SEGMENT - 5, "vn10", SEGMENT - 10, SEGMENT - 2)


@pytest.mark.parametrize("restores", [pytest.param(0, id="put"), pytest.param(1, id="restore_with_nulls")])
def test_should_move_record_to_older_segment_with_nulls_during_put(store, restores):
    store.put("k", None, SEGMENT + 20, NEWEST)
    store.put("k", None, SEGMENT - 1, SEGMENT + 20)
    store.put("k", None, SEGMENT + 1, SEGMENT + 20)
    store.put("k", None, SEGMENT - 10, SEGMENT - 1)
    store.put("k", None, SEGMENT + 10, SEGMENT + 20)
    store.put("k", "vp5", SEGMENT + 5, SEGMENT + 10)
    store.put("k", "vn5", SEGMENT - 5, SEGMENT - 1)
    store.put("k", "vn6", SEGMENT - 6, SEGMENT - 5)
    store.restore(restores)
    assert_nulls_with_values_between(store)


def test_should_fall_through_to_existing_older_segment_as_latest_during_put(store):
    store.put("k", None, SEGMENT - 5, NEWEST)
    store.put("k", "vn6", SEGMENT - 6, SEGMENT - 5)
    store.put("k", "vp20", SEGMENT + 20, NEWEST)
    store.put("k", None, SEGMENT + 10, SEGMENT + 20)
    store.put("k", None, SEGMENT - 1, SEGMENT + 10)
    store.put("k", "vn2", SEGMENT - 2, SEGMENT - 1)
    store.has("k", "vp20", SEGMENT + 20)
    store.had("k", SEGMENT + 30, "vp20", SEGMENT + 20, NEWEST)
    store.had_nothing("k", SEGMENT + 12)
    store.had_nothing("k", SEGMENT)
    store.had_nothing("k", SEGMENT - 1)
    store.had("k", SEGMENT - 2, "vn2", SEGMENT - 2, SEGMENT - 1)
    store.had_nothing("k", SEGMENT - 5)
    store.had("k", SEGMENT - 6, "vn6", SEGMENT - 6, SEGMENT - 5)


def test_should_put_non_latest_tombstone_into_new_segment_with_valid_to(store):
    store.put("k", "vp30", SEGMENT + 30, NEWEST)
    store.put("k", None, SEGMENT - 10, SEGMENT + 30)
    store.put("k", "vn5", SEGMENT - 5, SEGMENT + 30)
    store.put("k", "vn1", SEGMENT - 1, SEGMENT + 30)
    store.put("k", None, SEGMENT - 2, SEGMENT - 1)
    store.has("k", "vp30", SEGMENT + 30)
    store.had("k", SEGMENT + 10, "vn1", SEGMENT - 1, SEGMENT + 30)
    store.had("k", SEGMENT - 1, "vn1", SEGMENT - 1, SEGMENT + 30)
    store.had_nothing("k", SEGMENT - 2)
    store.had("k", SEGMENT - 5, "vn5", SEGMENT - 5, SEGMENT - 2)
    store.had_nothing("k", SEGMENT - 10)


def test_should_delete(store):
    store.put("k", "vp20", SEGMENT + 20, NEWEST)
    store.put("k", "vp10", SEGMENT + 10, SEGMENT + 20)
    store.put("k", "vn10", SEGMENT - 10, SEGMENT + 10)
    store.put("k", "vn2", SEGMENT - 2, SEGMENT + 10)
    store.delete("k", SEGMENT - 5, ("vn10", SEGMENT - 10))
    store.delete("k", SEGMENT + 10, ("vp10", SEGMENT + 10))
    store.delete("k", SEGMENT + 10, None)
    store.delete("k", SEGMENT + 25, ("vp20", SEGMENT + 20))


def test_should_not_put_expired(store):
    store.put("k", "v", HISTORY + 10, NEWEST)
    store.put("k1", "v1", 10, NEWEST)
    store.has("k1", "v1", 10)
    store.put("k2", "v2", 9, NOT_PUT)
    store.lacks("k2")
    store.dropped(1)


def test_should_not_delete_expired(store):
    store.put("k1", "v1", 1, NEWEST)
    store.put("k2", "v2", 1, NEWEST)
    store.put("kother", "vother", HISTORY + 10, NEWEST)
    store.delete("k1", 10, ("v1", 1))
    store.lacks("k1")
    store.delete("k2", 9, None)
    store.has("k2", "v2", 1)
    store.dropped(1)


def test_should_get_from_older_segments(store):
    store.put("ko", None, SEGMENT - 10, NEWEST)
    store.put("ko", None, 2 * SEGMENT - 10, NEWEST)
    store.put("ko", None, 3 * SEGMENT - 10, NEWEST)
    store.had_nothing("k", SEGMENT - 20)
    store.put("k", "v", SEGMENT - 20, NEWEST)
    store.put("k", None, SEGMENT - 10, NEWEST)
    store.had_nothing("k", SEGMENT - 30)
    store.had("k", SEGMENT - 15, "v", SEGMENT - 20, SEGMENT - 10)
    store.had_nothing("k", SEGMENT - 5)
    store.put("k", "v2", 3 * SEGMENT - 20, NEWEST)
    store.put("k", None, 3 * SEGMENT - 10, NEWEST)
    store.had_nothing("k", SEGMENT - 30)
    store.had("k", SEGMENT - 15, "v", SEGMENT - 20, SEGMENT - 10)
    store.had_nothing("k", SEGMENT - 5)


def test_should_not_get_expired(store):
    store.put("k", "v_old", 0, NEWEST)
    store.put("k", "v", SEGMENT - 10, NEWEST)
    store.had("k", SEGMENT - 11, "v_old", 0, SEGMENT - 10)
    store.put("ko", "vo", HISTORY + SEGMENT - 11, NEWEST)
    store.had("k", SEGMENT - 11, "v_old", 0, SEGMENT - 10)
    store.put("ko", "vo2", HISTORY + SEGMENT - 10, NEWEST)
    store.had_nothing("k", SEGMENT - 11)


def test_should_get_expired_if_latest_value(store):
    store.put("k", "v", 1, NEWEST)
    store.put("ko", "vo_old", 1, NEWEST)
    store.put("ko", "vo_new", HISTORY + 12, NEWEST)
    store.had("k", 10, "v", 1, NEWEST)
    store.had_nothing("ko", 10)


def test_should_distinguish_empty_and_null(store):
    store.put("k", None, SEGMENT + 20, NEWEST)
    store.put("k", None, SEGMENT - 10, SEGMENT + 20)
    store.put("k", None, SEGMENT - 1, SEGMENT + 20)
    store.put("k", None, SEGMENT + 1, SEGMENT + 20)
    store.put("k", None, SEGMENT + 10, SEGMENT + 20)
    store.put("k", "", SEGMENT + 5, SEGMENT + 10)
    store.put("k", "", SEGMENT - 5, SEGMENT - 1)
    store.put("k", "", SEGMENT - 6, SEGMENT - 5)
    assert_nulls_with_values_between(store, "", "", "")


def test_should_get_record_versions_from_older_segments(store):
    store.put("ko", None, SEGMENT - 10, NEWEST)
    store.put("ko", None, 2 * SEGMENT - 10, NEWEST)
    store.put("ko", None, 3 * SEGMENT - 10, NEWEST)
    store.had_between("k", SEGMENT - 20, SEGMENT, [])
    store.put("k", "v1", SEGMENT - 30, NEWEST)
    store.put("k", "v2", SEGMENT - 25, NEWEST)
    store.put("k", None, SEGMENT - 20, NEWEST)
    store.put("k", None, SEGMENT - 15, NEWEST)
    store.put("k", "v3", SEGMENT - 10, NEWEST)
    store.put("k", "v4", SEGMENT - 5, NEWEST)
    store.had_between("k", SEGMENT - 40, SEGMENT - 35, [])
    store.had_between(
        "k",
        SEGMENT - 30,
        SEGMENT - 5,
        [
            ("v1", SEGMENT - 30, SEGMENT - 25),
            ("v2", SEGMENT - 25, SEGMENT - 20),
            ("v3", SEGMENT - 10, SEGMENT - 5),
            ("v4", SEGMENT - 5, NEWEST),
        ],
    )
    store.had_between(
        "k",
        None,
        None,
        [
            ("v1", SEGMENT - 30, SEGMENT - 25),
            ("v2", SEGMENT - 25, SEGMENT - 20),
            ("v3", SEGMENT - 10, SEGMENT - 5),
            ("v4", SEGMENT - 5, NEWEST),
        ],
    )
    store.had_between("k", SEGMENT - 4, SEGMENT, [("v4", SEGMENT - 5, NEWEST)])
    store.had_between("k", SEGMENT - 5, SEGMENT - 5, [("v4", SEGMENT - 5, NEWEST)])
    store.had_between("k", SEGMENT - 4, SEGMENT - 4, [("v4", SEGMENT - 5, NEWEST)])
    store.had_between(
        "k", SEGMENT - 31, SEGMENT - 21, [("v1", SEGMENT - 30, SEGMENT - 25), ("v2", SEGMENT - 25, SEGMENT - 20)]
    )
    store.had_between("k", SEGMENT - 24, SEGMENT - 11, [("v2", SEGMENT - 25, SEGMENT - 20)])
    store.had_between("k", SEGMENT - 11, SEGMENT - 4, [("v3", SEGMENT - 10, SEGMENT - 5), ("v4", SEGMENT - 5, NEWEST)])
    store.had_between(
        "k",
        SEGMENT - 26,
        SEGMENT - 5,
        [
            ("v1", SEGMENT - 30, SEGMENT - 25),
            ("v2", SEGMENT - 25, SEGMENT - 20),
            ("v3", SEGMENT - 10, SEGMENT - 5),
            ("v4", SEGMENT - 5, NEWEST),
        ],
    )
    store.had_between("k", SEGMENT - 15, SEGMENT - 10, [("v3", SEGMENT - 10, SEGMENT - 5)])
    store.had_between("k", SEGMENT - 19, SEGMENT - 16, [])
    store.put("k", "v5", 3 * SEGMENT - 30, NEWEST)
    store.put("k", None, 3 * SEGMENT - 20, NEWEST)
    store.had_between("k", SEGMENT - 40, SEGMENT - 35, [])
    store.had_between("k", SEGMENT - 30, SEGMENT - 26, [("v1", SEGMENT - 30, SEGMENT - 25)])
    store.had_between("k", SEGMENT - 19, SEGMENT - 16, [])


def test_should_get_record_versions_in_ascending_order(store):
    store.put("k", "v1", SEGMENT - 30, NEWEST)
    store.put("k", "v2", SEGMENT - 25, NEWEST)
    store.put("k", "v3", SEGMENT - 10, NEWEST)
    store.put("k", "v4", SEGMENT - 5, NEWEST)
    store.had_between(
        "k",
        SEGMENT - 30,
        SEGMENT - 5,
        [
            ("v1", SEGMENT - 30, SEGMENT - 25),
            ("v2", SEGMENT - 25, SEGMENT - 10),
            ("v3", SEGMENT - 10, SEGMENT - 5),
            ("v4", SEGMENT - 5, NEWEST),
        ],
    )


def test_should_get_record_versions_from_multiple_old_segments_in_ascending_order(store):
    store.put("k", "v1", SEGMENT - 10, NEWEST)
    store.put("k", "v2", SEGMENT - 5, NEWEST)
    store.put("k", "v3", 2 * SEGMENT - 10, NEWEST)
    store.put("k", "v4", 2 * SEGMENT - 5, NEWEST)
    store.had_between(
        "k",
        None,
        None,
        [
            ("v1", SEGMENT - 10, SEGMENT - 5),
            ("v2", SEGMENT - 5, 2 * SEGMENT - 10),
            ("v3", 2 * SEGMENT - 10, 2 * SEGMENT - 5),
            ("v4", 2 * SEGMENT - 5, NEWEST),
        ],
    )


def test_should_not_get_expired_record_versions(store):
    store.put("k", "v_old", 0, NEWEST)
    store.put("k", "v", SEGMENT - 10, NEWEST)
    store.had_between("k", 0, SEGMENT - 11, [("v_old", 0, SEGMENT - 10)])
    store.put("ko", "vo", HISTORY + SEGMENT - 11, NEWEST)
    store.had_between("k", 0, SEGMENT - 11, [("v_old", 0, SEGMENT - 10)])
    store.put("ko", "vo2", HISTORY + SEGMENT - 10, NEWEST)
    store.had_between("k", 0, SEGMENT - 11, [])


def test_should_get_expired_if_latest_version_value(store):
    store.put("k", "v", 1, NEWEST)
    store.put("ko", "vo_old", 1, NEWEST)
    store.put("ko", "vo_new", HISTORY + 12, NEWEST)
    store.had_between("k", 0, 10, [("v", 1, NEWEST)])
    store.had_between("ko", 0, 10, [])


def test_should_not_restore_expired(store):
    store.put("k", "v", HISTORY + 10)
    store.put("k1", "v1", 10)
    store.put("k2", "v2", 9)
    store.restore()
    store.has("k", "v", HISTORY + 10)
    store.has("k1", "v1", 10)
    store.lacks("k2")
    # Counted when it was put; Kafka reads all of them from the changelog.
    store.dropped(1)


def test_should_restore_even_if_record_would_be_expired_by_end_of_batch(store):
    store.put("k2", "v2", 0)
    store.put("k", "v", HISTORY + 10)
    store.restore()
    store.has("k2", "v2", 0)
    store.has("k", "v", HISTORY + 10)


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_should_allow_zero_history_retention(backend):
    store = Store(backend, False, NoHistory)
    store.put("k", "v", BASE, NEWEST)
    store.has("k", "v", BASE)
    store.had("k", BASE, "v", BASE, NEWEST)
    store.had("k", BASE + 1, "v", BASE, NEWEST)
    store.put("k", "updated", BASE, NEWEST)
    store.has("k", "updated", BASE)
    store.had("k", BASE, "updated", BASE, NEWEST)
    store.put("k", "v2", BASE + 2, NEWEST)
    store.has("k", "v2", BASE + 2)
    store.had("k", BASE + 2, "v2", BASE + 2, NEWEST)
    store.had_nothing("k", BASE + 1)
    store.delete("k", BASE + 3, ("v2", BASE + 2))
    store.lacks("k")
    store.put("k2", "v", BASE + 2, NOT_PUT)
    store.lacks("k2")
    store.dropped(1)
    store.harness.close()
