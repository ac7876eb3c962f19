"""A directory log for tests, and what reading it gives."""

import os
from random import Random

import attrs

from keyed.changelog.directory import DirectoryChangelog
from keyed.errors import CorruptionError
from keyed.testing.changelog_conformance import SampleGroup, state_of


def made(path, *commits, keys=50, seed=1, **options):
    """A changelog of one key group with commits of so many changes each, and the sample that it was made of."""
    options = {"compaction_lag": 0, "auto_compact": False} | options
    changelog = DirectoryChangelog(path / "log", **options)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(seed), keys=keys)
    writer = changelog.writer(0)
    for count in commits:
        writer.append(*sample.commit(count))
    writer.close()
    return changelog, sample


def files_of(changelog, kind="segment"):
    """The files of the key group, in order."""
    folder = changelog.reader(0)._folder.path
    return sorted(folder.glob(f"*.{kind}"))


def check(changelog, sample):
    """The log gives the state after one of its commits, or an error that says where. Which commit it was, or None."""
    return check_reader(changelog.reader(0), sample)


def check_reader(reader, sample):
    """The same of a reader that is open."""
    where = None
    try:
        last = reader.last()
        state = state_of(reader)
    except CorruptionError as error:
        where = error.where
    if where is not None:
        assert "groups/00000" in where
        return None
    sequence = 0 if last is None else last.sequence
    assert state == sample.past[sequence]
    return sequence


def blocks_of(changelog, sequence):
    """The content of one commit."""
    ((_, blocks),) = ((commit, list(blocks)) for commit, blocks in changelog.reader(0).commits(sequence - 1, sequence))
    return blocks


def compact_all(changelog, sample, **wrong):
    """Compact all that there is: an empty commit more, because the newest one is left as it is."""
    commit, _ = sample.commit(0)
    changelog.writer(0).append(attrs.evolve(commit, **wrong), [])
    (done,) = changelog.compact()
    return done


class OsCalls:
    """Counts calls of functions of `os`, and hands each to a function before it is made.

    Args:
        patch: Restores the functions.
        names: Their names.
        before: Gets number (from 1), name, arguments and the function itself; it may raise, or return other arguments.
    """

    def __init__(self, patch, names, before):
        self.count = 0
        for name in names:
            patch.setattr(os, name, self._counted(name, getattr(os, name), before))

    def _counted(self, name, real, before):
        def call(*arguments, **options):
            self.count += 1
            return real(*(before(self.count, name, arguments, real) or arguments), **options)

        return call
