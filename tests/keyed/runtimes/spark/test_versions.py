"""A checkpoint that an older Spark has written goes on under this one.

`make oldest-spark` and `make spark-matrix` make the environments with the older ones.
"""

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

from keyed.changelog import DirectoryChangelog
from keyed.recovery import verify
from keyed.runtimes.spark.session.spark_session import _numbers
from tests.keyed.runtimes.spark.functions import parquet_rows, random_rows, write_file
from tests.keyed.runtimes.spark.stages import run

ROOT = Path(__file__).parents[4]
THIS = _numbers(pyspark.__version__)
OLDER = {
    stamp.parent.name: stamp.parent
    for stamp in sorted(ROOT.glob(".environments/*/made-from"))
    for installed in stamp.parent.glob("lib/python*/site-packages/pyspark-*.dist-info")
    if _numbers(installed.name.removeprefix("pyspark-").removesuffix(".dist-info")) < THIS
}
NONE = pytest.param(None, marks=pytest.mark.skip(reason="no environment with an older Spark: make oldest-spark"))

pytestmark = [pytest.mark.slow, pytest.mark.spark]


def write_files(folder, numbers):
    for number in numbers:
        write_file(folder / "in", number, random_rows(number, 150, number * 150, 50))


@pytest.mark.parametrize("older", OLDER or [NONE])
def test_a_checkpoint_moves_from_an_older_spark_to_this_one(spark, tmp_path, older):
    moved, alone = tmp_path / "moved", tmp_path / "alone"
    write_files(moved, range(3))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    subprocess.run(
        [OLDER[older] / "bin" / "python", "-m", "tests.keyed.runtimes.spark.stages", moved],
        check=True,
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )
    before = len(parquet_rows(moved / "windows"))
    assert before > 0
    write_files(moved, range(3, 6))
    run(spark, moved)
    write_files(alone, range(6))
    run(spark, alone)
    for output in ("windows", "best", "late"):
        assert parquet_rows(moved / output) == parquet_rows(alone / output)
    assert len(parquet_rows(moved / "windows")) > before
    for operator in ("windows", "best"):
        log = DirectoryChangelog(moved / "log" / operator)
        assert [found.problem for found in verify(log) if found.problem] == []
