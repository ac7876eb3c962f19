"""The local runtime killed at random points: what it has written in the end is what an undisturbed run writes.

More kills: ``KEYED_KILLS=200 pytest tests/keyed/runtimes/local/test_kill.py``; ``KEYED_SEED`` repeats a run's points.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.keyed.runtimes.local import job

KILLS = int(os.environ.get("KEYED_KILLS", "8"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    started = time.perf_counter()
    job.run(folder)
    return job.written(folder), time.perf_counter() - started


def work(folder: Path, started) -> None:
    started.set()
    job.run(folder)


@pytest.mark.slow
def test_killed_runs_end_with_what_an_undisturbed_run_writes(tmp_path, undisturbed):
    expected, seconds = undisturbed
    assert len(expected) > 20
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    random = Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.keyed.runtimes.local.job", "pyarrow.parquet", "rocksdict"])
    kills, rounds = 0, 0
    while kills < KILLS:
        folder = tmp_path / str(rounds)
        rounds += 1
        finished = False
        while not finished:
            started = context.Event()
            process = context.Process(target=work, args=(folder, started))
            process.start()
            assert started.wait(300)
            # Early in its life more often than late, so that a round takes several kills.
            process.join(random.random() * seconds * 0.7 if kills < KILLS else None)
            if process.is_alive():
                process.kill()
                kills += 1
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL)
            finished = process.exitcode == 0
        assert job.written(folder) == expected, f"KEYED_SEED={seed}"
        assert not [file for file in folder.rglob("*.tmp") if "checkpoint" not in file.parts]
        result = job.run(folder)
        assert result.batches == 0
        assert job.written(folder) == expected
