"""A program for tests: appends the commits of a sample to a log, and prints each sequence once it is durable."""

import sys
from random import Random

from keyed.changelog.directory import DirectoryChangelog, compaction
from keyed.errors import ChangelogFenced
from keyed.testing.changelog_conformance import SampleGroup


def main(path, seed, until):
    compaction._LEAST_BYTES = 10_000
    changelog = DirectoryChangelog(path, compaction_lag=3000)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(seed))
    writer = changelog.writer(0)
    last = writer.last()
    newest = last.sequence if last else 0
    while sample.last.sequence < until:
        commit, blocks = sample.commit()
        if sample.last.sequence >= newest:
            try:
                writer.append(commit, blocks)
            except ChangelogFenced:
                writer.close()
                writer = changelog.writer(0)
                last = writer.last()
                assert last is not None
                assert last.sequence > commit.sequence
            sys.stdout.write(f"{commit.sequence}\n")
            sys.stdout.flush()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
