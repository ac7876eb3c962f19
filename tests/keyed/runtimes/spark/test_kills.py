"""Spark jobs killed at random points and recovered, from the checkpoint or from the changelog alone.

In the end what they have written and the state that they leave is that of an undisturbed run. More kills:
``KEYED_SPARK_KILLS=100 pytest -m "slow or spark" tests/keyed/runtimes/spark/test_kills.py``; ``KEYED_SEED`` repeats a
run's choices.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pyarrow as pa
import pytest

import keyed
from keyed.recovery import verify_changelog
from tests.keyed.recovery.jobs import Life
from tests.keyed.runtimes.spark.functions import parquet_rows, write_file
from tests.keyed.runtimes.spark.lives import KINDS, outputs, state

ROOT = Path(__file__).parents[4]
KILLS = int(os.environ.get("KEYED_SPARK_KILLS", "3"))
FILES, ROWS = 6, 200

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def write_files(folder, random):
    """Write the input, with disorder within the watermark's delay, and give it as elements."""
    elements = []
    for number in range(FILES):
        rows = [
            (random.choice("abcdefg"), max(0, number * ROWS + i + random.randint(-20, 20)), random.randrange(100))
            for i in range(ROWS)
        ]
        write_file(folder / "in", number, rows)
        elements += [{"k": k, "t": t, "v": v} for k, t, v in rows]
    return elements


def undisturbed(folder, kind, elements):
    """What a job leaves on the local runtime: the rows of its sinks, and its state when all rows were read."""
    life, table = Life(folder, kind), pa.Table.from_pylist(elements)
    for drain in (False, True):
        keyed.run(*outputs(life, table), checkpoint=folder / "checkpoint", rows_per_batch=ROWS, drain=drain)
        if not drain:
            found = json.loads(json.dumps(state(life)))
    return [parquet_rows(sink) for sink in sorted(folder.glob("sink-*"))], found


def words(process):
    """The command line of a process, nothing if it has just ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


class Program:
    """A job in a session of its own, with what it prints in a file."""

    def __init__(self, folder, kind):
        self._output = folder / f"output-{time.monotonic_ns()}"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.keyed.runtimes.spark.lives", str(folder), kind],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self):
        return self._output.read_text()

    def killed(self, random):
        """Kill the program or a part of it: at some moment within or after some batch. Whether it came to that."""
        batches, more = random.randrange(FILES + 2), random.random()
        what = random.choice(["all", "all", "driver", "java", "worker"])
        while self.said().count("BATCH") < batches and self.process.poll() is None:
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            # Starting the session takes longer than a batch.
            self.process.wait(more * (1 if batches else 8))
            return False
        family = psutil.Process(self.process.pid).children(recursive=True)
        java = [each for each in family if "org.apache.spark.deploy.SparkSubmit" in words(each)]
        workers = [each for each in family if "pyspark.worker" in words(each)]
        driver = [psutil.Process(self.process.pid)]
        chosen = {"all": [*driver, *family], "driver": driver, "java": java, "worker": workers[:1]}
        for each in chosen.get(what) or family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        # What has lost a part of it ends by itself, or hangs: Spark does not restart the parts of a program.
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        for each in [*driver, *family]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait(30)
        return "DONE" not in self.said()

    def end(self):
        """Wait for the end. The state that the job has printed."""
        self.process.wait(600)
        said = self.said()
        assert self.process.returncode == 0, said[-5000:]
        (found,) = [line for line in said.splitlines() if line.startswith("STATE ")]
        return json.loads(found.removeprefix("STATE "))


def check(tmp_path, kills, recovered_from, seed):
    random = Random(f"{seed} {recovered_from}")
    kinds = random.sample(sorted(KINDS), len(KINDS))
    done = rounds = 0
    while done < kills:
        kind, folder = kinds[rounds % len(kinds)], tmp_path / f"{recovered_from}-{rounds}"
        rounds += 1
        elements = write_files(folder, random)
        expected, final = undisturbed(folder / "undisturbed", kind, elements)
        life = Life(folder, kind)
        about = f"{kind}, recovered from {recovered_from}, KEYED_SEED={seed}"
        for _ in range(min(kills - done, 3)):
            if not Program(folder, kind).killed(random):
                break
            done += 1
            if recovered_from == "changelog":
                life.lose_checkpoint()
        found = Program(folder, kind).end()
        assert [parquet_rows(sink) for sink in sorted(folder.glob("sink-*"))] == expected, about
        if kind != "functions":
            # There the list of what waits for processing time says in which batch a row came.
            assert found == final, about
        for operator in life.operators():
            verified = verify_changelog(life.changelog(operator, life.number))
            assert [group.problem for group in verified if group.problem] == [], about


def test_a_killed_job_recovered_from_its_changelog_alone_ends_as_an_undisturbed_one(tmp_path):
    check(tmp_path, 1, "changelog", os.environ.get("KEYED_SEED") or str(time.time_ns()))


@pytest.mark.slow
@pytest.mark.parametrize("recovered_from", ["checkpoint", "changelog"])
def test_killed_jobs_end_as_undisturbed_ones(tmp_path, recovered_from):
    check(tmp_path, (KILLS + 1) // 2, recovered_from, os.environ.get("KEYED_SEED") or str(time.time_ns()))
