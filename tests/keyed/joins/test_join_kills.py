"""Joins whose process is killed at random points, and restored at another parallelism, write what others write.

More kills: ``KEYED_KILLS=100 pytest tests/keyed/joins/test_join_kills.py``; ``KEYED_SEED`` repeats a run's points.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from random import Random

import pytest

from tests.keyed.joins import join_job

KILLS = int(os.environ.get("KEYED_KILLS", "4"))


def work(started, *arguments, **options) -> None:
    started.set()
    join_job.run(*arguments, **options)


@pytest.mark.slow
@pytest.mark.parametrize("path", [pytest.param("row", marks=pytest.mark.long), "vectorized"])
@pytest.mark.parametrize("kind", join_job.JOINS)
def test_killed_joins_end_with_what_an_undisturbed_one_writes(tmp_path, kind, path):
    begun = time.perf_counter()
    # The other path by row, and in one life: what it writes is what both have to write.
    join_job.run(tmp_path / "whole", kind, "row")
    seconds = time.perf_counter() - begun
    expected = join_job.written(tmp_path / "whole")
    assert len(expected) > 500
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    random = Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.keyed.joins.join_job", "pyarrow.parquet", "rocksdict"])
    kills = rounds = 0
    while kills < KILLS:
        folder = tmp_path / str(rounds)
        rounds += 1
        # Half of the input in one life, and what follows from its changelog at another parallelism.
        for options in ({"rows": join_job.ROWS // 2}, {"restored": True, "parallelism": 3}):
            finished = False
            while not finished:
                started = context.Event()
                process = context.Process(target=work, args=(started, folder, kind, path), kwargs=options)
                process.start()
                assert started.wait(300)
                process.join(random.random() * seconds if kills < KILLS else None)
                kills += process.is_alive()
                process.kill()
                process.join()
                finished = process.exitcode == 0
                assert process.exitcode in (0, -signal.SIGKILL)
        assert join_job.written(folder) == expected, f"KEYED_SEED={seed}"
