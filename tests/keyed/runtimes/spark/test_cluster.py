"""Jobs on a standalone cluster whose machines share no folder but that of input, checkpoint and output.

Executors are killed and added, and machines are lost with their disks, at moments that a seed chooses. The output and
the state in the changelog are those of an undisturbed run in one process. ``KEYED_CLUSTER_SEED`` sets the seed.
"""

from __future__ import annotations

import os
import random
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from keyed.recovery import verify
from keyed.testing.changelog_conformance import state_of
from tests.keyed.runtimes.spark.cluster_jobs import OUTPUTS, changelogs, undisturbed, write_rows
from tests.keyed.runtimes.spark.functions import parquet_rows
from tests.support.s3 import s3_server
from tests.support.spark_cluster import Machine, SparkCluster
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.cluster]
SEED = int(os.environ.get("KEYED_CLUSTER_SEED", "1"))
#: Every task that has run a while gets a second attempt, if an executor is free.
SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.multiplier=1",
    "spark.speculation.quantile=0.1",
    "spark.speculation.interval=20ms",
    "spark.speculation.minTaskRuntime=0ms",
)
DECOMMISSION = (
    "spark.decommission.enabled=true",
    "spark.storage.decommission.enabled=true",
    "spark.storage.decommission.shuffleBlocks.enabled=true",
    "spark.storage.decommission.rddBlocks.enabled=true",
)


def start(cluster: SparkCluster, job: str, folder: Path, changelog: str, groups: int, *settings: str) -> Machine:
    arguments = (job, str(folder), cluster.url, changelog, str(groups), *settings)
    return cluster.program("tests.keyed.runtimes.spark.cluster_jobs", *arguments)


def wait_until(driver: Machine, batches: int, chance: random.Random) -> bool:
    """Wait for a number of batches, and then until a random moment of a batch; false if the program has ended."""
    poll = driver.process.poll
    until(lambda: driver.said().count("BATCH") >= batches or poll() is not None, report=driver.said)
    with suppress(subprocess.TimeoutExpired):
        driver.process.wait(chance.random() * 2)
    return poll() is None


def check(job: str, folder: Path, changelog: str, expected: Path) -> None:
    """Compare outputs and state with those of the undisturbed run."""
    for name in OUTPUTS[job]:
        rows = parquet_rows(expected / name)
        assert rows, name
        assert parquet_rows(folder / "out" / name) == rows, name
    found, wanted = changelogs(changelog, folder), changelogs("directory", expected)
    for operator in (path.name for path in (expected / "changelog").iterdir()):
        assert [group.problem for group in verify(found(operator)) if group.problem] == []
        # The driver reaches the checkpoint, so a query restored from the changelog resumes at its position.
        assert list(found(operator).positions())
        states = []
        for log in (found(operator), wanted(operator)):
            header = log.header()
            groups = [state_of(log.reader(group)) for group in range(header.parallelism)]
            states.append({address: value for group in groups for address, value in group.items()})
        # The states of the main job hold the processing time of their last update.
        assert states[0].keys() == states[1].keys(), operator
        assert states[0] == states[1] or job == "top_n", operator


def test_a_killed_executor_and_a_lost_machine_change_nothing(tmp_path):
    folder, chance = tmp_path / "shared" / "top_n", random.Random(SEED)
    write_rows("top_n", folder, batches=4, rows=2_000)
    with s3_server() as objects, SparkCluster(tmp_path / "machines") as cluster:
        first, second = cluster.add_worker(), cluster.add_worker()
        changelog = f"s3={objects.url}"
        driver = start(cluster, "top_n", folder, changelog, 2, "spark.task.maxFailures=8")
        expected = undisturbed("top_n", folder)
        assert wait_until(driver, 1, chance), driver.said()
        assert first.kill_executor()
        assert wait_until(driver, 3, chance), driver.said()
        cluster.add_worker()
        second.lose()
        driver.wait_for("DONE")
        check("top_n", folder, changelog, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "changelog"), [("top_n", "kafka"), ("J1", "s3"), ("two", "kafka"), ("two", "s3"), ("J1", "kafka")]
)
@pytest.mark.parametrize("speculation", [True, False])
def test_kills_losses_decommissioning_and_speculation_under_load(tmp_path, request, job, changelog, speculation):
    folder, chance = tmp_path / "shared" / f"{job}-{changelog}-{speculation}-{SEED}", random.Random(f"{job}{SEED}")
    write_rows(job, folder, batches=8, rows=20_000)
    expected = undisturbed(job, folder)
    with s3_server() as objects, SparkCluster(tmp_path / "machines") as cluster:
        for _ in range(4):
            cluster.add_worker()
        place = f"s3={objects.url}" if changelog == "s3" else f"kafka={request.getfixturevalue('kafka')}"
        settings = ("spark.task.maxFailures=12", *DECOMMISSION, *(SPECULATION if speculation else ()))
        # Fewer key groups than executors: one is free for second attempts.
        driver = start(cluster, job, folder, place, 3, *settings)
        acts = ["kill", "kill", "lose", "decommission", "add", "kill"]
        chance.shuffle(acts)
        done = []
        for batches, act in enumerate(acts, 1):
            if not wait_until(driver, batches, chance):
                break
            running = [worker for worker in cluster.workers if worker.executors()]
            if act == "add" or not running:
                cluster.add_worker()
                done.append(act)
                continue
            worker = chance.choice(running)
            if act == "kill":
                worker.kill_executor()
            elif act == "lose":
                worker.lose()
            else:
                worker.decommission()
            done.append(act)
        driver.wait_for("DONE")
        assert len(done) >= 4, done
        check(job, folder, place, expected)


@pytest.mark.long
def test_without_retries_a_killed_executor_ends_the_query_and_the_next_run_goes_on(tmp_path):
    folder, chance = tmp_path / "shared" / "J1", random.Random(SEED)
    write_rows("J1", folder, batches=6, rows=20_000)
    expected = undisturbed("J1", folder)
    with s3_server() as objects, SparkCluster(tmp_path / "machines") as cluster:
        for _ in range(2):
            cluster.add_worker()
        changelog = f"s3={objects.url}"
        driver = start(
            cluster, "J1", folder, changelog, 2, "spark.task.maxFailures=1", "spark.stage.maxConsecutiveAttempts=1"
        )
        # Only a loss in the middle of a task ends the query. An executor that has run tasks has Python processes.
        batches = 1
        while wait_until(driver, batches, chance):
            worker = chance.choice([worker for worker in cluster.workers if worker.executors()] or cluster.workers)
            if any(executor.children() for executor in worker.executors()):
                worker.kill_executor()
                batches = driver.said().count("BATCH")
        assert driver.process.returncode == 1, driver.said()
        assert "keyed.errors.QueryFailed" in driver.said()
        start(cluster, "J1", folder, changelog, 2, "spark.task.maxFailures=1").wait_for("DONE")
        check("J1", folder, changelog, expected)
