"""Nexmark: the generator holds its proportions, and each query equals its oracle in SQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import keyed
from examples.nexmark.__main__ import main
from examples.nexmark.catalog import QUERIES, run
from examples.nexmark.events import Events
from examples.nexmark.generator import BASE_TIME, SCHEMA, Generator
from examples.nexmark.nexmark_errors import NexmarkError
from tests.examples.nexmark_oracles import ORACLES, Oracle
from tests.support.terminal import ROOT
from tests.support.waiting import until

_TIMES = {"person": "dateTime", "auction": "dateTime", "bid": "dateTime"}


def _events(**parameters: int) -> pa.Table:
    return pa.concat_tables(Generator(**parameters).tables()).combine_chunks()


def _structs(events: pa.Table, name: str) -> pa.Table:
    rows: Any = events.filter(pc.is_valid(events[name]))[name].combine_chunks()
    return pa.Table.from_arrays(rows.flatten(), names=[field.name for field in rows.type])


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return _events(events=10_000, rate=1_000, seed=7)


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_others_bids(events):
    types = events["event_type"].to_numpy().reshape(-1, 50)
    assert (types == [0] + [1] * 3 + [2] * 46).all()
    for number, name in enumerate(("person", "auction", "bid")):
        assert pc.is_valid(events[name]).to_pylist() == (events["event_type"].to_numpy() == number).tolist()
    assert events.schema == SCHEMA


def test_ids_count_up_and_bids_are_for_auctions_in_flight(events):
    people, auctions, bids = (_structs(events, name) for name in ("person", "auction", "bid"))
    assert people["id"].to_pylist() == list(range(1000, 1200))
    assert auctions["id"].to_pylist() == list(range(1000, 1600))
    number = np.flatnonzero(events["event_type"].to_numpy() == 2)
    last = 1000 + number // 50 * 3 + 2
    distance = last - bids["auction"].to_numpy()
    assert distance.min() >= -10
    assert distance.max() <= 100
    last_person = 1000 + number // 50
    assert (bids["bidder"].to_numpy() <= np.maximum(last_person + 10, 1001)).all()
    assert set(auctions["category"].to_pylist()) == {10, 11, 12, 13, 14}


def test_half_of_the_bids_are_for_the_hot_auction_and_three_quarters_of_the_hot_bidder(events):
    bids = _structs(events, "bid")
    number = np.flatnonzero(events["event_type"].to_numpy() == 2)
    hot_auction = (1000 + number // 50 * 3 + 2) // 100 * 100
    hot_bidder = (1000 + number // 50) // 100 * 100 + 1
    assert np.mean(bids["auction"].to_numpy() == hot_auction) == pytest.approx(0.5, abs=0.03)
    assert np.mean(bids["bidder"].to_numpy() == hot_bidder) == pytest.approx(0.75, abs=0.03)
    hot_channel = pc.is_in(bids["channel"], pa.array(["Google", "Facebook", "Baidu", "Apple"]))
    assert np.mean(hot_channel.to_numpy()) == pytest.approx(0.5, abs=0.03)
    prices = bids["price"].to_numpy()
    assert (prices.min() >= 100, prices.max() <= 10**8) == (True, True)
    assert np.mean(np.log10(prices)) == pytest.approx(5, abs=0.1)


def test_events_have_the_times_of_their_numbers():
    for rate in (3, 1_000, 1_000_000):
        times = _events(events=200, rate=rate)["dateTime"].cast(pa.int64()).to_pylist()
        assert times == [BASE_TIME + n * 1_000_000 // rate // 1000 for n in range(200)]


def test_each_event_has_the_time_of_its_struct_and_auctions_expire_later(events):
    for name, time in _TIMES.items():
        rows = events.filter(pc.is_valid(events[name]))
        assert _structs(events, name)[time].equals(rows["dateTime"])
    auctions = _structs(events, "auction")
    lasts = pc.subtract(auctions["expires"].cast(pa.int64()), auctions["dateTime"].cast(pa.int64())).to_numpy()
    assert (lasts.min() >= 1, lasts.max() <= 2 * 1_667) == (True, True)


def test_sizes_are_about_a_hundred_two_hundred_and_five_hundred_bytes(events):
    for name, least, most in (("bid", 90, 200), ("person", 170, 250), ("auction", 420, 580)):
        rows = _structs(events, name)
        assert least <= rows.nbytes / rows.num_rows <= most


def test_disorder_moves_events_by_at_most_as_much_and_loses_none():
    in_order = _events(events=45_000, rate=20_000, seed=3)
    disordered = _events(events=45_000, rate=20_000, seed=3, disorder_ms=900)
    times = disordered["dateTime"].cast(pa.int64()).to_numpy()
    behind = np.maximum.accumulate(times) - times
    assert 800 < behind.max() <= 900
    assert np.sort(times).tolist() == in_order["dateTime"].cast(pa.int64()).to_pylist()
    ids = [np.sort(_structs(each, "auction")["id"].to_numpy()).tolist() for each in (in_order, disordered)]
    assert ids[0] == ids[1]


def test_the_same_seed_writes_the_same_events_in_any_number_of_files(tmp_path):
    for files in (1, 3):
        command = f"generate --events 5000 --rate 100 --seed 9 --disorder-ms 4000 --files {files}"
        assert main([*command.split(), "--output", str(tmp_path / str(files))]) == 0
    one, three = (sorted((tmp_path / name).glob("*.parquet")) for name in "13")
    assert (len(one), len(three)) == (1, 3)
    assert pq.read_table(one[0]).equals(pa.concat_tables([pq.read_table(file) for file in three]))
    assert not pq.read_table(one[0]).equals(_events(events=5000, rate=100, seed=8, disorder_ms=4000))
    side = (tmp_path / "1" / "side_input.csv").read_text().splitlines()
    assert (side[0], side[1], len(side)) == ("key,value", "0,value-0", 10_001)


#: Seed, disorder, files, rows of a batch, and key groups.
_FOLDERS = {"in order": (1, 0, 1, 100_000, 1), "in disorder": (2, 4000, 3, 1700, 3)}


@pytest.fixture(scope="module", params=_FOLDERS)
def oracle(request, tmp_path_factory) -> Iterator[tuple[Oracle, Path, int]]:
    seed, disorder, files, rows, _ = _FOLDERS[request.param]
    folder = tmp_path_factory.mktemp("nexmark") / "events"
    Generator(5_000, 125, seed, disorder).write(folder, files)
    truth = Oracle(folder)
    yield truth, folder, rows
    truth.connection.close()


@pytest.fixture
def with_key_groups(monkeypatch) -> Callable[[str, int], None]:
    """Return what gives all operators of a query a parallelism."""

    def change(query: str, parallelism: int) -> None:
        described = QUERIES[query].output

        def output(events: Events) -> keyed.Output:
            one = described(events)
            stages = [attrs.evolve(stage, parallelism=parallelism) for stage in one.stage.chain]
            return attrs.evolve(one, stage=attrs.evolve(stages[-1], before=tuple(stages[:-1])))

        monkeypatch.setitem(QUERIES, query, attrs.evolve(QUERIES[query], output=output))

    return change


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_equals_its_oracle(query, oracle, with_key_groups, tmp_path, request):
    truth, folder, rows = oracle
    with_key_groups(query, _FOLDERS[request.node.callspec.params["oracle"]][-1])
    run(query, folder, tmp_path / "out", rows_per_batch=rows)
    found, expected = truth.found(query, tmp_path / "out"), truth.expected(query)
    assert len(found) == len(expected)
    assert found == expected
    assert expected


@pytest.mark.parametrize("oracle", ["in disorder"], indirect=True)
@pytest.mark.parametrize("query", ["q0", "q4", "q5", "q6", "q7", "q10", "q11", "q16", "q19", "q20"])
def test_a_query_that_failed_in_the_middle_is_resumed_from_its_checkpoint(query, oracle, tmp_path):
    truth, folder, rows = oracle

    def fail(progress: keyed.Progress) -> None:
        if progress.batch_id == 1:
            raise RuntimeError("on purpose")

    places = folder, tmp_path / "out"
    with pytest.raises(RuntimeError, match="on purpose"):
        run(query, *places, rows_per_batch=rows, checkpoint=tmp_path / "checkpoint", on_progress=fail)
    run(query, *places, rows_per_batch=rows, checkpoint=tmp_path / "checkpoint")
    assert truth.found(query, tmp_path / "out") == truth.expected(query)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(11, marks=pytest.mark.long), pytest.param(12, marks=pytest.mark.long)])
def test_ten_times_the_events_equal_their_oracle_too(seed, with_key_groups, tmp_path):
    Generator(50_000, 1_250, seed, 4000).write(tmp_path / "events", 4)
    truth = Oracle(tmp_path / "events")
    for query in QUERIES:
        if query != "q23":  # its result grows with the square of the events of a person
            with_key_groups(query, seed - 10)
            run(query, tmp_path / "events", tmp_path / query, rows_per_batch=6_000 + seed)
            assert truth.found(query, tmp_path / query) == truth.expected(query), query
    truth.connection.close()


def _has_parts_or_ended(folder: Path, least: int, process: subprocess.Popen[bytes]) -> bool:
    return len([*folder.glob("part-*")]) >= least or process.poll() is not None


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["local", pytest.param("spark", marks=[pytest.mark.long, pytest.mark.spark])])
@pytest.mark.parametrize("query", ["q7", *(pytest.param(each, marks=pytest.mark.long) for each in ("q4", "q18"))])
def test_a_command_that_was_killed_is_resumed(query, runtime, tmp_path):
    Generator(300_000, 10_000, 21, 4000).write(tmp_path / "events")  # three batches of bids
    options = ["--input", "events", "--output", "out", "--checkpoint", "checkpoint", "--runtime", runtime]
    command = [sys.executable, "-m", "examples.nexmark", "run", query, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for least in (1, 2, 1_000):
        with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True) as process:
            until(partial(_has_parts_or_ended, tmp_path / "out", least, process), seconds=300)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    truth = Oracle(tmp_path / "events")
    assert truth.found(query, tmp_path / "out") == truth.expected(query)
    truth.connection.close()


#: Of each kind of operator one.
ON_SPARK = ("q0", "q3", "q5", "q7", "q8", "q9", "q11", "q16", "q18", "q20")


class _Batches:
    """A Spark session whose streams are batch DataFrames: a query is one job, without a checkpoint."""

    def __init__(self, spark: Any) -> None:
        self.readStream = self.read = spark.read


@pytest.fixture(scope="module")
def events_on_spark(tmp_path_factory) -> Iterator[tuple[Oracle, Path]]:
    folder = tmp_path_factory.mktemp("nexmark") / "events"
    Generator(5_000, 125, 5, 4000).write(folder, 3)
    truth = Oracle(folder)
    yield truth, folder
    truth.connection.close()


@pytest.mark.parametrize(
    "query", [name if name in ON_SPARK else pytest.param(name, marks=pytest.mark.long) for name in QUERIES]
)
def test_a_query_on_spark_equals_its_oracle(query, spark, events_on_spark, tmp_path):
    truth, folder = events_on_spark
    run(query, folder, tmp_path / "out", spark=_Batches(spark))
    assert truth.found(query, tmp_path / "out") == truth.expected(query)


@pytest.mark.long
@pytest.mark.parametrize("query", QUERIES)
def test_a_stream_on_spark_equals_its_oracle(query, spark, events_on_spark, with_key_groups, tmp_path):
    truth, folder = events_on_spark
    with_key_groups(query, 3)
    run(query, folder, tmp_path / "out", spark=spark)
    assert truth.found(query, tmp_path / "out") == truth.expected(query)


def test_every_query_has_an_oracle():
    assert list(QUERIES) == list(ORACLES) == [f"q{number}" for number in range(24)]


def test_unknown_queries_are_refused_with_the_names_of_all(tmp_path, capsys):
    assert main(["run", "q24", "--input", str(tmp_path), "--output", str(tmp_path / "out")]) == 2
    assert "'q24' is not a query; there are q0, q1" in capsys.readouterr().err


def test_folders_that_are_not_ours_are_refused(tmp_path):
    def refusal(folder: Path) -> str:
        with pytest.raises(NexmarkError) as refused:
            Events(folder)
        return str(refused.value)

    assert "missing is not a folder" in refusal(tmp_path / "missing")
    assert "has no Parquet files" in refusal(tmp_path)
    pq.write_table(pa.table({"event_type": pa.array([1], pa.int32())}), tmp_path / "a.parquet")
    assert "a.parquet has no events: column person is none" in refusal(tmp_path)
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    assert "a.parquet is not a complete Parquet file" in refusal(tmp_path)
    twice = _events(events=50)
    twice = twice.set_column(1, "person", twice["person"].combine_chunks().take(pa.array([0] * 50)))
    pq.write_table(twice, tmp_path / "a.parquet")
    assert "a.parquet: event 1 has event_type 1 and a person" in refusal(tmp_path)
    without = _events(events=50)
    without = without.set_column(3, "bid", without["bid"].combine_chunks().take(pa.array([0] * 50)))
    pq.write_table(without, tmp_path / "a.parquet")
    assert "a.parquet: event 4 has event_type 2 and no bid" in refusal(tmp_path)
    unknown = _events(events=50).set_column(0, "event_type", pa.array([3] * 50, pa.int32()))
    pq.write_table(unknown, tmp_path / "a.parquet")
    assert "a.parquet: event 0 has event_type 3 and a person" in refusal(tmp_path)


def test_nothing_is_overwritten(tmp_path):
    Generator(100).write(tmp_path / "events")
    with pytest.raises(NexmarkError, match="not an empty folder"):
        Generator(100).write(tmp_path / "events")
    with pytest.raises(NexmarkError, match="not an empty folder"):
        run("q0", tmp_path / "events", tmp_path / "events")
    run("q4", tmp_path / "events", tmp_path / "out")
    with pytest.raises(NexmarkError, match="results of an earlier run"):
        run("q4", tmp_path / "events", tmp_path / "out")
    with pytest.raises(NexmarkError, match="has the results of q4, not of q9"):
        run("q9", tmp_path / "events", tmp_path / "out")


def test_a_checkpoint_of_another_query_and_a_place_that_is_none_are_refused_in_a_line(tmp_path, capsys):
    Generator(100).write(tmp_path / "events")
    options = ["--input", str(tmp_path / "events"), "--checkpoint", str(tmp_path / "checkpoint"), "--output"]
    assert main(["run", "q4", *options, str(tmp_path / "out")]) == 0
    assert main(["run", "q9", *options, str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err.startswith(f"error: the checkpoint {tmp_path / 'checkpoint'} belongs to operators")
    (tmp_path / "file").touch()
    assert main(["run", "q0", *options, str(tmp_path / "file" / "out")]) == 2
    assert "error: [Errno 20] Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["events", "rate", "seed", "disorder_ms"])
def test_parameters_out_of_range_are_refused(name):
    with pytest.raises(NexmarkError, match=f"{name}=-1 must be at least"):
        Generator(**{"events": 10, name: -1})
