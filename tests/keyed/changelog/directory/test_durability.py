"""Writers and compaction build only on durable files, even if their publisher failed."""

from __future__ import annotations

from random import Random

import pytest

from keyed.errors import ChangelogError
from tests.keyed.changelog.directory.support import check, made
from tests.support.simulator.faults import Died, Faults, FaultyDisk


class Loses(Random):
    """Chance by which all is lost that can be."""

    def random(self):
        return 0.0

    def choice(self, options):
        return options[0]


class Told(Faults):
    """Lets happen what a test says, once each."""

    def __init__(self):
        super().__init__(Loses(), [])
        self.resting = False
        self.wanted = []

    def strikes(self, what, chance):
        if self.resting or not self.wanted or not what.startswith(self.wanted[0]):
            return False
        self.wanted.pop(0)
        return True


@pytest.fixture
def faults():
    return Told()


def test_a_base_that_may_not_be_durable_is_made_so_before_its_segments_go(tmp_path, faults):
    changelog, sample = made(tmp_path, 10, 300, 5, keys=200)
    with FaultyDisk(tmp_path / "log", faults, lambda: None).in_place():
        faults.wanted = ["disk: fsync groups/00000 fails", "the power fails at unlink"]
        with pytest.raises(ChangelogError):
            # The first one syncs the folder itself: the base is published after that.
            _after_first(faults, changelog.compact)
        faults.wanted = ["the power fails at unlink"]
        with pytest.raises(Died):
            changelog.compact()
    assert check(changelog, sample) == 3


def _after_first(faults, call):
    """Let a call fail not at the first sync of the folder, but at that of what it publishes."""
    wanted, real = faults.wanted[0], faults.strikes
    seen: list[str] = []

    def strikes(what, chance):
        if what == wanted and not seen:
            seen.append(what)
            return False
        return real(what, chance)

    faults.wanted = [wanted]
    faults.strikes = strikes
    try:
        call()
    finally:
        faults.strikes = real


def test_a_commit_that_was_published_but_not_synced_is_made_durable_before_it_is_taken(tmp_path, faults):
    changelog, sample = made(tmp_path, 10)
    writer = changelog.writer(0)
    commit, blocks = sample.commit(20)
    assert writer.stage(commit, blocks)
    with FaultyDisk(tmp_path / "log", faults, lambda: None).in_place():
        faults.wanted = ["disk: fsync groups/00000 fails"]
        with pytest.raises(ChangelogError):
            changelog.publish(0, commit.sequence, commit.attempt)
        last = writer.last()
        assert last is not None
        assert last.sequence == 2
        faults.wanted = ["the power fails at stat"]
        with pytest.raises(Died):
            (tmp_path / "log" / "groups" / "00000").stat()
    assert check(changelog, sample) == 2
