"""Signals, kills and full disks: what a local run leaves, and what it says."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import keyed
from keyed import DirectoryChangelog, KeyedError, KeyedProcessFunction, ValueState
from keyed.base.scratch import ScratchFolder
from keyed.recovery import verify
from tests.support.jobs import Tally
from tests.support.waiting import until

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys, time
sys.path.insert(0, {root!r})
import keyed
from pathlib import Path
from tests.support.jobs import Tally
folder, how = Path({folder!r}), {how!r}
def source():
    for number in range(10**9):
        if number == 40:
            print("READING" if how != "batch" else "", flush=True)
            if how == "waits":
                time.sleep(600)
        yield {{"k": str(number % 7)}}
def say(progress):
    if progress.batch_id == 5 and how == "batch":
        print("RUNNING", flush=True)
changelog = None if how == "scratch" else keyed.DirectoryChangelog(folder / "log")
output = keyed.stream(source()).key_by("k").process(Tally(), "k string, n bigint", store="rocksdb", changelog=changelog)
options = dict(rows_per_batch=5, on_progress=say)
if how != "scratch":
    options |= dict(checkpoint=folder / "ck")
if how == "thread":
    output.start(folder / "out", **options).await_termination()
else:
    output.run(folder / "out", **options)
"""


@contextmanager
def started(tmp_path, how):
    program = PROGRAM.format(root=str(ROOT), folder=str(tmp_path), how=how)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() not in ("READING", "RUNNING"):
            assert process.poll() is None, process.communicate()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGTERM, "waits"),
        (signal.SIGTERM, "thread"),
        (signal.SIGINT, "batch"),
        pytest.param(signal.SIGTERM, "batch", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "waits", marks=pytest.mark.long),
        pytest.param(signal.SIGINT, "thread", marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_a_run_after_the_batch_with_its_changelog_flushed(tmp_path, how, number):
    with started(tmp_path, how) as process:
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
    assert process.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT), said
    assert number == signal.SIGINT or said == ""
    changelog = DirectoryChangelog(tmp_path / "log")
    assert [group.problem for group in verify(changelog) if group.problem] == []
    last = changelog.reader(0).last()
    batches = sorted((tmp_path / "out").glob("part-*.parquet"))
    assert last is not None
    assert last.sequence == len(batches)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_query_that_a_signal_has_ended_is_closed_and_not_failed(number):
    # In the background of a shell SIGINT is ignored.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(number)

    def interrupt():
        until(lambda: signal.getsignal(number) != before)
        os.kill(os.getpid(), number)

    endless = itertools.cycle([{"k": "a"}, keyed.PAUSE])
    query = keyed.stream(endless).key_by("k").process(Tally(), "k string, n bigint").start(lambda rows, batch: None)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            query.await_termination()
    finally:
        thread.join()
        signal.signal(signal.SIGINT, ignored)
    assert query.status.value == "closed"
    assert query.await_termination(), "the program waits for a query that has ended"
    assert query.metrics()["Tally"]["query_status"] == query.status.number


def test_what_a_killed_run_has_left_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with started(tmp_path, "scratch"), ScratchFolder("local") as mine:
        others = set(tmp_path.glob("keyed-local-*")) - {mine.path}
        assert len(others) == 1, "that run lives"
    kinds = {
        kind
        for path in (ROOT / "keyed").rglob("*.py")
        for kind in re.findall(r'ScratchFolder\("(\w+)"', path.read_text())
    }
    assert len(kinds) > 5
    for kind in kinds:
        (tmp_path / f"keyed-{kind}-old").mkdir()
        os.utime(tmp_path / f"keyed-{kind}-old", (0, 0))
        (tmp_path / f"keyed-{kind}-killed").mkdir()
        (tmp_path / f"keyed-{kind}-killed" / "lock").touch()
    kept = {tmp_path / "keyed-local-new", tmp_path / "keyed-others"}
    for folder in kept:
        folder.mkdir()
    with ScratchFolder("flush") as mine:
        assert set(tmp_path.glob("keyed-*")) == {mine.path, *kept}
    assert set(tmp_path.glob("keyed-*")) == kept


class Big(KeyedProcessFunction):
    data = ValueState(bytes, default=b"")

    def process_element(self, value, ctx):
        self.data.update(os.urandom(50_000))
        yield value.k


def fill(rows=500, **options):
    source = keyed.stream([{"k": str(number)} for number in range(rows)])
    store: Any = "rocksdb" if "local_dir" in options else "memory"
    source.key_by("k").process(Big(), "k string", store=store).run(rows_per_batch=10, **options)


def test_a_full_or_read_only_disk_is_named_with_the_path(small_disk):
    with pytest.raises(
        KeyedError, match=rf"^{small_disk}/ck/keyed-commits-1 cannot be \w+: the disk is full: free space"
    ):
        fill(checkpoint=small_disk / "ck")
    subprocess.run(f"rm -rf {small_disk}/*", shell=True, check=True)
    fill(1, local_dir=small_disk)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(
        KeyedError, match=rf"^{small_disk}/Big/0/keyed-store-1 cannot be opened: the file system is read-only"
    ):
        fill(1, local_dir=small_disk)
    with pytest.raises(
        KeyedError, match=rf"^{small_disk}/ck/keyed-commits-1 cannot be created: .*Read-only file system"
    ):
        fill(1, checkpoint=small_disk / "ck")
