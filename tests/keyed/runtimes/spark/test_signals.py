"""Ctrl-C and SIGTERM: the query stops with its last batch in its changelog, in ten seconds and one line."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from keyed.runtimes.spark.query import spark_query
from keyed.runtimes.spark.query.spark_query import SparkQuery
from keyed.runtimes.stop_signals import Stopped, noted_signals
from tests.keyed.runtimes.spark.functions import write_file
from tests.support.spark_programs import Program
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def heard():
    """SIGINT is heard, also where the tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def come(number):
    os.kill(os.getpid(), number)


def got_while_noting(noted, *numbers):
    """Get signals one after the other, and put down what is noted."""
    with noted_signals() as signals:
        for number in numbers:
            come(number)
            noted.append(signals.received)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_noted_and_ends_the_program_in_the_end(number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    noted: list[int] = []
    with pytest.raises(Stopped) as caught:
        got_while_noting(noted, number)
    assert noted == [number]
    assert caught.value.code == 128 + number
    assert isinstance(caught.value, KeyboardInterrupt)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_second_signal_is_not_put_off():
    noted: list[int] = []
    with pytest.raises(Stopped):
        got_while_noting(noted, signal.SIGINT, signal.SIGTERM)
    assert noted == [signal.SIGINT]


def got_in_a_wait_inside_of_another(noted):
    with noted_signals() as outer:
        got_while_noting(noted, signal.SIGINT)
        noted.append(outer.received)


def test_who_waits_inside_of_another_wait_hears_of_the_same_signal():
    noted: list[int] = []
    with pytest.raises(Stopped):
        got_in_a_wait_inside_of_another(noted)
    assert noted == [signal.SIGINT] * 2


def test_a_handler_of_the_programs_own_stays():
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        with noted_signals() as signals:
            come(signal.SIGTERM)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == [signal.SIGTERM]


def test_in_another_thread_nothing_is_noted():
    found = []

    def work():
        with noted_signals() as signals:
            found.append(signals.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [None]


def test_a_query_that_does_not_stop_is_left_in_time(monkeypatch, caplog):
    assert spark_query._PATIENCE == 10
    monkeypatch.setattr(spark_query, "_PATIENCE", 0.1)
    query: Any = object.__new__(SparkQuery)
    query._job, query._is_flushed = SimpleNamespace(title="the query 'count'"), True
    go_on = threading.Event()
    query.stop = go_on.wait
    query.leave()
    said = caplog.messages
    go_on.set()
    until(lambda: caplog.messages[1:])
    assert [message.partition(";")[0] for message in said] == ["the query 'count' did not stop in 0 s"]


def signalled(tmp_path, number, *, to_all):
    """Send a signal to a waiting program, and return its exit status and its output lines since then."""
    for file in range(40):
        write_file(tmp_path / "in", file, [(key, file, 1) for key in "abcdefg"])
    program = Program("killed_jobs.await_signal", tmp_path)
    assert program.wait_for_batches(3), program.said()
    before = len(program.said().splitlines())
    (os.killpg if to_all else os.kill)(program.process.pid, number)
    status, said = program.end()
    return status, [line for line in said.splitlines()[before:] if not line.startswith("BATCH")]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, False, marks=pytest.mark.long),
        (signal.SIGINT, True),
    ],
)
def test_a_waiting_program_stops_with_its_changelog_complete(tmp_path, number, to_all):
    status, said = signalled(tmp_path, number, to_all=to_all)
    assert status == 128 + number
    committed = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    exported = {len(list(group.glob("*.segment"))) for group in (tmp_path / "log" / "groups").iterdir()}
    assert any("the query 'count' has stopped" in line for line in said), said
    assert said[-1] == "ENDED True, closed"
    assert exported == {committed + 1}
    assert len(said) <= 4, said


@pytest.mark.slow
@pytest.mark.spark
def test_a_query_whose_jvm_ends_by_the_same_signal_is_closed_and_not_failed(tmp_path):
    status, said = signalled(tmp_path, signal.SIGTERM, to_all=True)
    assert status == 128 + signal.SIGTERM
    assert "ENDED True, closed" in said, said
