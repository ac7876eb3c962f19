"""A query whose JVM alone is killed: the program gets a typed error with the remedy, and a later run continues."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.keyed.runtimes.spark.functions import parquet_rows, write_file

ROOT = Path(__file__).parents[4]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

PROGRAM = """
    import sys
    from pathlib import Path

    import psutil

    import keyed
    from tests.keyed.runtimes.spark.functions import count, files_source
    from tests.support.waiting import until

    folder, how = Path(sys.argv[1]), sys.argv[2]
    config = {"spark.local.dir": str(folder / "tmp")}
    session = keyed.spark_session("killed", master="local[2]", parallelism=2, config=config)
    job = count(files_source(session, folder / "in"), changelog=keyed.DirectoryChangelog(folder / "log"))
    if how == "runs":
        job.run(folder / "out", checkpoint=folder / "checkpoint")
        sys.exit()
    query = job.start(folder / "out", checkpoint=folder / "checkpoint", trigger="100 milliseconds")
    until(lambda: query.progress is not None and query.progress.batch_id >= 0)
    for child in psutil.Process().children(recursive=True):
        if child.name() == "java":
            child.kill()
    if how == "waits":
        query.await_termination()
    until(lambda: query.status.value == "failed")
    assert not query.is_active
    query.stop()
"""


def program(folder, how):
    command = [sys.executable, "-c", dedent(PROGRAM), str(folder), how]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize("how", ["waits", "does not wait"])
def test_a_query_whose_jvm_is_killed_says_so_and_a_later_run_continues(tmp_path, how):
    write_file(tmp_path / "in", 0, [("a", 1_000, 1), ("b", 2_000, 1)])
    killed = program(tmp_path, how)
    assert killed.returncode == (1 if how == "waits" else 0), killed.stderr
    assert killed.stderr.count("the query 'count' failed: Spark's JVM has ended") == 1, killed.stderr
    write_file(tmp_path / "in", 1, [("a", 3_000, 1)])
    again = program(tmp_path, "runs")
    assert again.returncode == 0, again.stderr
    assert [row[:2] for row in parquet_rows(tmp_path / "out")] == [("a", 1), ("a", 2), ("b", 1)]
