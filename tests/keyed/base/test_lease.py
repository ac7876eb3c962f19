"""Locks that a process holds as long as it lives: folders of its own, checkpoints, folders of sinks."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from keyed.base import scratch
from keyed.base.lease import Lease
from keyed.base.scratch import ScratchFolder
from keyed.destinations.parquet import locked_folder
from keyed.errors import CheckpointError, SinkError
from keyed.stores.commit_store import CommitStore

#: Sweeps, and stops when it has found the folder of another program left and is about to remove it.
SWEEPER = """
import shutil, sys
from keyed.base import scratch

remove = shutil.rmtree

def announced(path, **options):
    print(path, flush=True)
    sys.stdin.readline()
    remove(path, **options)

shutil.rmtree = announced
scratch._sweep(scratch.Path(sys.argv[1]))
print("swept", flush=True)
"""


def test_a_folder_is_not_taken_while_another_program_removes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "keyed-local-left"
    left.mkdir()
    (left / "lock").touch()
    with subprocess.Popen(
        [sys.executable, "-c", SWEEPER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as sweeper:
        assert sweeper.stdin is not None
        assert sweeper.stdout is not None
        assert sweeper.stdout.readline().strip() == str(left)
        # What makes a folder has just made this one, and locks it next.
        with pytest.raises(BlockingIOError):
            Lease(left / "lock")
        sweeper.stdin.write("\n")
        sweeper.stdin.flush()
        assert sweeper.stdout.readline().strip() == "swept"
    assert not left.exists()


def test_a_folder_that_is_swept_while_it_is_made_is_made_once_more(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []
    touch = Path.touch

    def swept(path, *arguments, **options):
        touch(path, *arguments, **options)
        made.append(path)
        if len(made) == 1:
            scratch._remove_if_left(path.parent)

    monkeypatch.setattr(Path, "touch", swept)
    with ScratchFolder("local") as mine:
        assert len(made) == 2
        assert mine.path.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_has_no_share_in_a_lock_and_removes_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = ScratchFolder("local")
    goes_on, ready = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        mine.close()
        os.close(goes_on[1])
        os.write(ready[1], b"1")
        os.read(goes_on[0], 1)
        os._exit(0)
    assert os.read(ready[0], 1) == b"1"
    assert mine.path.is_dir()
    mine._lease.close()
    # The child lives, and the lock is free.
    Lease(mine.path / "lock").close()
    os.close(goes_on[1])
    assert os.waitpid(child, 0)[1] == 0
    assert mine.path.is_dir()


PROGRAM = """
import sys
import keyed

class Count(keyed.KeyedProcessFunction):
    n = keyed.ValueState(int, default=0)
    def process_element(self, value, ctx):
        self.n.update(self.n.value() + 1)
        yield value["k"], self.n.value()

def rows():
    for number in range(4):
        yield {"k": "a", "i": number}
        if number == 1:
            print("AT WORK", flush=True)
            sys.stdin.readline()

out, checkpoint = sys.argv[1:]
try:
    stream = keyed.stream(rows()).key_by("k").process(Count(), "k string, n bigint")
    stream.run(keyed.parquet_sink(out, mode="overwrite"), checkpoint=checkpoint or None, rows_per_batch=1, drain=False)
except keyed.KeyedError as error:
    print(type(error).__name__, error, flush=True)
else:
    print("ENDED", flush=True)
"""


def started(out, checkpoint):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(out), str(checkpoint)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def last_line(process):
    return process.communicate("\n", timeout=300)[0].splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["checkpoint", pytest.param("sink", marks=pytest.mark.long)])
def test_of_two_processes_that_start_at_one_moment_one_works_on_and_the_other_gets_a_typed_error(tmp_path, what):
    """Twenty times: whichever is first. Then the one that works is killed, and another one has the folder at once."""
    expected = "CheckpointError" if what == "checkpoint" else "SinkError"
    for round_ in range(int(os.environ.get("KEYED_STARTS", "5"))):
        folder = tmp_path / str(round_)
        checkpoint = folder / "checkpoint" if what == "checkpoint" else ""
        pair = [started(folder / "out", checkpoint) for _ in range(2)]
        # The first that is at work waits; the other one has been refused, or waits for nothing.
        said = [process.stdout.readline().split(" ")[0] for process in pair]
        assert sorted(each.strip() for each in said) == sorted(["AT", expected])
        winner, loser = pair if said[0] == "AT" else pair[::-1]
        loser.communicate(timeout=300)
        if round_ % 2:
            assert last_line(winner) == "ENDED"
        else:
            winner.kill()
            winner.communicate()
            after = started(folder / "out", checkpoint)
            assert last_line(after) == "ENDED"
        rows = keyed_rows(folder / "out")
        assert rows == [("a", number) for number in range(1, 5)]


def keyed_rows(out):
    import pyarrow.parquet as pq

    return sorted(tuple(row.values()) for row in pq.read_table(out).to_pylist())


def test_a_checkpoint_is_open_once_in_a_process_too(tmp_path):
    store = CommitStore(tmp_path)
    with pytest.raises(CheckpointError, match="in use by another run"):
        CommitStore(tmp_path)
    store.close()
    CommitStore(tmp_path).close()
    with (
        locked_folder(str(tmp_path / "out")),
        pytest.raises(SinkError, match="has just begun"),
        locked_folder(str(tmp_path / "out")),
    ):
        raise AssertionError
    with locked_folder(str(tmp_path / "out")):
        assert (tmp_path / "out").is_dir()


def test_a_closed_lease_is_free_while_a_program_that_is_being_started_has_its_descriptor(tmp_path):
    lease = Lease(tmp_path)
    copy = os.dup(lease._descriptor)
    lease.close()
    Lease(tmp_path).close()
    os.close(copy)


def test_a_harness_sweeps_what_one_that_was_killed_has_left(tmp_path):
    left = tmp_path / "keyed-harness-left"
    left.mkdir()
    (left / "lock").touch()
    with ScratchFolder("harness", tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine.path]
    assert list(tmp_path.iterdir()) == []
