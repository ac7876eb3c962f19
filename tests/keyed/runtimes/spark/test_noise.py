"""Output of Spark that a user sees: none in normal operation, and the cause first after a failure."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keyed.errors import UserFunctionError, remedy

PROGRAM = Path(__file__).with_name("noisy.py")
ROOT = Path(__file__).parents[4]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def shown(mode, folder):
    """The output of a program that runs or fails."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, PROGRAM, mode, folder], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout + done.stderr


def told(text):
    """The error of a traceback: its first line, and the notes below."""
    first, _, below = text[text.index("keyed.errors.") :].partition("\n")
    return first, below


@pytest.mark.long
def test_a_program_shows_what_it_prints_itself_and_leaves_no_log(tmp_path):
    # As a program that was killed has left it.
    (tmp_path / "keyed-spark-old.log").touch()
    os.utime(tmp_path / "keyed-spark-old.log", (0, 0))
    assert shown("well", tmp_path) == "started\n"
    assert list(tmp_path.glob("keyed-spark-*")) == []


@pytest.mark.long
def test_quiet_can_be_turned_off(tmp_path):
    assert "\nin the worker\n" in shown("loud", tmp_path)
    assert list(tmp_path.glob("keyed-spark-*")) == []


@pytest.mark.long
def test_a_failure_is_named_first_with_the_users_lines_and_the_rest_is_in_the_log(tmp_path):
    started, *failures = re.split(r"^== (\w+)\n", shown("failing", tmp_path), flags=re.MULTILINE)
    assert started == "started\n"
    troubles = dict(zip(failures[::2], failures[1::2], strict=True))
    assert list(troubles) == ["function", "exit", "sink", "path"]
    assert [name for name, text in troubles.items() if len(text.splitlines()) > 60] == []

    first, below = told(troubles["function"])
    assert first.startswith(
        "keyed.errors.UserFunctionError: operator 'Divide', process_element of element Row(word='a'"
    )
    assert "key 'a': ZeroDivisionError" in first
    assert below.startswith("In the worker:\n")
    assert re.findall(r", in (\w+)$", below, re.MULTILINE) == ["process_element", "quotient"]
    assert "return 10 // n" in below
    (log,) = tmp_path.glob("keyed-spark-*")
    assert below.endswith(f"\nSpark's log: {log}\n{remedy(UserFunctionError)}\n")
    assert "keyed/engine/driver.py" in log.read_text()
    assert "in the worker" in log.read_text()

    first, _ = told(troubles["exit"])
    assert first.startswith(
        "keyed.errors.QueryFailed: the query 'Divide', batch 0 for a collecting sink, failed: a Python"
    )

    first, below = told(troubles["sink"])
    assert "batch 0 for the sink lookup, failed: AnalysisException: [UNRESOLVED_COLUMN" in first
    assert re.findall(r", in (\w+)$", below, re.MULTILINE) == ["lookup"]

    first, _ = told(troubles["path"])
    assert first.startswith("keyed.errors.")
    assert "/dev/null" in first
    assert "ot a directory" in first
