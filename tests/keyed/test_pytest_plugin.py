"""The pytest plugin, in a pytest of its own: fixtures, options, golden outputs, what it loads for others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from keyed import KeyedProcessFunction, ValueState
from keyed.testing import Record, assert_deterministic, strategies

class Count(KeyedProcessFunction):
    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield value, self.count.value()

def test_harness(keyed_harness):
    harness = keyed_harness(Count())
    harness.process("a")
    assert harness.state("count")["a"] == 1

def test_property():
    keys = strategies.st.lists(strategies.skewed("a", "b"))
    assert "--keyed-seed=11" in assert_deterministic(Count(), keys, examples=3)

def test_types():
    strategies.st.from_type(Record)

def test_golden(keyed_harness, assert_golden):
    harness = keyed_harness(Count())
    for key in "ab" + EXTRA:
        harness.process(key)
    assert_golden(record.value for record in harness.take_output())
"""


GOLDEN = """
import pytest

class TestOther:
    @pytest.mark.parametrize("name", ["a/b"])
    def test_golden(self, assert_golden, name):
        assert_golden(["one", "two\\u2028lines"])
        assert_golden([3], "third")

class Lines:
    def __repr__(self):
        return "1\\n2"

def test_lines(assert_golden):
    assert_golden([Lines()])

def test_twice(assert_golden):
    assert_golden([1])
    assert_golden([2])

def test_address(assert_golden):
    assert_golden([object()])
"""


def write_program(folder, extra=""):
    (folder / "test_count.py").write_text(PROGRAM.replace("EXTRA", repr(extra)))


def run_pytest(folder, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_PLUGINS": "keyed.pytest_plugin"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.slow
def test_fixtures_options_and_golden_outputs(tmp_path):
    options = ("--keyed-seed=11",)
    write_program(tmp_path)
    code, said = run_pytest(tmp_path, *options, "--keyed-update")
    assert code == 0, said
    assert (tmp_path / "golden" / "test_count.test_golden.txt").read_text() == "('a', 1)\n('b', 1)\n"
    assert run_pytest(tmp_path, *options)[0] == 0
    write_program(tmp_path, "a")
    code, said = run_pytest(tmp_path, *options)
    assert (code, "3 passed" in said, "--keyed-update rewrites it" in said) == (1, True, True)
    write_program(tmp_path)
    (tmp_path / "golden" / "test_count.test_golden.txt").unlink()
    assert "run with --keyed-update" in run_pytest(tmp_path, "-k", "golden")[1]


@pytest.mark.slow
def test_golden_outputs_of_each_test_have_a_file_of_their_own(tmp_path):
    write_program(tmp_path)
    (tmp_path / "test_odd.py").write_text(GOLDEN)
    code, said = run_pytest(tmp_path, "--keyed-update", "--keyed-seed=11")
    assert (code, "2 failed, 6 passed" in said) == (1, True), said
    assert "is used by another assert_golden of this test: give each a name=" in said
    assert "outputs have an address in their repr" in said
    code, said = run_pytest(tmp_path, "-k", "other or lines")
    assert code == 0, said
    assert {path.name for path in (tmp_path / "golden").iterdir()} == {
        "test_count.test_golden.txt",
        "test_odd.TestOther.test_golden[a_b].txt",
        "third.txt",
        "test_odd.test_lines.txt",
        "test_odd.test_twice.txt",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "from keyed.testing import strategies",
        "import keyed.testing.strategies",
        "from keyed.testing import assert_matches",
        "import keyed.testing, hypothesis",
        "import hypothesis, keyed.testing",
    ],
)
def test_hypothesis_finds_the_kit_in_whatever_order_both_are_loaded(tmp_path, program):
    metadata = tmp_path / "told-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: told\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[hypothesis]\ntold = keyed.pytest_plugin:register_strategies\n")
    check = (
        "; from hypothesis import strategies as st; from keyed.testing import Record; st.from_type(Record).validate()"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, "-c", program + check], cwd=tmp_path, env=environment, check=True)


def test_who_does_not_use_the_kit_does_not_load_it(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import json, sys\n"
        "KIT = 'keyed.testing', 'keyed.runtimes', 'pyspark'\n"
        "def test(): print(json.dumps([m for m in sys.modules if m.startswith(KIT)]))\n"
    )
    _, said = run_pytest(tmp_path, "-s")
    assert json.loads(said.splitlines()[0].rstrip(".")) == []


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.long
def test_one_spark_session_serves_the_run(tmp_path):
    (tmp_path / "test_spark.py").write_text(
        "def test_one(keyed_spark): assert keyed_spark.range(3).count() == 3\n"
        "def test_same(keyed_spark): assert keyed_spark.getActiveSession() is keyed_spark\n"
    )
    _, said = run_pytest(tmp_path)
    assert "2 passed" in said, said
