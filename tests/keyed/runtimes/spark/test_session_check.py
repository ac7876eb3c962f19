"""Everything that a Spark session lacks is reported at once, before a query starts on it."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from keyed.errors import SessionError
from keyed.runtimes.spark.session import spark_session
from keyed.runtimes.spark.session.spark_session import CHANGELOG, PROVIDER, check_session, check_versions
from tests.keyed.runtimes.conftest import CASES

ROOT = Path(__file__).parents[4]
SOUND = {"pyspark": "4.0.5", "protobuf": "5.28.3", "pandas": "2.2.0", "pyarrow": "18.0.0"}


@pytest.mark.parametrize(("versions", "lines"), CASES["packages and what is wrong with them"])
def test_all_packages_that_do_not_serve_are_reported_at_once(versions, lines):
    """Each Spark has its own protobuf."""
    assert spark_session._wrong_versions({**SOUND, **versions}) == lines


def test_a_pyspark_that_databricks_connect_brings_is_not_replaced(monkeypatch):
    found = {"pyspark": "3.5.2", "protobuf": "6.33.5", "pandas": "2.3.3", "pyarrow": "24.0.0"}
    monkeypatch.setattr(spark_session, "_installed", lambda: found)
    monkeypatch.setattr(metadata, "version", {"databricks-connect": "16.1.7"}.__getitem__)
    with pytest.raises(SessionError, match=r"databricks-connect 16.1.7 brings this pyspark: .* 17 on"):
        check_versions()


def test_the_environment_of_the_tests_serves():
    check_versions()


def test_all_settings_that_are_missing_are_told_at_once(spark):
    before = {name: spark.conf.get(name) for name in (PROVIDER, CHANGELOG)}
    try:
        spark.conf.set(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
        spark.conf.set(CHANGELOG, "false")
        with pytest.raises(SessionError) as caught:
            check_session(spark)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert str(caught.value).count("\n- ") == 2
    assert PROVIDER in str(caught.value)
    assert CHANGELOG in str(caught.value)
    check_session(spark)


@pytest.mark.smoke
def test_a_worker_tells_its_packages(spark):
    assert spark_session._wrong_workers(spark) == []


OWN_SESSION = """
import keyed
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "1")
class Count(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, default=0)
    def process_element(self, value, ctx):
        yield value.word, 1
frame = spark.createDataFrame([("a",)], "word string")
keyed.stream(frame).key_by("word").process(Count(), output="word string, n int").run()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_workers_of_another_python_are_told_with_the_remedy_and_beside_the_settings(tmp_path):
    """As in a session of the user's own where no environment is activated: ``python3`` is that of the system."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    # Its packages are those of this environment, except keyed.
    pth = next(bare.glob("lib/python*/site-packages")) / "others.pth"
    pth.write_text(packages(tmp_path))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}
    environment["PYSPARK_PYTHON"] = str(bare / "bin" / "python")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{OWN_SESSION}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    said = done.stderr[done.stderr.index("keyed.errors.SessionError") :]
    assert PROVIDER in said
    assert CHANGELOG in said
    assert f"in the Python of the workers, {bare / 'bin' / 'python'}, keyed cannot be imported (No module named" in said
    assert f"set PYSPARK_PYTHON={sys.executable}" in said
    assert len(said.splitlines()) < 10


def packages(folder: Path) -> str:
    """A folder with the packages of this environment, except keyed itself."""
    import pyspark

    installed = Path(pyspark.__file__).parents[1]
    copy = folder / "packages"
    copy.mkdir()
    for path in installed.iterdir():
        if "keyed" not in path.name and not path.name.endswith(".pth"):
            (copy / path.name).symlink_to(path)
    return str(copy)
