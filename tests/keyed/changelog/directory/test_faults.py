"""A failing file system: each call fails once, in every way. A typed error, no partial commit, and it goes on after."""

import contextlib
import errno
import os
import resource
import subprocess
import sys

import pytest

from keyed.changelog.directory import DirectoryChangelog
from keyed.errors import ChangelogError, DefinitionError
from keyed.testing.changelog_conformance import state_of
from tests.keyed.changelog.directory.support import OsCalls, check, files_of, made
from tests.support.waiting import open_below

WRITING = ("close", "link", "mkdir", "open", "write", "fsync", "unlink")
READING = ("pread", "scandir", "stat")


def fail(patch, names, which, number):
    """Let a call to the file system fail with an errno; with 0 each write writes less than it is given."""

    def before(call, name, arguments, real):
        if call == which and number:
            raise OSError(number, os.strerror(number))
        short = number == 0 and name == "write"
        return (arguments[0], bytes(arguments[1])[: 1 + call % 100]) if short else None

    return OsCalls(patch, names, before)


def scenarios():
    """Operations on a log, with the earlier content of two commits."""

    def prepare(changelog, sample):
        DirectoryChangelog(changelog.path + "-new").prepare("op", 1)

    def append(changelog, sample):
        changelog.writer(0).append(*sample.pending)

    def position(changelog, sample):
        changelog.put_position(7, b"here")

    def compact(changelog, sample):
        changelog.compact()

    return {"prepare": prepare, "append": append, "position": position, "compact": compact}


@pytest.mark.parametrize("name", scenarios())
@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.slow), pytest.param(errno.EROFS, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("names", [WRITING, READING], ids=["writing", "reading"])
def test_every_call_fails_once(tmp_path, monkeypatch, name, number, names):
    act = scenarios()[name]
    failed = 0
    for which in range(1, 100):
        changelog, sample = made(tmp_path / str(which), 10, 300, keys=200)
        sample.pending = sample.commit(10)
        with monkeypatch.context() as patch:
            disk = fail(patch, names, which, number)
            try:
                act(changelog, sample)
            except ChangelogError as error:
                failed += 1
                message = str(error)
            else:
                message = os.strerror(number) + str(tmp_path)
        assert os.strerror(number) in message
        assert str(tmp_path) in message
        there = check(changelog, sample)
        assert there in ((2, 3) if name == "append" else (2,))
        act(changelog, sample)
        writer = changelog.writer(0)
        writer.append(*sample.pending)
        writer.append(*sample.commit())
        assert check(changelog, sample) == 4
        assert list(changelog.positions()) in ([], [(7, b"here")])
        if disk.count < which:
            assert failed
            return
    pytest.fail("there is no end to the calls")


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.long)])
def test_a_writer_whose_call_failed_can_be_used_again(tmp_path, monkeypatch, number):
    for which in range(1, 100):
        changelog, sample = made(tmp_path / str(which), 10, keys=5_000)
        writer = changelog.writer(0)
        commit, blocks = sample.commit(10_000, size=400)
        with monkeypatch.context() as patch:
            disk = fail(patch, WRITING, which, number)
            with contextlib.suppress(ChangelogError):
                writer.append(commit, blocks)
        if disk.count < which:
            return
        assert check(changelog, sample) in (1, 2)
        writer.append(commit, blocks)
        assert writer.append(*sample.commit()) == writer.last()
        assert check(changelog, sample) == 3


def test_short_writes_change_nothing(tmp_path, monkeypatch):
    fail(monkeypatch, ["write"], 0, 0)
    changelog, sample = made(tmp_path, 10, 300, keys=200)
    changelog.compact()
    changelog.writer(0).append(*sample.commit())
    assert check(changelog, sample) == 3
    assert not list(files_of(changelog)[0].parent.glob(".*"))


def test_a_disk_that_takes_nothing_is_an_error(tmp_path, monkeypatch):
    changelog, sample = made(tmp_path, 10)
    writer = changelog.writer(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: 0)
        with pytest.raises(ChangelogError, match="nothing was written; check the disk"):
            writer.append(*sample.commit())
    assert check(changelog, sample) == 1


def test_what_the_dead_did_not_make_durable_the_next_one_does(tmp_path, monkeypatch):
    """All that is there may be from a process that died before it synced any folder."""
    changelog, sample = made(tmp_path, 10)
    changelog.put_position(1, b"here")
    paths, synced = {}, set()
    open_, fsync = os.open, os.fsync

    def opened(path, *arguments):
        file = open_(path, *arguments)
        paths[file] = path
        return file

    def sync(file):
        synced.add(paths[file])
        fsync(file)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", sync)
    changelog.prepare("op", 1)
    changelog.put_position(1, b"here")
    assert changelog.writer(0).append(sample.last, []).sequence == 1
    root = tmp_path / "log"
    assert synced >= {root, root / "groups", root / "groups" / "00000", root / "positions"}


def test_a_limit_of_the_operating_system(tmp_path):
    """Not a double: files may not be larger than 100 kB."""
    program = f"""
import resource
from keyed.errors import ChangelogError
from tests.keyed.changelog.directory.support import made
from pathlib import Path
changelog, sample = made(Path({str(tmp_path)!r}), 10)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, {resource.RLIM_INFINITY}))
writer = changelog.writer(0)
commit = sample.commit(5_000, size=1_000)
try:
    writer.append(*commit)
except ChangelogError as error:
    assert "File too large" in str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.append(*commit)
    print(changelog.reader(0).last().sequence)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_folder_that_may_not_be_written(tmp_path):
    (tmp_path / "log").write_text("no folder")
    with pytest.raises(ChangelogError, match=str(tmp_path)):
        DirectoryChangelog(tmp_path / "log" / "in").prepare("op", 1)


def test_what_writers_that_died_left_is_removed(tmp_path):
    changelog, sample = made(tmp_path, 10)
    folder = files_of(changelog)[0].parent
    old, new = folder / ".x.tmp", folder / ".y.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    changelog.writer(0).append(*sample.commit())
    assert not old.exists()
    assert new.exists()
    assert check(changelog, sample) == 2
    assert state_of(changelog.reader(0)) == sample.state


@pytest.mark.parametrize("path", ["", "s3://bucket/log", "file:///log", "dbfs:/log", 5, b"log"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(DefinitionError, match="DirectoryChangelog"):
        DirectoryChangelog(path)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/x", ".hidden", "a" * 129, "a\n", "ü"])
def test_names_are_no_paths(tmp_path, name):
    changelog, _ = made(tmp_path)
    with pytest.raises(ChangelogError, match="name="):
        changelog.keep(name, b"")
    with pytest.raises(ChangelogError, match="operator="):
        DirectoryChangelog(tmp_path / "other").prepare(name, 1)
    assert not (tmp_path / "other").exists()


def test_a_mode_that_is_refused_leaves_no_descriptor(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    changelog, sample = made(tmp_path, 10)
    writer = changelog.writer(0)
    before = open_below(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fchmod", refuse)
        commit = sample.commit()
        for _ in range(5):
            with pytest.raises(ChangelogError, match="not permitted"):
                writer.append(*commit)
    assert open_below(tmp_path) == before
