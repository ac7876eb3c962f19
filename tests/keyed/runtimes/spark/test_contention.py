"""Two drivers on one checkpoint: one works, and the checkpoint stays good.

More rounds: ``KEYED_CONTENTIONS=20 pytest -s tests/keyed/runtimes/spark/test_contention.py``.
"""

from __future__ import annotations

import os

import pytest

from tests.keyed.runtimes.spark.functions import count, expected_counts, files_source, parquet_rows, write_file
from tests.support.spark_programs import Program

ROUNDS = int(os.environ.get("KEYED_CONTENTIONS", "1"))
FILES = 3

pytestmark = pytest.mark.spark


def test_of_two_drivers_that_start_at_once_one_works_and_a_third_run_goes_well(spark, tmp_path):
    rows = [[(key, n * 50 + i, i) for i, key in enumerate("abcdefg" * 7)] for n in range(FILES + 1)]
    programs = [Program("killed_jobs.contend", tmp_path, name, ROUNDS) for name in ("one", "other")]
    try:
        for number in range(ROUNDS):
            own = tmp_path / str(number)
            for file in range(FILES):
                write_file(own / "in", file, rows[file])
            for program in programs:
                program.wait_for(rf"^READY {number}$")
            (own / "go").touch()

            ends = [program.wait_for(rf"^(DONE|REFUSED) {number}\b.*$") for program in programs]
            assert any(end.startswith("DONE") for end in ends), ends
            for end in ends:
                assert end.startswith("DONE") or "in use by another run, of process " in end, ends

            write_file(own / "in", FILES, rows[FILES])
            count(files_source(spark, own / "in"), parallelism=2).run(own / "out", checkpoint=own / "checkpoint")
            assert parquet_rows(own / "out") == expected_counts([row for file in rows for row in file])
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()
