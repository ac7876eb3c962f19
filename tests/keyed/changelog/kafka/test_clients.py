"""The clients of a cluster: how many a changelog makes, who uses them, and what ends them."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.kafka import kafka_changelog as module
from keyed.errors import ChangelogDiverged, ChangelogError, KeyedError
from keyed.kafka.client import Cluster, Transactions
from keyed.tables import open_tables
from tests.keyed.changelog.kafka.topics import new_topic
from tests.keyed.recovery.test_restore import run_count
from tests.support.simulator.faults import Faults
from tests.support.simulator.kafka_stand_in import StandInBroker
from tests.support.tables import poll_tables


@pytest.fixture
def stand_in() -> Iterator[StandInBroker]:
    broker = StandInBroker(Faults(Random(0), []))
    with broker.in_place():
        yield broker
    module._close_unused(-1.0)


class Made(list[tuple[str, Callable[[], Any]]]):
    """The clients that were made: kinds, and whether they are still there."""

    def count_of(self, kind: str) -> int:
        return sum(name == kind for name, _ in self)

    def alive(self) -> list[str]:
        return [name for name, client in self if client() is not None]


def counted(patch: pytest.MonkeyPatch) -> Made:
    made = Made()
    client = Cluster._client

    def counting(self: Cluster, kind: str, settings: dict[str, Any]) -> Any:
        new = client(self, kind, settings)
        # Those of librdkafka have no weak references.
        made.append((kind, weakref.ref(new) if hasattr(new, "__weakref__") else lambda: None))
        return new

    patch.setattr(Cluster, "_client", counting)
    return made


def look(bootstrap: str, tmp_path: Any, patch: pytest.MonkeyPatch, timeout: int = 60_000) -> None:
    """Look at a changelog a hundred times, and at what came meanwhile."""
    log = KafkaChangelog(new_topic(), bootstrap=bootstrap, timeout=timeout)
    checkpoint = {"checkpoint": tmp_path / "checkpoint", "parallelism": 2}
    run_count(range(60), log, **checkpoint)
    with open_tables(log, tmp_path / "tables") as tables:
        made = counted(patch)
        assert tables.lag().records == tables.poll() == 60
        # A header, and a consumer of each key group; of those that tell the lag as well.
        first = len(made)
        for _ in range(50):
            assert tables.poll() == tables.lag().records == 0
        assert len(made) == first
        patch.undo()
        run_count(range(90), log, **checkpoint)
        made = counted(patch)
        assert tables.lag().records == tables.poll() == 30
        assert made == []


def test_looks_at_a_changelog_make_no_clients(stand_in, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        look("stand-in", tmp_path, patch)


@pytest.mark.slow
def test_looks_at_a_topic_make_no_clients(kafka, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        look(kafka, tmp_path, patch)


@pytest.mark.parametrize("rows", [40, 60, 80])
def test_a_topic_that_was_made_anew_is_found_out(stand_in, tmp_path, rows):
    """Also where it has as many records."""
    log = KafkaChangelog("counts", bootstrap="stand-in")
    run_count(range(60), log, parallelism=2)
    with poll_tables(log, tmp_path / "tables") as tables:
        stand_in.topics.clear()
        with pytest.raises(ChangelogError):
            tables.poll()
        run_count(range(rows), log, parallelism=2)
        with pytest.raises(ChangelogDiverged, match="was not restored from it"):
            tables.poll()


def test_closed_tables_leave_no_clients(stand_in, tmp_path, monkeypatch):
    log = KafkaChangelog("counts", bootstrap="stand-in")
    run_count(range(60), log, parallelism=2)
    made = counted(monkeypatch)
    tables = open_tables(log, tmp_path / "tables")
    tables.poll()
    tables.lag()
    assert made.alive()
    gc.disable()
    try:
        tables.close()
        assert made.alive() == []
    finally:
        gc.enable()


def test_a_query_that_ends_or_fails_leaves_no_clients(stand_in, monkeypatch):
    made = counted(monkeypatch)
    run_count(range(60), KafkaChangelog("counts", bootstrap="stand-in"), parallelism=2)
    with pytest.raises(KeyedError):
        run_count([*range(60), "no number"], KafkaChangelog("others", bootstrap="stand-in"), parallelism=2)
    gc.collect()
    assert made.count_of("Producer") >= 6
    assert made.alive() == []


@pytest.mark.parametrize("failing", ["init_transactions", "get_watermark_offsets"])
def test_an_opening_that_fails_leaves_no_clients(stand_in, monkeypatch, failing):
    log = KafkaChangelog("counts", bootstrap="stand-in")
    log.prepare("op", 1)

    def fails(call: str, *_: object) -> None:
        if call == failing and made.count_of("Producer"):
            raise error_of("_TIMED_OUT")

    made = counted(monkeypatch)
    monkeypatch.setattr(stand_in, "fails", fails)
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(ChangelogError):
                log.put_position(1, b"here")
        assert made.count_of("Producer")
        assert made.alive() == []
    finally:
        gc.enable()


def error_of(name: str) -> Exception:
    from confluent_kafka import KafkaException

    from tests.support.simulator.kafka_stand_in import _error

    return KafkaException(_error(name))


def test_a_producer_that_finds_no_broker_is_given_up(monkeypatch):
    opened: list[weakref.ref[Transactions]] = []
    guarded = Transactions._guarded

    def noted(self: Transactions, *arguments: Any) -> Any:
        opened.append(weakref.ref(self))
        return guarded(self, *arguments)

    monkeypatch.setattr(Transactions, "_guarded", noted)
    gc.disable()
    try:
        with pytest.raises(ChangelogError):
            Transactions(Cluster("127.0.0.1:1", {}, 0.05), "id", "here")
        assert [each() for each in opened] == [None]
    finally:
        gc.enable()


def test_one_thread_at_a_time_writes_positions(stand_in, monkeypatch):
    log = KafkaChangelog("counts", bootstrap="stand-in")
    log.prepare("op", 1)
    began, goes_on = threading.Event(), threading.Event()
    put = module.Positions.put

    def waits(self: module.Positions, sequence: int, data: bytes) -> None:
        began.set()
        assert goes_on.wait(300)
        put(self, sequence, data)

    monkeypatch.setattr(module.Positions, "put", waits)
    made = counted(monkeypatch)
    threads = [threading.Thread(target=log.put_position, args=(sequence, b"here")) for sequence in (1, 2)]
    threads[0].start()
    assert began.wait(300)
    assert module._positions[log].lock.locked()
    # What is in use is not closed, however long it was not used.
    module._close_unused(-1.0)
    threads[1].start()
    goes_on.set()
    for thread in threads:
        thread.join()
    assert [sequence for sequence, _ in log.positions()] == [1, 2]
    assert made.count_of("Producer") == 1 + (module._positions.get(log) is None)
    module._close_unused(-1.0)
    assert log not in module._positions
    assert "Producer" not in made.alive()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_writers_of_its_own(stand_in):
    log = KafkaChangelog("counts", bootstrap="stand-in")
    log.prepare("op", 1)
    log.put_position(1, b"here")
    with module._guard:
        child = os.fork()
        if not child:
            os._exit(int(module._guard.locked() or log in module._positions))
    assert os.waitpid(child, 0)[1] == 0
    assert log in module._positions
