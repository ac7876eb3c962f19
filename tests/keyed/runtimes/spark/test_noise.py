"""What the user of a program sees of Spark: nothing while all is well, and of a failure first what it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("noisy.py")
ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.spark


def outcome(mode: str, folder: Path) -> tuple[int, list[str], str]:
    """The program's status, the lines that it shows, and Spark's log if one is named."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, PROGRAM, mode, folder], capture_output=True, text=True, check=False, env=environment
    )
    shown = (done.stdout + done.stderr).splitlines()
    named = re.search(r"^Spark's log: (.*)$", done.stderr, re.MULTILINE)
    return done.returncode, shown, Path(named[1]).read_text() if named else ""


def test_a_program_shows_what_it_prints_itself_and_leaves_no_log(tmp_path):
    assert outcome("well", tmp_path) == (0, ["started"], "")
    assert list(tmp_path.glob("keyed-spark-*")) == []


def test_a_failing_function_is_named_with_its_lines_and_the_rest_is_in_the_log(tmp_path):
    status, shown, log = outcome("function", tmp_path)
    assert status == 1
    assert len(shown) < 40
    start = next(number for number, line in enumerate(shown) if line.startswith("keyed.errors.UserFunctionError: "))
    assert shown[start].startswith("keyed.errors.UserFunctionError: operator 'Divide', process_element of element Row(")
    assert "key 'a': ZeroDivisionError" in shown[start]
    below = "\n".join(shown[start + 1 :])
    assert below.startswith("In the worker:\n")
    assert re.findall(r", in (\w+)$", below, re.MULTILINE) == ["process_element", "quotient"]
    assert "return 10 // n" in below
    assert "keyed/engine/driver.py" in log
    assert "in the worker" in log


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_before_anything_else(tmp_path):
    status, shown, _ = outcome("exit", tmp_path)
    assert status == 1
    said = next(line for line in shown if line.startswith("keyed.errors."))
    assert said.startswith(
        "keyed.errors.QueryFailed: the query 'Divide', batch 0 for a collecting sink, failed: a Python"
    )


@pytest.mark.slow
def test_a_sink_that_cannot_be_written_to_is_named_with_its_path_and_the_cause(tmp_path):
    status, shown, _ = outcome("path", tmp_path)
    assert status == 1
    said = next(line for line in shown if line.startswith("keyed.errors."))
    assert "the query 'Divide', batch 0 for the Parquet sink '/dev/null/out', failed: " in said
    assert said.endswith("Parent path is not a directory: file:/dev/null")


@pytest.mark.slow
def test_a_failing_sink_is_named_with_its_own_lines(tmp_path):
    status, shown, _ = outcome("sink", tmp_path)
    assert status == 1
    start = next(number for number, line in enumerate(shown) if line.startswith("keyed.errors."))
    assert "batch 0 for the sink lookup, failed: AnalysisException: [UNRESOLVED_COLUMN" in shown[start]
    below = "\n".join(shown[start:])
    assert re.findall(r", in (\w+)$", below, re.MULTILINE) == ["lookup"]


@pytest.mark.slow
def test_quiet_can_be_turned_off(tmp_path):
    status, shown, _ = outcome("loud", tmp_path)
    assert status == 0
    assert "in the worker" in shown
    assert list(tmp_path.glob("keyed-spark-*")) == []
