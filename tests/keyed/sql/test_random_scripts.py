"""Random scripts: their outputs are those of DuckDB over all rows, however they are run."""

import signal
import subprocess
import sys

import pytest

from tests.keyed.sql.random_scripts import check, drawn, stored

#: Seeds whose output is a table that does not depend on which rows of an input come first.
TABLES = [
    seed
    for seed in range(2000, 2200)
    if drawn(seed).kind in ("group", "table_group", "session", "window", "table", "foreign")
]


@pytest.mark.parametrize("first", [0, 10])
def test_outputs_equal_those_of_duckdb(first):
    assert [found for seed in range(first, first + 10) if (found := check(seed))] == []


@pytest.mark.parametrize("seed", TABLES[:3])
def test_a_script_that_is_stopped_continues_from_its_checkpoint(seed, tmp_path):
    assert stored(seed, tmp_path / "stopped", stops=(0.3, 0.7)) == stored(seed, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1300, 100))
def test_outputs_of_many_scripts(first):
    assert [found for seed in range(first, first + 100) if (found := check(seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_scripts_that_are_stopped_continue_from_their_checkpoints(part, tmp_path):
    for seed in TABLES[3 + part : 46 : 4]:
        stopped, whole = stored(seed, tmp_path / f"{seed}s", stops=(0.5,)), stored(seed, tmp_path / f"{seed}w")
        assert stopped == whole, drawn(seed).text


@pytest.mark.long
def test_outputs_of_ten_thousand_scripts():
    assert [found for seed in range(10_000, 20_000) if (found := check(seed))] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", [each for each in TABLES if len(drawn(each).given["s"]) > 15][:5])
def test_tables_of_a_script_that_was_killed_are_those_of_one_that_was_not(seed, tmp_path):
    command = [sys.executable, "-m", "tests.keyed.sql.random_scripts", "--folder", str(tmp_path / "killed")]
    killed = subprocess.run([*command, "--seeds", f"{seed}:{seed + 1}", "--kill-at", "2"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert stored(seed, tmp_path / "killed") == stored(seed, tmp_path / "whole")
