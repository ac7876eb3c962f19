"""The table of partial matches is queried beside a job on Spark that is killed again and again."""

from __future__ import annotations

import os
from contextlib import suppress
from random import Random

import pyarrow as pa
import pytest

import keyed
from keyed.errors import ChangelogError, TableNotFound
from keyed.tables import open_tables
from tests.keyed.runtimes.spark.functions import parquet_rows, write_file
from tests.keyed.runtimes.spark.killed_jobs import matches
from tests.support.spark_programs import PATIENCE, Program
from tests.support.tables import poll_tables
from tests.support.waiting import until

KILLS = int(os.environ.get("KEYED_SPARK_KILLS", "5"))
QUERY = "SELECT key, pattern, step, awaits, since, events, times_out FROM partial_matches ORDER BY ALL"


def partial_matches(tables):
    return [tuple(row.values()) for row in tables.sql(QUERY).to_pylist()]


def undisturbed(folder, rows):
    """Return the partial matches after each batch of the same job in this process."""
    expected = []
    for number in range(len(rows)):
        read = [row for each in rows[: number + 1] for row in each]
        table = pa.Table.from_pylist([dict(zip("ktv", row, strict=True)) for row in read])
        matches(table, folder).run(folder / "out", checkpoint=folder / "checkpoint", drain=False, rows_per_batch=200)
        with poll_tables(keyed.DirectoryChangelog(folder / "log"), folder / f"tables-{number}") as tables:
            expected.append(partial_matches(tables))
    return expected


class Reader:
    """Follows the changelog of the job, and records what the table shows at each query."""

    def __init__(self, folder):
        self._folder = folder
        self._tables = None
        self.seen = []

    def query(self):
        with suppress(ChangelogError, TableNotFound):  # Until the first commit there is no table.
            if self._tables is None:
                self._tables = open_tables(keyed.DirectoryChangelog(self._folder / "log"), self._folder / "tables")
            self._tables.poll()
            self.seen.append(partial_matches(self._tables))

    def wait_for(self, expected, start):
        """Wait until the table shows the expected rows. A job that ends by itself is started again.

        On an overloaded machine Spark's workers do not start in time.
        """
        programs = [start()]

        def shows_it():
            if programs[-1].process.poll() is not None:
                assert len(programs) < KILLS, programs[-1].said()[-5000:]
                programs.append(start())
            self.query()
            return self.seen[-1:] == [expected]

        until(shows_it, seconds=PATIENCE, report=lambda: f"{self.seen[-1:]}, {programs[-1].said()[-5000:]}")

    def close(self):
        if self._tables is not None:
            self._tables.close()


@pytest.mark.spark
@pytest.mark.slow
def test_the_table_of_partial_matches_is_queried_beside_a_job_that_is_killed(tmp_path):
    random, rows = Random(39), []
    for number in range(KILLS + 1):
        times = [max(0, number * 200 + i + random.randint(-20, 20)) for i in range(200)]
        rows.append([(random.choice("abcdefg"), time, random.randrange(100)) for time in times])
    expected = undisturbed(tmp_path / "local", rows)
    assert all(expected)
    reader = Reader(tmp_path)
    write_file(tmp_path / "in", 0, rows[0])
    for number in range(KILLS + 1):
        started: list[Program] = []

        def start(started=started):
            started.append(Program("killed_jobs.match_until_killed", tmp_path))
            return started[-1]

        try:
            reader.wait_for(expected[number], start)
            if number < KILLS:
                write_file(tmp_path / "in", number + 1, rows[number + 1])
            # The job is killed before, within or after the batch of this file.
            for _ in range(random.randrange(50)):
                reader.query()
        finally:
            for program in started:
                program.kill()
        reader.query()
    reader.close()
    # At each query the table shows a batch as a whole.
    assert all(each in ([], *expected) for each in reader.seen)
    assert parquet_rows(tmp_path / "out") == parquet_rows(tmp_path / "local" / "out")
