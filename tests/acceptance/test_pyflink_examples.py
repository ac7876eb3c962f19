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

from tests.support.data_files import read_data
from tests.support.jars import cache_folder

VERSION = "2.0.0"
SINKS = {"Encoder", "FileSink", "OutputFileConfig", "RollingPolicy"}

IMPORT = re.compile(r"^from pyflink[\w.]* import ((?:[^\n]*\\\n)*[^\n]*\n)", re.MULTILINE)

# Rows run by their timestamps and the watermark is 2 s behind: a timer finds what was counted by then.
EXAMPLES = read_data("acceptance/pyflink_examples.json")


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
