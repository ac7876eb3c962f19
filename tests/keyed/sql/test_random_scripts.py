"""Random scripts: their outputs are those of DuckDB over all rows, however they are run."""

import signal
import subprocess
import sys

import pytest

from tests.keyed.sql.random_scripts import random_script, stored, verify, verify_columns, verify_restart


@pytest.mark.parametrize("seed", range(8))
def test_outputs_equal_those_of_duckdb_and_do_not_depend_on_batches(seed):
    assert verify(seed) == [], random_script(seed).text


@pytest.mark.parametrize("seed", range(100, 104))
def test_a_script_that_is_stopped_continues_from_its_checkpoint(seed, tmp_path):
    assert verify_restart(seed, tmp_path) == [], random_script(seed).text


@pytest.mark.parametrize("seed", range(300, 304))
def test_a_script_over_columns_writes_what_it_does_over_rows(seed, tmp_path):
    assert verify_columns(seed, tmp_path) == [], random_script(seed, for_spark=True).text


@pytest.mark.slow
def test_outputs_of_many_scripts(tmp_path):
    differing = {seed: found for seed in range(1000, 1060) if (found := verify(seed))}
    assert differing == {}
    restarted = {s: found for s in range(1150, 1165) if (found := verify_restart(s, tmp_path / str(s)))}
    assert restarted == {}
    columns = {s: found for s in range(1200, 1240) if (found := verify_columns(s, tmp_path / f"columns-{s}"))}
    assert columns == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 9])
def test_tables_of_a_script_that_was_killed_are_those_of_one_that_was_not(seed, tmp_path):
    command = [sys.executable, "-m", "tests.keyed.sql.random_scripts", "--seed", str(seed), "--kill-at", "4"]
    killed = subprocess.run([*command, "--folder", str(tmp_path / "killed")], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert stored(seed, tmp_path / "killed") == stored(seed, tmp_path / "whole")
