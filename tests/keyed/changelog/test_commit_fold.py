"""The fold of a changelog: the checks of each commit, whatever has read it."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from keyed.changelog.commit_fold import FoldedCommit, difference, fold_group, fold_groups
from keyed.changelog.model import Commit
from keyed.content.contents import LiveHash, hash_sum, hash_text
from keyed.content.delta import Delta
from keyed.errors import CorruptionError

ENTRY = (b"\x01k", b"", b"v")


def commit(sequence: int, **fields: Any) -> Commit:
    """A commit with one record, after the attempt of the one before."""
    made = Commit(
        log_id="log",
        group=0,
        sequence=sequence,
        attempt=f"a{sequence}",
        previous=f"a{sequence - 1}" if sequence > 1 else "",
        source_log="source",
        records=1,
        entries=1,
        hash=hash_text(hash_sum([ENTRY])),
        watermark=0,
        processing_time=0,
    )
    return attrs.evolve(made, **fields)


class Reader:
    """A reader of commits that checks nothing."""

    def __init__(self, *commits: Commit) -> None:
        self._commits = commits

    def last(self) -> Commit | None:
        return self._commits[-1] if self._commits else None

    def commits(self, after=0, until=None):
        for each in self._commits:
            if after < each.sequence and (until is None or each.sequence <= until):
                yield each, iter([[ENTRY]])


def sequences(found):
    return [each.commit.sequence for each in found]


def test_commits_that_follow_each_other_and_snapshots_are_yielded():
    reader = Reader(commit(1), commit(2), commit(7, snapshot=True, previous="other"), commit(8))
    assert sequences(fold_group(reader, "log", 0)) == [1, 2, 7, 8]
    assert sequences(fold_group(reader, "log", 0, 1, 7)) == [2, 7]
    (each,) = fold_group(reader, "log", 0, until=1)
    assert (each.place, list(each.deltas())) == ("commit 1 of key group 0", [Delta([ENTRY])])


@pytest.mark.parametrize(
    ("commits", "after", "expected"),
    [
        ([commit(1, log_id="other")], 0, "it belongs to key group 0 of changelog other"),
        ([commit(1, group=3)], 0, "it belongs to key group 3 of changelog log"),
        ([commit(2)], 0, "commit 2 does not begin a log"),
        ([commit(3)], 1, "commit 3 does not follow commit 1"),
        ([commit(1), commit(3)], 0, "commit 3 does not follow commit 1"),
        ([commit(1), commit(1)], 0, "commit 1 does not follow commit 1"),
        ([commit(1), commit(2, previous="x")], 0, "commit 2 follows a commit 1 of another attempt"),
        ([commit(1), commit(2, source_log="x")], 0, "commit 2 follows a commit 1 of another attempt"),
        ([commit(2, snapshot=True), commit(2, snapshot=True)], 0, "commit 2 exists already"),
    ],
)
def test_a_commit_in_a_wrong_place_is_named(commits, after, expected):
    with pytest.raises(CorruptionError, match=f"{expected} in key group 0 of changelog log"):
        list(fold_group(Reader(*commits), "log", 0, after))


def test_the_last_group_of_a_batch_has_the_markers_of_all():
    zero = [commit(1), commit(2), commit(3)]
    one = [commit(1, group=4), commit(3, group=4, snapshot=True)]
    found = list(fold_groups({0: Reader(*zero), 4: Reader(*one)}, "log"))
    assert sequences(found) == [1, 1, 2, 3, 3]
    assert [each.markers for each in found] == [(), (zero[0], one[0]), (), (), (zero[2], one[1])]


def test_records_that_are_lost_or_repeated_are_named_at_the_end_of_their_commit():
    for records in (0, 2):
        (each,) = fold_groups({0: Reader(commit(1, records=records))}, "log")
        with pytest.raises(
            CorruptionError,
            match=f"it has 1 records, its marker says {records} in commit 1 of key group 0 of changelog log",
        ):
            list(each.deltas())


def test_a_state_is_compared_with_its_marker():
    live, marker = LiveHash(), commit(1)
    assert difference(live, marker.entries, marker.hash) == "there are 0 live entries, its marker says 1"
    for delta in FoldedCommit(marker, [[ENTRY]]).deltas():
        live.add(delta)
    assert difference(live, marker.entries, marker.hash) == ""
    assert difference(live, 1, "0" * 32).endswith(f"is {marker.hash}, its marker says {'0' * 32}")
