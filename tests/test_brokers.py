"""Servers that tests and benchmarks start end with the process that started them."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.waiting import until

#: Starts a process with a guard, prints its number, and ends in one of these ways.
_PROGRAM = """
import subprocess, sys, time
from tests.support.kafka import guard
process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
kept = guard(process.pid)
print(process.pid, flush=True)
if sys.argv[1] == "end":
    sys.exit(0)
time.sleep(1000)
"""


@pytest.mark.parametrize("way", ["end", signal.SIGTERM, signal.SIGKILL])
def test_a_guarded_process_ends_with_the_one_that_started_it(way):
    program = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(way)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    number = int(program.stdout.readline())
    if way != "end":
        program.send_signal(way)
    program.communicate()
    until(lambda: not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE)
