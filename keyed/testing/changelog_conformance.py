"""Conformance tests for changelogs, those of `keyed` and of third parties.

Subclass `ChangelogConformance`, give it a factory, and let a test runner collect it, as with
`keyed.testing.store_conformance`. `SampleGroup` creates a key group's commits as the engine does.
"""

# A test's name states its claim; the random numbers are for tests.
# ruff: noqa: D102, S311

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import attrs

from keyed.changelog.model import (
    Blocks,
    Changelog,
    ChangelogReader,
    ChangelogWriter,
    Commit,
    StagingChangelog,
    StagingWriter,
    append_all,
)
from keyed.codec.keys import encode_key
from keyed.codec.state_schema import StateSchema
from keyed.codec.values import value_codec
from keyed.content.addresses import PLAIN, TIMER_EVENT, encode_time, state_prefix, timer_prefix, timer_sub
from keyed.content.blocks import Block, Change, entries_in
from keyed.content.contents import hash_sum, hash_text
from keyed.errors import ChangelogDiverged, ChangelogError, ChangelogFenced, KeyedError

State = dict[tuple[bytes, bytes], bytes]
_STATES = {
    "total": {"id": 1, "schema": StateSchema.of("total", "value", None, bytes).to_json()},
    "by_name": {"id": 2, "schema": StateSchema.of("by_name", "map", str, bytes).to_json()},
}
_NAMESPACE = encode_key(None)
_encode = value_codec(bytes).encode


class SampleGroup:
    """Creates the commits of one key group: random changes of a value, a map and timers.

    Args:
        number: The seed.
        group: Index of the key group.
        keys: Number of keys.
        source_log: Identity of the group's own log.
    """

    def __init__(self, number: Random, group: int = 0, keys: int = 50, source_log: str = "source") -> None:
        self._number = number
        self._keys = keys
        self.state: State = {}
        self._hash = 0
        self.last = Commit(
            log_id="",
            group=group,
            sequence=0,
            attempt="",
            source_log=source_log,
            entries=0,
            hash="",
            watermark=0,
            processing_time=0,
            states=_STATES,
        )
        #: The state after each commit, by sequence.
        self.past: dict[int, State] = {0: {}}

    def commit(self, count: int = 20, size: int = 20) -> tuple[Commit, list[Block]]:
        """Return the next commit with its blocks: ``count`` changes, with values of up to ``size`` bytes."""
        changes = {change[:2]: change for change in (self._change(size) for _ in range(count))}
        for address, (_, _, value) in changes.items():
            self._hash -= hash_sum([(*address, self.state.pop(address, None))])
            if value is not None:
                self.state[address] = value
        self._hash = hash_sum(changes.values(), self._hash)
        blocks: list[Block] = []
        rest = list(changes.values())
        while rest:
            cut = self._number.randint(1, len(rest))
            blocks.append(rest[:cut])
            rest = rest[cut:]
        return self._mark(snapshot=False), blocks

    def snapshot(self, gap: int = 1) -> tuple[Commit, list[Block]]:
        """Return the state as a snapshot, ``gap`` commits after the previous commit."""
        self.last = attrs.evolve(self.last, sequence=self.last.sequence + gap - 1)
        changes: list[Change] = [(*address, value) for address, value in self.state.items()]
        return self._mark(snapshot=True), [changes] if changes else []

    def _change(self, size: int) -> Change:
        number = self._number
        key = encode_key(f"key {number.randrange(self._keys)}")
        value = None if number.random() < 0.3 else _encode(number.randbytes(number.randint(0, size)))
        match number.randrange(3):
            case 0:
                return state_prefix(PLAIN, 1, key, _NAMESPACE), b"", value
            case 1:
                namespace = encode_key((number.randrange(3), 10))
                return state_prefix(PLAIN, 2, key, namespace), encode_key(str(number.randrange(9))), value
            case _:
                time = number.randrange(20)
                return timer_prefix(TIMER_EVENT, key), timer_sub(time), value and encode_time(time)

    def _mark(self, *, snapshot: bool) -> Commit:
        last = self.last
        self.last = attrs.evolve(
            last,
            sequence=last.sequence + 1,
            attempt=f"{self._number.getrandbits(64):016x}",
            previous=last.attempt,
            snapshot=snapshot,
            entries=len(self.state),
            hash=hash_text(self._hash),
            watermark=last.watermark + 7,
            processing_time=last.processing_time + 1000,
        )
        self.past[self.last.sequence] = dict(self.state)
        return self.last


def state_of(reader: ChangelogReader, until: int | None = None) -> State:
    """Return the entries of a key group's log, after a sequence or the newest."""
    state: State = {}
    for commit, blocks in reader.commits(0, until):
        if commit.snapshot:
            state = {}
        _apply(state, blocks)
    return state


def _apply(state: State, blocks: Blocks) -> None:
    for block in blocks:
        for prefix, sub, value in entries_in(block):
            if value is None:
                state.pop((prefix, sub), None)
            else:
                state[prefix, sub] = value


def _sequences(reader: ChangelogReader, after: int = 0, until: int | None = None) -> list[int]:
    return [commit.sequence for commit, _ in reader.commits(after, until)]


def _check_in_order(reader: ChangelogReader, count: int) -> None:
    """Check that so many commits are there, each after the one before."""
    commits = [commit for commit, _ in reader.commits()]
    assert [commit.sequence for commit in commits] == list(range(1, count + 1))
    assert all(after.previous == before.attempt for before, after in pairwise(commits))


def _others_than(commit: Commit) -> list[Commit]:
    """Return commits that do not follow the one before a commit."""
    others: list[dict[str, Any]] = [{"sequence": 3}, {"previous": "another"}, {"source_log": "another"}]
    return [attrs.evolve(commit, **other) for other in others]


def _failing(blocks: Blocks) -> Iterator[Block]:
    """Yield blocks, and then raise an error."""
    yield from blocks
    raise ChangelogError("no more")


def _expect_error(call: Callable[[], object], kind: type[KeyedError], *words: str) -> None:
    """Check that a call raises an error whose message contains some words."""
    text = None
    try:
        call()
    except kind as error:
        text = str(error)
    assert text is not None, f"no {kind.__name__} was raised"
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"


class ChangelogConformance:
    """Contract of every changelog. Subclass it and override `make_changelog`."""

    def make_changelog(self, path: Path) -> Changelog:
        """Return a changelog that does not exist yet.

        Args:
            path: A folder for this test alone.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define make_changelog")

    def test_it_is_created_once(self, tmp_path: Path) -> None:
        changelog = self.make_changelog(tmp_path)
        assert changelog.header() is None
        header = changelog.prepare("op", 2)
        assert (header.operator, header.parallelism) == ("op", 2)
        assert changelog.prepare("op", 2) == header == copy.deepcopy(changelog).header()

    def test_of_another_operator_or_parallelism_it_is_refused(self, tmp_path: Path) -> None:
        changelog = self.make_changelog(tmp_path)
        changelog.prepare("op", 2)
        _expect_error(lambda: changelog.prepare("other", 2), ChangelogError, "'op'", "'other'")
        _expect_error(lambda: changelog.prepare("op", 3), ChangelogError, "2", "3")

    def test_before_it_is_created_there_is_nothing_to_open(self, tmp_path: Path) -> None:
        changelog = self.make_changelog(tmp_path)
        _expect_error(lambda: changelog.writer(0), ChangelogError)
        _expect_error(lambda: changelog.reader(0).last(), ChangelogError)

    def test_what_was_appended_is_read_in_order(self, tmp_path: Path) -> None:
        changelog, sample = self._create(tmp_path)
        writer, reader = changelog.writer(0), changelog.reader(0)
        assert writer.last() is None
        assert reader.last() is None
        assert list(reader.commits()) == []
        appended = [writer.append(*sample.commit()) for _ in range(5)]
        writer.close()
        commits = [(commit, sum(len(entries_in(block)) for block in blocks)) for commit, blocks in reader.commits()]
        assert commits == [(commit, commit.records) for commit in appended]
        assert appended[-1] == reader.last() == changelog.writer(0).last()
        header = changelog.header()
        assert header is not None
        assert {commit.log_id for commit in appended} == {header.log_id}
        assert all(state_of(reader, until) == sample.past[until] for until in range(1, 6))

    def test_reading_goes_on_where_it_ended(self, tmp_path: Path) -> None:
        changelog, sample = self._create(tmp_path)
        writer, reader = changelog.writer(0), changelog.reader(0)
        state: State = {}
        after = 0
        for count in (3, 0, 1, 4):
            for _ in range(count):
                writer.append(*sample.commit())
            for commit, blocks in reader.commits(after):
                assert commit.sequence == after + 1
                after = commit.sequence
                _apply(state, blocks)
            assert state == sample.state
        assert _sequences(reader, 2, 5) == [3, 4, 5]
        assert list(reader.commits(after)) == []

    def test_content_may_be_left_unread(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path)
        appended = [writer.append(*sample.commit()) for _ in range(4)]
        assert [commit for commit, _ in changelog.reader(0).commits()] == appended

    def test_a_commit_may_be_empty_or_large(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path, keys=10_000)
        for count in (0, 30_000, 0, 1):
            writer.append(*sample.commit(count, size=200))
        assert state_of(changelog.reader(0)) == sample.state

    def test_the_same_commit_again_is_invisible(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path)
        commits = [sample.commit() for _ in range(3)]
        appended = [writer.append(*commit) for commit in commits]
        for again in (writer, changelog.writer(0)):
            assert again.append(*commits[2]) == appended[2]
            assert again.append(commits[1][0], []) == appended[1]
        assert state_of(changelog.reader(0)) == sample.state
        assert [commit for commit, _ in changelog.reader(0).commits()] == appended

    def test_another_commit_of_a_sequence_is_refused(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path, commits=3)
        for sequence in (2, 3):
            other = attrs.evolve(sample.last, sequence=sequence, attempt="other", previous="")
            _expect_error(lambda other=other: writer.append(other, []), ChangelogDiverged)  # type: ignore[misc]
        writer.append(*sample.commit())
        assert state_of(changelog.reader(0)) == sample.state

    def test_a_commit_follows_the_one_before(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path)
        commit, blocks = sample.commit()
        _expect_error(lambda: writer.append(attrs.evolve(commit, sequence=2), blocks), ChangelogDiverged, "2")
        writer.append(commit, blocks)
        commit, blocks = sample.commit()
        for wrong in _others_than(commit):
            _expect_error(lambda wrong=wrong: writer.append(wrong, blocks), ChangelogDiverged)  # type: ignore[misc]
        writer.append(commit, blocks)
        assert state_of(changelog.reader(0)) == sample.state

    def test_a_snapshot_stands_for_all_before_it(self, tmp_path: Path) -> None:
        changelog, sample = self._create(tmp_path)
        for _ in range(4):
            sample.commit()
        writer, reader = changelog.writer(0), changelog.reader(0)
        writer.append(*sample.snapshot())
        writer.append(*sample.commit())
        writer.append(*sample.snapshot(gap=5))
        writer.append(*sample.commit())
        assert [(commit.sequence, commit.snapshot) for commit, _ in reader.commits(6)] == [(11, True), (12, False)]
        for until in (5, 6, 11, 12):
            assert state_of(reader, until) == sample.past[until]

    def test_a_commit_whose_content_fails_leaves_nothing(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path, commits=1)
        commit, blocks = sample.commit()
        _expect_error(lambda: writer.append(commit, _failing(blocks)), ChangelogError, "no more")
        assert state_of(changelog.reader(0)) == sample.past[1]
        writer = self._reopen(changelog, writer)
        writer.append(commit, blocks)
        assert state_of(changelog.reader(0)) == sample.state

    def test_a_commit_that_is_being_appended_is_not_seen_and_stops_no_reader(self, tmp_path: Path) -> None:
        changelog, sample = self._create(tmp_path, keys=5_000)
        writer, reader = changelog.writer(0), changelog.reader(0)
        first = writer.append(*sample.commit())
        commit, blocks = sample.commit(20_000)

        def observed() -> Iterator[Block]:
            yield from blocks
            assert (reader.last(), state_of(changelog.reader(0))) == (first, sample.past[1])

        writer.append(commit, observed())
        assert state_of(reader) == sample.state

    def test_of_two_writers_each_commit_is_there_once(self, tmp_path: Path) -> None:
        changelog, sample = self._create(tmp_path)
        writers = [changelog.writer(0), changelog.writer(0)]
        for turn in (0, 1, 0, 0, 1, 1, 0):
            commit, blocks = sample.commit()
            for which in (turn, 1 - turn):
                try:
                    writers[which].append(commit, blocks)
                except ChangelogFenced:
                    writers[which] = self._reopen(changelog, writers[which])
                    writers[which].append(commit, blocks)
        _check_in_order(changelog.reader(0), 7)
        assert state_of(changelog.reader(0)) == sample.state

    def test_commits_are_appended_together(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path, commits=1)
        state: State = {}
        for count in (3, 1, 5):
            commits = [sample.commit(*size) for size in [(20,), (0,), (400, 300), (1,), (20,)][:count]]
            appended = append_all(writer, commits)
            assert appended == writer.last() == changelog.reader(0).last()
        reader = changelog.reader(0)
        _check_in_order(reader, 10)
        for after in range(10):
            assert _sequences(changelog.reader(0), after, after + 1) == [after + 1]
            assert state_of(changelog.reader(0), after + 1) == sample.past[after + 1]
            assert _sequences(reader, after) == list(range(after + 1, 11))
            for _, blocks in reader.commits(after, after + 1):
                _apply(state, blocks)
            assert state == sample.past[after + 1]

    def test_of_commits_that_are_appended_together_those_that_exist_are_left_out(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path)
        commits = [sample.commit() for _ in range(4)]
        writer.append(*commits[0])
        append_all(writer, commits[:3])
        writer = self._reopen(changelog, writer)
        assert append_all(writer, commits[1:3]).sequence == 3
        last = append_all(writer, commits)
        assert (last.sequence, last.attempt) == (4, commits[3][0].attempt)
        assert append_all(writer, commits) == last
        other = attrs.evolve(commits[3][0], attempt="other")
        _expect_error(lambda: append_all(writer, [commits[2], (other, [])]), ChangelogDiverged, "4")
        assert _sequences(changelog.reader(0)) == [1, 2, 3, 4]
        assert state_of(changelog.reader(0)) == sample.state

    def test_commits_that_are_appended_together_follow_each_other(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._open(tmp_path, commits=1)
        first, second, third = (sample.commit() for _ in range(3))
        another = attrs.evolve(first[0], previous="another"), first[1]
        for wrong in ([second, third], [another, second]):
            _expect_error(lambda wrong=wrong: append_all(writer, wrong), ChangelogDiverged)  # type: ignore[misc]
        append_all(writer, [first, second, third])
        assert state_of(changelog.reader(0)) == sample.state

    def test_groups_are_apart(self, tmp_path: Path) -> None:
        changelog, sample = self._create(tmp_path)
        other = SampleGroup(Random(8), 1)
        writers = [changelog.writer(group) for group in range(2)]
        for _ in range(3):
            writers[0].append(*sample.commit())
            writers[1].append(*other.commit())
        writers[0].append(*sample.commit())
        assert state_of(changelog.reader(0)) == sample.state
        assert state_of(changelog.reader(1)) == other.state
        last = changelog.reader(1).last()
        assert last is not None
        assert (last.group, last.sequence) == (1, 3)
        _expect_error(lambda: changelog.reader(2).last(), ChangelogError, "2")

    def test_positions_are_kept(self, tmp_path: Path) -> None:
        changelog, _ = self._create(tmp_path)
        assert list(changelog.positions()) == []
        for sequence in (1, 2, 3):
            changelog.put_position(sequence, b"at %d" % sequence)
        changelog.put_position(2, b"at 2")
        _expect_error(lambda: changelog.put_position(2, b"elsewhere"), ChangelogDiverged, "1")
        assert list(changelog.positions()) == [(1, b"at 1"), (2, b"at 2"), (3, b"at 3")]
        assert list(copy.deepcopy(changelog).positions(1)) == [(2, b"at 2"), (3, b"at 3")]

    def test_what_is_kept_stays(self, tmp_path: Path) -> None:
        changelog, _ = self._create(tmp_path)
        assert list(changelog.kept()) == []
        large = Random(3).randbytes(500_000)
        for name, data in (("b.1", b"one"), ("a-2", large), ("b.1", b"one")):
            changelog.keep(name, data)
        changelog.put_position(1, b"at 1")
        _expect_error(lambda: changelog.keep("b.1", b"other"), ChangelogDiverged, "b.1")
        assert list(copy.deepcopy(changelog).kept()) == [("a-2", large), ("b.1", b"one")]
        assert list(changelog.positions()) == [(1, b"at 1")]

    def test_what_is_forgotten_is_kept_no_longer(self, tmp_path: Path) -> None:
        changelog, _ = self._create(tmp_path)
        for name in ("a", "b", "c"):
            changelog.keep(name, b"one")
        changelog.forget(["a", "c", "never"])
        assert list(copy.deepcopy(changelog).kept()) == [("b", b"one")]
        changelog.keep("a", b"another")
        assert list(copy.deepcopy(changelog).kept()) == [("a", b"another"), ("b", b"one")]

    def _create(self, path: Path, keys: int = 50) -> tuple[Changelog, SampleGroup]:
        changelog = self.make_changelog(path)
        changelog.prepare("op", 2)
        return changelog, SampleGroup(Random(7), keys=keys)

    def _open(self, path: Path, keys: int = 50, commits: int = 0) -> tuple[Changelog, ChangelogWriter, SampleGroup]:
        """Return a changelog and a writer that has appended some commits of a sample."""
        changelog, sample = self._create(path, keys)
        writer = changelog.writer(0)
        for _ in range(commits):
            writer.append(*sample.commit())
        return changelog, writer, sample

    @staticmethod
    def _reopen(changelog: Changelog, writer: ChangelogWriter) -> ChangelogWriter:
        writer.close()
        return changelog.writer(0)


class StagingChangelogConformance(ChangelogConformance):
    """Contract of a changelog that stages batches before their commit."""

    def test_what_is_staged_is_seen_by_nobody_until_it_is_published(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._staging(tmp_path)
        first = writer.append(*sample.commit())
        commit, blocks = sample.commit()
        assert writer.stage(commit, blocks)
        reader = changelog.reader(0)
        assert first == reader.last() == writer.last()
        assert state_of(reader) == sample.past[1]
        assert changelog.publish(0, 2, commit.attempt)
        assert reader.last() == changelog.reader(0).last() == writer.last()
        assert state_of(reader) == sample.state
        assert not changelog.publish(0, 2, commit.attempt)
        appended = writer.append(commit, [])
        assert appended == reader.last()
        for _ in range(3):
            writer.last()
            assert writer.stage(*sample.commit())
            assert changelog.publish(0, sample.last.sequence, sample.last.attempt)
        assert state_of(reader) == sample.state
        assert _sequences(reader) == [1, 2, 3, 4, 5]

    def test_what_was_not_published_is_appended(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._staging(tmp_path, commits=1)
        for opened in (False, True):
            commit, blocks = sample.commit()
            assert writer.stage(commit, blocks)
            later = changelog.writer(0) if opened else writer
            later.append(commit, blocks)
            assert not changelog.publish(0, commit.sequence, commit.attempt)
            assert later.last() == changelog.reader(0).last()
        assert state_of(changelog.reader(0)) == sample.state

    def test_of_two_attempts_one_is_there(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._staging(tmp_path, commits=1)
        commit, blocks = sample.commit()
        other = changelog.writer(0)
        assert isinstance(other, StagingWriter)
        failed = attrs.evolve(commit, attempt="failed")
        assert writer.stage(failed, [])
        assert other.stage(commit, blocks)
        assert changelog.publish(0, 2, commit.attempt)
        assert not changelog.publish(0, 2, "failed")
        assert state_of(changelog.reader(0)) == sample.state
        last = writer.last()
        assert last is not None
        assert last.attempt == commit.attempt
        _expect_error(lambda: writer.append(failed, []), ChangelogDiverged)
        # The second attempt of a batch replaces the first.
        commit, blocks = sample.commit()
        assert writer.stage(attrs.evolve(commit, attempt="failed"), [])
        assert writer.stage(commit, blocks)
        assert not changelog.publish(0, 3, "failed")
        assert changelog.publish(0, 3, commit.attempt)
        assert state_of(changelog.reader(0)) == sample.state

    def test_only_what_follows_is_staged(self, tmp_path: Path) -> None:
        changelog, writer, sample = self._staging(tmp_path)
        commit, blocks = sample.commit()
        # It begins with a snapshot, which is exported.
        assert not writer.stage(commit, blocks)
        writer.append(commit, blocks)
        commit, blocks = sample.commit()
        for wrong in _others_than(commit):
            assert not writer.stage(wrong, blocks)
            assert not changelog.publish(0, wrong.sequence, wrong.attempt)
        _expect_error(lambda: writer.stage(commit, _failing(blocks)), ChangelogError, "no more")
        assert not changelog.publish(0, 2, commit.attempt)
        assert state_of(changelog.reader(0)) == sample.past[1]

    def _staging(self, path: Path, commits: int = 0) -> tuple[StagingChangelog, StagingWriter, SampleGroup]:
        changelog, writer, sample = self._open(path, commits=commits)
        assert isinstance(changelog, StagingChangelog)
        assert isinstance(writer, StagingWriter)
        return changelog, writer, sample
