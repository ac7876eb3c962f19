"""The meter of the benchmarks counts known amounts of CPU time once, however the processes that used them end."""

import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager

import pytest

from tests.benchmarks.meter import Meter, adopting

# CPU-seconds that a process uses, and by how much the readings may differ: a process that nobody waits for is counted
# up to the last reading, and on a crowded machine that one is older.
BURN = 0.5
TOLERANCE = 0.1

PRELUDE = """
import os, signal, subprocess, sys, time

def burn(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass

def forked(work):
    pid = os.fork()
    if not pid:
        work()
        os._exit(0)
    return pid

def step():
    print(flush=True)
    sys.stdin.readline()

"""


@contextmanager
def program(text):
    """Run a program whose calls of `step` wait for the function that this returns."""
    command = adopting([sys.executable, "-c", PRELUDE + textwrap.dedent(text)])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        to, lines = process.stdin, process.stdout

        def following():
            to.write("\n")
            to.flush()
            assert lines.readline() == "\n"

        assert lines.readline() == "\n"
        with Meter(process.pid) as meter:
            yield meter, following
            to.write("\n")


ENDINGS = {
    "its parent waits for it": "os.waitpid(forked(lambda: burn({burn})), 0)",
    "its parent does not wait for it": """
        pid = forked(lambda: burn({burn}))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    """,
    "its parent ignores SIGCHLD, as Spark's daemon of workers does": """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        step()
        try:
            os.waitpid(forked(lambda: burn({burn})), 0)
        except ChildProcessError:
            pass
    """,
    "its parent, which ignores SIGCHLD, has ended, too": """
        def daemon():
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            time.sleep(0.3)
            try:
                os.waitpid(forked(lambda: burn({burn})), 0)
            except ChildProcessError:
                pass
        os.waitpid(forked(daemon), 0)
    """,
    "its parent ended right after it": """
        os.waitpid(forked(lambda: os.waitpid(forked(lambda: burn({burn})), 0)), 0)
    """,
    "its parent ended before it": """
        reading, writing = os.pipe()
        def work():
            burn({burn})
            os.write(writing, b"x")
        os.waitpid(forked(lambda: forked(work)), 0)
        os.read(reading, 1)
    """,
    "it is a daemon of its own session": """
        reading, writing = os.pipe()
        def daemon():
            os.setsid()
            forked(work)
        def work():
            burn({burn})
            os.write(writing, b"x")
        os.waitpid(forked(daemon), 0)
        os.read(reading, 1)
    """,
    "it still runs": """
        reading, writing = os.pipe()
        def work():
            burn({burn})
            os.write(writing, b"x")
            time.sleep(60)
        pid = forked(work)
        os.read(reading, 1)
        step()
        os.kill(pid, signal.SIGKILL)
    """,
}


#: One with a parent, one without, and one that still runs.
FAST = {"its parent waits for it", "its parent ended before it", "it still runs"}


@pytest.mark.parametrize(
    "ending", [pytest.param(ending, marks=() if ending in FAST else pytest.mark.slow) for ending in ENDINGS]
)
def test_the_work_of_a_process_is_counted_once_however_it_ends(ending):
    work = textwrap.dedent(ENDINGS[ending].format(burn=BURN))
    first = "\nstep()\n" if work.count("step()") == 0 or "still" in ending else ""
    with program(first + work + "\nstep()\n") as (meter, following):
        before = meter.read()
        following()
        assert meter.read().total - before.total == pytest.approx(BURN, abs=TOLERANCE)


@pytest.mark.slow
def test_no_reading_is_below_an_earlier_one_while_processes_come_and_go():
    text = """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        step()
        def nested():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for _ in range(10):
                os.waitpid(forked(lambda: burn(0.02)), 0)
        for _ in range(5):
            try:
                os.waitpid(forked(nested), 0)
            except ChildProcessError:
                pass
        step()
    """
    readings = []
    with program(text) as (meter, following):
        readings.append(meter.read())
        stepped = threading.Thread(target=following)
        stepped.start()
        while stepped.is_alive():
            readings.append(meter.read())
        readings.append(meter.read())
    totals = [reading.total for reading in readings]
    assert totals == sorted(totals)
    assert totals[-1] - totals[0] == pytest.approx(1.0, abs=2 * TOLERANCE)


def test_the_work_of_ended_processes_is_not_that_of_the_driver():
    with program(f"step()\nos.waitpid(forked(lambda: burn({BURN})), 0)\nburn({BURN})\nstep()") as (meter, following):
        before = meter.read()
        following()
        spent = meter.read() - before
    assert spent.driver == pytest.approx(BURN, abs=TOLERANCE)
    assert spent.workers == pytest.approx(BURN, abs=TOLERANCE)
    assert spent.jvm == 0
