"""A query whose JVM alone is killed: the program gets a typed error with the remedy, and a later run continues."""

from __future__ import annotations

import pytest

from tests.keyed.runtimes.spark.functions import parquet_rows, write_file
from tests.support.spark_programs import Program

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("how", ["waits", "does not wait"])
def test_a_query_whose_jvm_is_killed_says_so_and_a_later_run_continues(tmp_path, how):
    write_file(tmp_path / "in", 0, [("a", 1_000, 1), ("b", 2_000, 1)])
    status, said = Program("killed_jobs.lose_jvm", tmp_path, how).end()
    assert status == (1 if how == "waits" else 0), said
    assert said.count("the query 'count' failed: Spark's JVM has ended") == 1, said
    write_file(tmp_path / "in", 1, [("a", 3_000, 1)])
    status, said = Program("killed_jobs.lose_jvm", tmp_path, "runs").end()
    assert status == 0, said
    assert [row[:2] for row in parquet_rows(tmp_path / "out")] == [("a", 1), ("a", 2), ("b", 1)]
