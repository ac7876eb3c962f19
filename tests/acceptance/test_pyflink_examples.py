"""The examples that PyFlink ships, as they are but for their import lines, print what Flink's semantics say.

They come out of the wheel of apache-flink, which is fetched once into the user's cache folder. Names of sinks, which
`keyed.pyflink` refuses, are left out of the imports: without ``--output`` the examples print.
"""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.jars import cache_folder

VERSION = "2.0.0"
SINKS = {"Encoder", "FileSink", "OutputFileConfig", "RollingPolicy"}

IMPORT = re.compile(r"^from pyflink[\w.]* import ((?:[^\n]*\\\n)*[^\n]*\n)", re.MULTILINE)

EXAMPLES = {
    # Rows run by their timestamps and the watermark is 2 s behind: a timer finds what was counted by then.
    "event_time_timer": [
        "('Alice', 143.2)", "('Bob', 86.4)", "('Alice', 143.2)", "('Bob', 102.5)",
        "('Bob', 102.5)", "('Alice', 143.2)", "('Bob', 102.5)", "('Alice', 163.29999999999998)",
    ],
    "state_access": [
        "('Alice', 110.1)", "('Bob', 30.2)", "('Alice', 130.1)", "('Bob', 83.3)",
        "('Alice', 143.2)", "('Bob', 86.39999999999999)", "('Bob', 102.5)", "('Alice', 163.29999999999998)",
    ],
    "windowing/session_with_gap_window": ["('hi', 1, 14, 6)", "('hi', 15, 20, 1)"],
    "windowing/session_with_dynamic_gap_window": ["('hi', 1, 2, 1)", "('hi', 2, 8, 3)", "('hi', 8, 30, 3)"],
    "windowing/sliding_time_window": [
        "('hi', -2, 3, 2)", "('hi', 0, 5, 4)", "('hi', 2, 7, 4)", "('hi', 4, 9, 3)",
        "('hi', 6, 11, 2)", "('hi', 8, 13, 2)", "('hi', 12, 17, 1)", "('hi', 14, 19, 1)",
    ],
    "windowing/tumbling_time_window": ["('hi', 0, 5, 4)", "('hi', 5, 10, 3)", "('hi', 15, 20, 1)"],
    "windowing/tumbling_count_window": ["('hi', 4)", "('hello', 6)", "('hello', 12)"],
}  # fmt: skip


@pytest.fixture(scope="module")
def wheel() -> zipfile.ZipFile:
    folder = cache_folder() / f"apache-flink-{VERSION}"
    if not folder.exists():
        options = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux1_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *options]
        subprocess.run([*command, f"apache-flink=={VERSION}"], check=True)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def imported_from_keyed(line: re.Match[str]) -> str:
    """The same import from `keyed.pyflink`, without the sinks."""
    names = [name.strip(" \\\n") for name in line[1].split(",")]
    left = [name for name in names if name not in SINKS]
    return f"from keyed.pyflink import {', '.join(left)}\n" if left else ""


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_pyflink_runs_when_its_imports_are_changed(wheel, tmp_path, monkeypatch, capsys, name):
    text = wheel.read(f"pyflink/examples/datastream/{name}.py").decode()
    changed = IMPORT.sub(imported_from_keyed, text)
    assert len(changed.splitlines()) >= len(text.splitlines()) - 2
    assert "from pyflink" not in changed
    program = Path(tmp_path / "example.py")
    program.write_text(changed)
    monkeypatch.setattr(sys, "argv", [str(program)])
    runpy.run_path(str(program), run_name="__main__")
    assert [line for line in capsys.readouterr().out.splitlines() if "--output" not in line] == EXAMPLES[name]
