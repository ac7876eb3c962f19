"""The lease on a checkpoint: one holder, who loses it when it ends, however it ends."""

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

import keyed
from keyed.errors import CheckpointError
from keyed.runtimes.spark.checkpoint import checkpoint_lease
from keyed.runtimes.spark.checkpoint.checkpoint_lease import CheckpointLease
from keyed.runtimes.spark.query import stream_job
from tests.keyed.runtimes.spark.functions import count, files_source, parquet_rows, write_file
from tests.support.spark_programs import Program
from tests.support.waiting import open_below

HOLDER = """
import sys
from pathlib import Path
from keyed.runtimes.spark.checkpoint.checkpoint_lease import CheckpointLease
lease = CheckpointLease(Path(sys.argv[1]), lambda: False)
print("held", flush=True)
sys.stdin.readline()
"""


def never():
    return False


def test_a_holder_that_is_killed_loses_it_at_once(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=f"in use by another run, of process {holder.pid};"):
            CheckpointLease(tmp_path, never)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        CheckpointLease(tmp_path, never).release()


def test_within_a_process_one_holds_it_until_it_has_ended_or_releases_it(tmp_path):
    ended: list[bool] = []
    first = CheckpointLease(tmp_path, lambda: bool(ended))
    with pytest.raises(CheckpointError, match="in use"):
        CheckpointLease(tmp_path, never)
    ended.append(True)
    second = CheckpointLease(tmp_path, never)
    first.release()
    with pytest.raises(CheckpointError, match="in use"):
        CheckpointLease(tmp_path, never)
    second.release()
    second.release()
    CheckpointLease(tmp_path, never).release()


def test_a_forked_process_does_not_keep_it(tmp_path):
    lease = CheckpointLease(tmp_path, never)
    context = multiprocessing.get_context("fork")
    go = context.Event()
    child = context.Process(target=go.wait)
    child.start()
    try:
        lease.release()
        CheckpointLease(tmp_path, never).release()
    finally:
        go.set()
        child.join()


@pytest.mark.long
@pytest.mark.parametrize("how", ["forks", "ends"])
def test_the_jvm_of_a_program_that_is_killed_holds_it_until_it_has_ended(spark, tmp_path, monkeypatch, how):
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    counted = count(files_source(spark, tmp_path / "in"), parallelism=1)
    program = Program("killed_jobs.run_without_end", tmp_path, how == "forks")
    try:
        jvm, child = map(int, program.wait_for("^PIDS .*$").split()[1:])
        assert program.wait_for_batches(1), program.said()
        program.process.kill()
        program.process.wait()
        if how == "forks":
            monkeypatch.setattr(checkpoint_lease, "_PATIENCE", 0.5)
            with pytest.raises(CheckpointError, match=rf"in use by process {jvm}, the JVM of a run whose program was"):
                counted.run(tmp_path / "out", checkpoint=tmp_path / "checkpoint")
            os.kill(child, signal.SIGKILL)
        monkeypatch.setattr(checkpoint_lease, "_PATIENCE", 300)
        write_file(tmp_path / "in", 1, [("a", 2, 1)])
        counted.run(tmp_path / "out", checkpoint=tmp_path / "checkpoint")
    finally:
        program.kill()
    assert parquet_rows(tmp_path / "out") == [("a", 1, 1), ("a", 2, 2)]


@pytest.mark.long
@pytest.mark.spark
def test_on_a_cluster_a_checkpoint_on_a_mount_has_it_too(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_job, "is_here", lambda _: False)
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    counted = count(files_source(spark, tmp_path / "in"), parallelism=2)
    query = counted.start(keyed.collect_sink(), checkpoint=tmp_path / "new" / "checkpoint")
    try:
        with pytest.raises(CheckpointError, match=f"in use by another run, of process {os.getpid()};"):
            counted.run(checkpoint=tmp_path / "new" / "checkpoint")
    finally:
        query.stop()
    assert len(counted.run(checkpoint=tmp_path / "new" / "checkpoint").values) <= 1


def test_a_thousand_times_leave_no_descriptor(tmp_path):
    for _ in range(1_000):
        CheckpointLease(tmp_path, never).release()
    assert open_below(tmp_path) == []
