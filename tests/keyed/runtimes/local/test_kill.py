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

from tests.keyed.runtimes.local import chained_job, job

KILLS = int(os.environ.get("KEYED_KILLS", "8"))
JOBS = {"three sinks": job, "chained": chained_job}


def work(name: str, folder: Path, started) -> None:
    started.set()
    JOBS[name].run(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_killed_runs_end_with_what_an_undisturbed_run_writes(tmp_path, name):
    job = JOBS[name]
    begun = time.perf_counter()
    job.run(tmp_path / "undisturbed")
    seconds = time.perf_counter() - begun
    expected = job.written(tmp_path / "undisturbed")
    assert len(expected) > 20
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    random = Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*(each.__name__ for each in JOBS.values()), "pyarrow.parquet", "rocksdict"])
    kills, rounds = 0, 0
    while kills < KILLS:
        folder = tmp_path / str(rounds)
        rounds += 1
        finished = False
        while not finished:
            started = context.Event()
            process = context.Process(target=work, args=(name, folder, started))
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
        # What a kill leaves in a changelog stays for a day, because another writer may be at it.
        assert not [file for file in folder.rglob("*.tmp") if not {"checkpoint", "log"} & {*file.parts}]
        result = job.run(folder)
        assert result.batches == 0
        assert job.written(folder) == expected
