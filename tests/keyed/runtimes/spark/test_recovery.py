"""Queries whose programs, workers and executors are killed: what is started again ends with each row once."""

import random
import subprocess
from contextlib import suppress

import pytest

import keyed
from keyed import bounded_out_of_orderness
from tests.keyed.runtimes.spark.functions import BIG, Mishap, best, parquet_rows, random_rows, write_file
from tests.support.jobs import collect
from tests.support.spark_programs import Program

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def write_batches(folder, count, mishaps=None):
    """Write the batches, some with a row that comes to grief, and give them as elements."""
    elements = []
    for number in range(count):
        rows = random_rows(number, 300, number * 300, 60)
        if mishaps and number in mishaps:
            rows[150] = (*rows[150][:2], mishaps[number])
        write_file(folder / "in", number, rows)
        elements.append([{"k": k, "t": t, "v": v} for k, t, v in rows])
    return elements


def check(folder, elements):
    """Check what was written against the local runtime, which runs the same batches row by row."""
    (folder / "local").mkdir()
    for value in (Mishap.RAISES, Mishap.DIES):
        (folder / "local" / f"mishap{value}").touch()
    source = keyed.stream(
        [element for batch in elements for element in batch],
        timestamp="t",
        watermark=bounded_out_of_orderness(milliseconds=30),
    )
    windows, ranked = best(source, function=Mishap(str(folder / "local")))
    outputs = ranked, windows, windows.side_output(BIG)
    expected, _ = collect(*outputs, rows_per_batch=len(elements[0]), drain=True)
    for name, values in zip(("best", "windows", "late"), expected, strict=True):
        assert values, name
        assert parquet_rows(folder / name) == sorted(map(tuple, values)), name


def start(folder, master="local[2]", store="memory", kind="rows"):
    return Program("killed_jobs.rank_windows", folder, master, store, kind)


@pytest.mark.long
@pytest.mark.parametrize(
    ("store", "kind"), [(store, kind) for store in ("memory", "rocksdb", "lmdb") for kind in ("rows", "columns")]
)
def test_each_row_comes_once_after_kills_of_the_whole_program(tmp_path, store, kind):
    elements = write_batches(tmp_path, 8)
    chance = random.Random(store + kind)
    for _ in range(2):
        program = start(tmp_path, store=store, kind=kind)
        assert program.wait_for_batches(1), program.said()
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(chance.random() * 1.5)
        if program.process.poll() is None:
            program.kill()
    status, said = start(tmp_path, store=store, kind=kind).end()
    assert status == 0, said
    check(tmp_path, elements)


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("rows", "lmdb"),
        pytest.param("rows", "memory", marks=pytest.mark.long),
        pytest.param("columns", "memory", marks=pytest.mark.long),
        pytest.param("columns", "lmdb", marks=pytest.mark.long),
    ],
)
def test_a_killed_worker_and_a_function_that_raises_once_are_retried_by_spark(tmp_path, kind, store):
    elements = write_batches(tmp_path, 4, mishaps={1: Mishap.DIES, 2: Mishap.RAISES})
    status, said = start(tmp_path, master="local[2,4]", kind=kind, store=store).end()
    assert status == 0, said
    assert (tmp_path / f"mishap{Mishap.DIES}").exists()
    assert (tmp_path / f"mishap{Mishap.RAISES}").exists()
    check(tmp_path, elements)
