"""Commands whose output nobody reads to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import ROOT
from keyed.cli.main import _parsers
from tests.support.data_files import read_data
from tests.support.waiting import until

FUNCTION = "tests.keyed.cli.conftest:Count"
COMMANDS = {
    command: [word.format(first=FUNCTION) for word in words]
    for command, words in read_data("keyed/cli/commands.json")["commands"].items()
}
#: Each command line in a process of its own, forked where all is imported; what the process has left is told by its
#: status alone.
PROGRAM = """
import os, sys
import duckdb, uvicorn, keyed.tables.server, keyed.testing
from keyed.cli.main import console
for line in {lines!r}:
    read, write = os.pipe()
    os.close(read)
    child = os.fork()
    if child == 0:
        os.dup2(write, 1)
        sys.argv = ["keyed", *line]
        console()
    os.close(write)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.stderr.write(f"{{line[0]}}: {{status}}\\n")
"""


def run(folder, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Output is kept back until the end, as it is by default.
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment, text=True, **options)


@pytest.mark.slow
def test_every_command_ends_quietly_when_nobody_reads_on(places):
    lines = [[*command.split(), *arguments] for command, arguments in COMMANDS.items()]
    done = run(places, "-c", PROGRAM.format(lines=lines), stderr=subprocess.PIPE)
    _, told = done.communicate(timeout=300)
    # The status that a shell has for programs that SIGPIPE ended, and not a word of it.
    assert told.splitlines() == [f"{command.split()[0]}: {128 + signal.SIGPIPE}" for command in COMMANDS]
    assert set(_parsers()[1]) <= set(COMMANDS)


@pytest.mark.parametrize("command", ["tail", "standby"])
def test_commands_that_wait_end_when_their_reader_goes(places, command):
    following = [*COMMANDS[command], *(["--every", "0.05"] if command == "standby" else [])]
    program = run(
        places, "-m", "keyed.cli", command, *following, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert program.stdout is not None
    assert program.stderr is not None
    assert program.stdout.readline()
    # As head does; no other change ever comes.
    program.stdout.close()
    until(lambda: program.poll() is not None)
    with program.stderr as told:
        assert (program.returncode, told.read()) == (128 + signal.SIGPIPE, "")


def test_ctrl_c_ends_a_command_without_a_traceback(places):
    """A reader that does not read keeps the command writing; Ctrl-C comes then."""
    query = "select repeat('x', 1000) as text from range(1000)"
    program = run(places, "-m", "keyed.cli", "sql", "changelog", query, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stdout.read(1)
    program.send_signal(signal.SIGINT)
    _, told = program.communicate(timeout=300)
    assert (program.returncode, told) == (128 + signal.SIGINT, "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, as on Linux")
def test_output_to_a_full_disk_is_an_error_without_a_traceback(places):
    with Path("/dev/full").open("w") as full:
        program = run(places, "-m", "keyed.cli", "inspect", "checkpoint", stdout=full, stderr=subprocess.PIPE)
        _, told = program.communicate(timeout=300)
    assert (program.returncode, told) == (1, "error: standard output cannot be written: No space left on device\n")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["--version", "scan"])
def test_a_closed_standard_output_is_no_error(places, command):
    line = " ".join(["exec", sys.executable, "-m", "keyed.cli", command, *COMMANDS[command], ">&-"])
    program = run(places, "-c", f"import os; os.execvp('sh', ['sh', '-c', {line!r}])", stderr=subprocess.PIPE)
    _, told = program.communicate(timeout=300)
    assert (program.returncode, told) == (0, "")
