"""Spark's log: it goes with its program, however that ends; a few that errors have named are kept."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

#: Writes a line to where a JVM would, then ends as its argument says.
PROGRAM = """
import os, sys
from keyed.runtimes.spark.query.failures import name_log, to_file

for line in ("first JVM", "second JVM"):
    with to_file():
        os.write(2, f"{line}\\n".encode())
    if sys.argv[1] == "failing":
        error = ValueError(line)
        name_log(error)
        print(*error.__notes__, flush=True)
if sys.argv[1] == "forking":
    child = os.fork()
    if not child:
        sys.exit()
    os.waitpid(child, 0)
print("written", flush=True)
sys.stdin.readline()
"""


@contextmanager
def running(how, folder):
    """A program that has written its log, until the block ends."""
    command = [sys.executable, "-c", PROGRAM, how]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or lines[-1] != "written":
            line = process.stdout.readline()
            assert line, lines
            lines.append(line.strip())
        yield process, lines[:-1]
        process.stdin.close()


def test_a_program_that_ends_leaves_no_log_and_its_forked_child_removes_none(tmp_path):
    with running("forking", tmp_path):
        (log,) = tmp_path.glob("keyed-spark-*/log")
        assert log.read_text() == "first JVM\nsecond JVM\n"
        assert log.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == []


def test_logs_of_killed_programs_go_with_the_next_program_and_those_of_running_ones_stay(tmp_path):
    with running("well", tmp_path):
        (mine,) = tmp_path.iterdir()
        for _ in range(5):
            with running("well", tmp_path) as (killed, _):
                assert len(list(tmp_path.iterdir())) == 2
                os.kill(killed.pid, signal.SIGKILL)
                killed.wait()
            assert len(list(tmp_path.iterdir())) == 2
        with running("well", tmp_path):
            pass
        assert list(tmp_path.iterdir()) == [mine]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_of_failed_programs_the_three_latest_logs_are_kept_for_a_week_and_those_of_running_ones(tmp_path):
    with running("failing", tmp_path) as (_, [note, again]):
        assert again == note
        mine = tmp_path / note.rpartition("/")[2]
        assert note == f"Spark's log: {mine}"
        assert mine.read_text() == "first JVM\nsecond JVM\n"
        left = []
        for number in range(5):
            with running("failing", tmp_path) as (program, [note, _]):
                if number % 2:
                    os.kill(program.pid, signal.SIGKILL)
                    program.wait()
            left.append(tmp_path / note.rpartition("/")[2])
            os.utime(left[-1], (1_000 * number, left[-1].stat().st_mtime - 60 * (5 - number)))
        os.utime(mine, (0, 0))
        with running("well", tmp_path):
            pass
        assert set(tmp_path.glob("*.log")) == {mine, *left[-3:]}
    assert set(tmp_path.iterdir()) == {mine, *left[-3:]}

    # It has ended now, and its log is old.
    with running("well", tmp_path):
        pass
    assert set(tmp_path.iterdir()) == set(left[-3:])


#: A thread starts a JVM while another one does, and is done later.
THREADS = """
import os, threading
from keyed.runtimes.spark.query.failures import to_file

before = os.fstat(2)
inside, left = threading.Event(), threading.Event()

def second():
    with to_file():
        inside.set()
        left.wait()

thread = threading.Thread(target=second)
with to_file():
    thread.start()
    inside.wait(0.1)
left.set()
thread.join()
assert os.path.samestat(os.fstat(2), before)
"""


def test_threads_that_start_spark_at_one_moment_leave_standard_error_as_it_was(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", THREADS], env=environment, stderr=subprocess.PIPE, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")
