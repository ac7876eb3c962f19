"""A test on Spark runs once more if a Python worker did not start within Spark's limit, and for no other failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLOW_WORKER = "a Python worker did not start within Spark's limit of ten seconds: the machine is overloaded"
PROGRAM = f"""
import pytest

runs = []

@pytest.fixture
def spark():
    return None

def fails_at_first(name, message):
    runs.append(name)
    if runs.count(name) == 1:
        raise RuntimeError(message)

def test_worker(spark):
    fails_at_first("worker", {SLOW_WORKER!r})

def test_other(spark):
    fails_at_first("other", "something else")

def test_without_spark():
    fails_at_first("without", {SLOW_WORKER!r})

def test_twice(spark):
    runs.append("twice")
    raise RuntimeError({SLOW_WORKER!r})

def test_runs():
    assert runs == ["worker", "worker", "other", "without", "twice", "twice"]
"""


def test_a_test_on_spark_runs_once_more_if_a_worker_did_not_start(tmp_path):
    file = tmp_path / "test_program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.reruns"]
    run = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "3 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert all(f"test_{name}" in run.stdout for name in ("other", "without_spark", "twice"))
