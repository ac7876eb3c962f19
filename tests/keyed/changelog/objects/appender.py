"""A program that appends the commits of a sample to a changelog until it is killed, and prints each that is there."""

import ast
import os
from random import Random

from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.testing.changelog_conformance import SampleGroup


def main() -> None:
    url, options = ast.literal_eval(os.environ["KEYED_S3"])
    writer = ObjectStoreChangelog(url, options, auto_compact=False).writer(0)
    last = writer.last()
    sample = SampleGroup(Random(7))
    done = 0 if last is None else last.sequence
    for sequence in range(1, 100_000):
        commit, blocks = sample.commit()
        if sequence > done:
            writer.append(commit, blocks)
            print(sequence, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
