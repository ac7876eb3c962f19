"""A log after its writer died: at each call to the operating system, by SIGKILL at any moment, beside another one."""

import contextlib
import os
import subprocess
import sys
from random import Random

import pytest

from keyed.errors import HistoryCompacted
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.keyed.changelog.directory.support import OsCalls, check, made

CALLS = ("open", "write", "fsync", "link", "unlink", "close", "mkdir")


class Death(BaseException):
    """The process is gone: whatever it still calls has no effect."""


def dies(patch, which):
    """Let the process die at a call to the operating system, in the midst of it if it is a write."""

    def before(number, name, arguments, real):
        if number == which and name == "write":
            real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if number >= which and name != "close":
            raise Death

    return OsCalls(patch, CALLS, before)


def act(what, changelog, commit, blocks):
    match what:
        case "append":
            changelog.writer(0).append(commit, blocks)
        case "publish":
            writer = changelog.writer(0)
            writer.stage(commit, blocks)
            changelog.publish(0, commit.sequence, commit.attempt)
        case "compact":
            changelog.compact()
        case "position":
            changelog.put_position(2, b"here")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["append", "publish", "compact", "position"])
def test_at_each_call_to_the_operating_system(tmp_path, monkeypatch, what):
    for which in range(1, 100):
        changelog, sample = made(tmp_path / str(which), 10, 300, keys=200)
        commit, blocks = sample.commit(3_000, size=1_500)
        with monkeypatch.context() as patch:
            calls = dies(patch, which)
            with contextlib.suppress(Death):
                act(what, changelog, commit, blocks)
        assert check(changelog, sample) in (2, 3)
        act(what, changelog, commit, blocks)
        writer = changelog.writer(0)
        writer.append(commit, blocks)
        writer.append(*sample.commit())
        changelog.compact()
        assert check(changelog, sample) == 4
        assert list(changelog.positions()) == []
        if calls.count < which:
            assert which > 5
            return


def appender(path, seed, until):
    command = [sys.executable, "-m", "tests.keyed.changelog.directory.appender", str(path), str(seed), str(until)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def past_of(seed, until):
    """The states of the sample that the program appends."""
    sample = SampleGroup(Random(seed))
    for _ in range(until):
        sample.commit()
    return sample


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.long)])
def test_killed_at_any_moment(tmp_path, kills):
    seed = int(os.environ.get("KEYED_SEED") or Random().getrandbits(32))
    sys.stdout.write(f"KEYED_SEED={seed}\n")
    number = Random(seed)
    until = 20 * kills
    changelog, _ = made(tmp_path)
    reached = 0
    for _ in range(kills):
        program = appender(changelog.path, seed, until)
        for _ in range(number.randrange(1, 20)):
            line = program.stdout.readline()
            reached = max(reached, int(line or 0))
        program.kill()
        # Not `communicate`, which does not see what `readline` has read ahead.
        reached = max([reached, *map(int, program.stdout.read().split())])
        assert program.communicate()[1] == ""
        last = changelog.reader(0).last()
        assert reached <= last.sequence <= reached + 1
        assert state_of(changelog.reader(0)) == past_of(seed, last.sequence).state
    program = appender(changelog.path, seed, until)
    assert program.communicate()[1] == ""
    assert changelog.reader(0).last().sequence == until
    assert state_of(changelog.reader(0)) == past_of(seed, until).state


@pytest.mark.slow
def test_two_writers_and_a_reader_at_a_time(tmp_path):
    until = 300
    changelog, _ = made(tmp_path)
    past = past_of(9, until).past
    programs = [appender(changelog.path, 9, until) for _ in range(2)]
    seen = {0}
    while any(program.poll() is None for program in programs):
        with contextlib.suppress(HistoryCompacted):  # The reader was slower than compaction.
            reader = _Recorder(changelog.reader(0))
            assert state_of(reader) == past[reader.newest]
            seen.add(reader.newest)
    assert [program.communicate()[1] for program in programs] == ["", ""]
    assert state_of(changelog.reader(0)) == past[until]
    assert len(seen) > 3


class _Recorder:
    """A reader that remembers the newest sequence, and checks that none is left out."""

    def __init__(self, reader):
        self._reader, self.newest = reader, 0
        self.last = reader.last

    def commits(self, after=0, until=None):
        for commit, blocks in self._reader.commits(after, until):
            assert commit.snapshot or commit.sequence == self.newest + 1
            self.newest = commit.sequence
            yield commit, blocks
