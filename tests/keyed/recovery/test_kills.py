"""Jobs killed at random points and recovered, from the checkpoint or from the changelog alone.

In the end what they have written and the state that they leave is that of an undisturbed run. More kills:
``KEYED_KILLS=500 pytest tests/keyed/recovery/test_kills.py``; ``KEYED_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keyed.recovery import verify
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life

KILLS = int(os.environ.get("KEYED_KILLS", "20"))
CONTEXT = multiprocessing.get_context("forkserver")


class Undisturbed:
    """Outputs and state of the jobs without kills."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {}

    def run(self, name: str) -> tuple[dict[str, Any], dict[str, Any], float]:
        """The files of a job, the state before its input ends, and the seconds it takes."""
        if name not in self.runs:
            life = Life(self.folder / name, name)
            started = time.perf_counter()
            jobs.run(life, drain=False)
            seconds = time.perf_counter() - started
            state = jobs.final_state(life)
            jobs.run(life)
            self.runs[name] = jobs.written(life.folder), state, seconds
        return self.runs[name]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


def work(folder: Path, name: str, export_interval: int, compact_every: int, started) -> None:
    life = Life(folder, name, export_interval=export_interval)
    started.set()
    jobs.run(life, drain=False, compact_every=compact_every)


def killed(life: Life, compact_every: int, seconds: float | None) -> bool:
    """Run a job in a process that is killed after so many seconds. Whether it was."""
    started = CONTEXT.Event()
    process = CONTEXT.Process(target=work, args=(life.folder, life.name, life.export_interval, compact_every, started))
    process.start()
    assert started.wait(300)
    process.join(seconds)
    if process.is_alive():
        process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.slow
@pytest.mark.parametrize("recovered_from", ["checkpoint", "changelog"])
def test_killed_jobs_end_as_undisturbed_ones(tmp_path, undisturbed, recovered_from):
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    print(f"KEYED_SEED={seed}")
    random = Random(seed)
    CONTEXT.set_forkserver_preload(["tests.keyed.recovery.jobs", "rocksdict"])
    names = random.sample(sorted(jobs.JOBS), len(jobs.JOBS))
    kills = rounds = 0
    while kills < KILLS // 2:
        name = names[rounds % len(names)]
        expected, state, seconds = undisturbed.run(name)
        life = Life(tmp_path / str(rounds), name, export_interval=random.choice([0, 400]))
        compact_every = random.choice([0, 1, 4])
        rounds += 1
        # Early in its life more often than late, so that a round takes several kills.
        while killed(life, compact_every, random.random() * seconds * 0.8 if kills < KILLS // 2 else None):
            kills += 1
            if recovered_from == "changelog":
                life.lose_checkpoint()
        about = f"{name}, KEYED_SEED={seed}"
        assert jobs.final_state(life) == state, about
        if recovered_from == "changelog":
            life.lose_checkpoint()
        jobs.run(life)
        assert jobs.written(life.folder) == expected, about
        assert not list(life.folder.glob("sink-*/*.tmp")), about
        for operator in life.operators():
            found = verify(life.changelog(operator, life.number))
            assert [group.problem for group in found if group.problem] == [], about
