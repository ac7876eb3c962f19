"""A key group exports only its commits to its changelog, each once, with the hash of the live entries."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from keyed.changelog import DirectoryChangelog
from keyed.content import contents
from keyed.content.contents import hash_sum, hash_text
from keyed.engine import replica
from keyed.engine.batch import BatchResult
from keyed.engine.group_log import MOST_COMMITS
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import ChangelogDiverged, ChangelogError
from keyed.stores import MemoryStore
from keyed.stores.commit_store import MemoryCommitStore
from keyed.testing import MemoryChangelog
from tests.keyed.engine.groups import OPERATOR, Group, random_element

WHERE = f"operator '{OPERATOR}', key group 0"


class Subject(Group):
    """A key group of `Work`, its commits and its changelog."""

    def __init__(self, staging: DirectoryChangelog | None = None, changelog: Any = None) -> None:
        self.stages = staging is not None
        self.changelog: Any = staging or changelog or MemoryChangelog()
        self.changelog.prepare(OPERATOR, 1)
        self.number = 0
        super().__init__(changelog=self.changelog)

    def use(self, store: Any) -> None:
        super().use(store)
        self.start()

    def start(self, *, exports: bool = True) -> None:
        """Go on in another process, so to say, whose local store is empty."""
        writer = self.changelog.writer(0) if exports else None
        self.group = KeyGroup(self.spec, 0, self.log, Replica(MemoryStore()), writer, stages=self.stages)

    def run(self, *elements: Any, commit: bool = True, **marks: Any) -> BatchResult:
        self.number += 1
        return super().run(*elements, commit=commit, **{"processing_time": self.number * 10} | marks)

    def set(self, key: str, value: bytes | None, *, commit: bool = True) -> None:
        self.run((key, "value", value), commit=commit)

    def entries(self) -> Any:
        return {(prefix, sub): value for prefix, sub, value in super().entries()}

    def exported(self, until: int | None = None) -> dict[tuple[bytes, bytes], bytes]:
        """The state after a commit of the changelog."""
        state: dict[Any, Any] = {}
        for _, blocks in self.changelog.reader(0).commits(0, until):
            for block in blocks:
                assert isinstance(block, list)
                for prefix, sub, value in block:
                    if value is None:
                        del state[prefix, sub]
                    else:
                        state[prefix, sub] = value
        return state

    def sequences(self) -> list[int]:
        return [commit.sequence for commit, _ in self.changelog.reader(0).commits()]


def test_the_changelog_trails_by_one_batch_until_it_is_flushed():
    subject = Subject()
    for number in range(3):
        subject.set("a", b"%d" % number)
        assert subject.sequences() == list(range(1, number + 1))
    for _ in range(2):
        subject.group.flush()
        assert subject.sequences() == [1, 2, 3]
    subject.set("a", b"3")
    subject.group.flush()
    assert subject.sequences() == [1, 2, 3, 4]
    assert subject.exported() == subject.entries()


def test_a_batch_that_is_undone_leaves_nothing_and_runs_again_with_another_result():
    subject = Subject()
    subject.set("a", b"kept")
    subject.set("b", b"lost", commit=False)
    subject.set("c", b"lost", commit=False)
    subject.start()
    subject.set("b", b"other")
    subject.group.flush()
    assert subject.exported() == subject.entries()
    assert not any(b"lost" in value for value in subject.exported().values())
    assert subject.sequences() == [1, 2]


def test_a_batch_that_fails_leaves_nothing():
    subject = Subject()
    subject.set("a", b"1")
    with pytest.raises(Exception, match="no_such_call"):
        subject.run(("a", "no_such_call"))
    subject.commits.rollback()
    subject.set("a", b"2")
    subject.group.flush()
    assert subject.exported() == subject.entries()


@pytest.mark.parametrize("seed", range(3))
def test_markers_say_what_is_live_and_its_hash(seed):
    random, subject = Random(seed), Subject()
    states = []
    for number in range(60):
        subject.run(*(random_element(random) for _ in range(random.choice([0, 1, 5, 40]))), watermark=number // 2)
        states.append(subject.entries())
        if random.random() < 0.2:
            subject.start()
    subject.group.flush()
    for commit, state in zip((commit for commit, _ in subject.changelog.reader(0).commits()), states, strict=True):
        assert subject.exported(commit.sequence) == state
        assert commit.entries == len(state)
        assert commit.hash == hash_text(hash_sum((*address, value) for address, value in state.items()))
        assert (commit.watermark, commit.processing_time) == ((commit.sequence - 1) // 2, commit.sequence * 10)
        assert set(commit.states) == {"value", "map", "list", "brief"}
        assert commit.counters["batches"] == commit.sequence


def test_entries_that_cleaning_moves_are_not_exported():
    subject = Subject()
    subject.run(*((f"k{number}", "value", b"x" * 1000) for number in range(300)))
    for number in range(400):
        subject.set(f"k{number % 20}", b"%3d" % number * 3_000)
    subject.group.flush()
    meta = subject.group.committed()[0]
    assert meta is not None
    assert meta.first_row > 200
    assert [commit.records for commit, _ in subject.changelog.reader(0).commits()][1:] == [1] * 400
    assert subject.exported() == subject.entries()


def test_a_changelog_that_is_switched_on_starts_with_a_snapshot():
    subject = Subject()
    subject.start(exports=False)
    for number in range(25_000):
        subject.commits.rollback()
        if number % 5_000 == 0:
            subject.run(*((f"k{key}", "value", b"x") for key in range(number, number + 5_000)))
    subject.start()
    subject.set("k1", b"y")
    subject.set("k2", None)
    subject.group.flush()
    first, *rest = [commit for commit, _ in subject.changelog.reader(0).commits()]
    assert (first.snapshot, first.sequence, first.records) == (True, 5, 25_000)
    assert [(commit.snapshot, commit.records) for commit in rest] == [(False, 1), (False, 1)]
    assert subject.exported() == subject.entries()
    assert rest[-1].hash == hash_text(hash_sum(subject.group.committed()[1].items()))


def test_without_a_changelog_nothing_is_hashed(monkeypatch):
    def hashed(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(contents, "xxh3_128_intdigest", hashed)
    monkeypatch.setattr(replica, "contents_hash", hashed)
    subject = Subject()
    subject.start(exports=False)
    for number in range(3):
        subject.set("a", b"%d" % number)
    meta = subject.group.committed()[0]
    assert meta is not None
    assert meta.hash == ""


class TestAnotherCourse:
    """The changelog holds something else than the checkpoint has been: it is refused, and nothing is run."""

    def refused(self, subject: Subject, match: str) -> None:
        before = subject.commits.snapshot(), subject.sequences()
        with pytest.raises(ChangelogDiverged, match=match) as caught:
            subject.set("a", b"more")
        assert WHERE in str(caught.value)
        assert "empty one" in str(caught.value)
        with pytest.raises(ChangelogDiverged, match=match):
            subject.group.flush()
        assert before == (subject.commits.snapshot(), subject.sequences())

    @pytest.fixture
    def subject(self):
        subject = Subject()
        for number in range(3):
            subject.set("a", b"%d" % number)
        return subject

    def test_a_checkpoint_that_was_set_back(self, subject):
        before = subject.commits.snapshot()
        for number in range(2):
            subject.set("b", b"%d" % number)
        subject.commits.restore(before)
        subject.start()
        self.refused(subject, "continues to batch 3, the checkpoint ends with 2")

    def test_a_checkpoint_that_was_set_back_and_has_gone_on(self, subject):
        before = subject.commits.snapshot()
        subject.set("b", b"1")
        subject.group.flush()
        subject.commits.restore(before)
        subject.start(exports=False)
        subject.set("b", b"2")
        subject.start()
        self.refused(subject, "continues to batch 3, the checkpoint ends with 3")
        subject.start(exports=False)
        subject.set("b", b"3")
        subject.start()
        self.refused(subject, "has another batch 3 than the checkpoint")

    def test_batches_that_were_run_without_it(self, subject):
        subject.start(exports=False)
        for number in range(2):
            subject.set("b", b"%d" % number)
        subject.start()
        self.refused(subject, "ends with batch 1, the checkpoint with 4: batches were run without it")

    def test_one_batch_without_it_is_none_missing(self, subject):
        subject.group.flush()
        subject.start(exports=False)
        subject.set("b", b"1")
        subject.start()
        subject.set("b", b"2")
        subject.group.flush()
        assert subject.sequences() == [1, 2, 3, 4, 5]
        assert subject.exported() == subject.entries()

    def test_the_changelog_of_another_checkpoint(self, subject):
        other = Subject()
        other.set("a", b"1")
        other.changelog = subject.changelog
        other.start()
        self.refused(other, "was written from another checkpoint")

    def test_a_changelog_in_use_and_a_new_checkpoint(self, subject):
        subject.commits = MemoryCommitStore()
        subject.start()
        with pytest.raises(ChangelogDiverged, match="its checkpoint is new") as caught:
            subject.set("a", b"1")
        assert "restore_from=" in str(caught.value)


def test_a_changelog_that_fails_fails_the_batch_and_is_gone_on_with(monkeypatch):
    subject = Subject()
    subject.set("a", b"1")
    writer = subject.changelog.writer(0)

    def full(*_: Any) -> None:
        raise ChangelogError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(type(writer), "append", full)
        with pytest.raises(ChangelogError, match="disk full"):
            subject.set("a", b"2")
        subject.commits.rollback()
    subject.set("a", b"3")
    subject.group.flush()
    assert subject.sequences() == [1, 2]
    assert subject.exported() == subject.entries()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_staged_and_published_is_what_would_be_exported(tmp_path, seed):
    random, published = Random(seed), 0
    exported = Subject()
    staged = Subject(DirectoryChangelog(tmp_path / "log", auto_compact=False))
    for _ in range(40):
        if random.random() < 0.2:
            # Whoever was there may have staged something.
            staged.start()
            exported.start()
        elements = [random_element(random) for _ in range(random.randrange(4))]
        commit = random.random() < 0.7
        result = staged.run(*elements, commit=commit)
        exported.run(*elements, commit=commit)
        committed = exported.group.committed()[0]
        assert staged.sequences() == exported.sequences()
        if commit and random.random() < 0.7 and result.staged:
            assert staged.changelog.publish(0, result.commit, result.staged)
            assert committed is not None
            assert staged.sequences() == list(range(1, committed.commit + 1))
            published += 1
            exported.group.flush()
            assert staged.exported() == exported.exported() == staged.entries()
    staged.run()
    staged.group.flush()
    exported.run()
    exported.group.flush()
    assert published > 5
    ours, theirs = ([commit for commit, _ in subject.changelog.reader(0).commits()] for subject in (staged, exported))
    # Attempts and logs have identities of their own.
    unlike = ("log_id", "source_log", "attempt", "previous")
    assert [attrs.evolve(commit, **dict.fromkeys(unlike, "")) for commit in ours] == [
        attrs.evolve(commit, **dict.fromkeys(unlike, "")) for commit in theirs
    ]


def test_the_first_batch_is_not_staged_and_a_changelog_that_does_not_stage_gets_nothing(tmp_path):
    staged = Subject(DirectoryChangelog(tmp_path / "log"))
    assert [bool(staged.run(("a", "value", b"1")).staged) for _ in range(3)] == [False, True, True]
    plain = Subject()
    plain.stages = True
    plain.start()
    assert [plain.run(("a", "value", b"1")).staged for _ in range(3)] == ["", "", ""]


def shown(subject: Subject) -> list[Any]:
    """The commits of a changelog, without what differs from run to run."""
    return [
        attrs.evolve(commit, log_id="", attempt="", previous="", source_log="", counters={}, snapshot=False)
        for commit, _ in subject.changelog.reader(0).commits()
    ]


@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_with_an_export_interval_the_changelog_holds_the_same_in_fewer_files(tmp_path, seed):
    random = Random(seed)
    interval = random.choice([20, 50, 200, 10_000])
    folder = tmp_path / "log"
    each = Subject()
    together = Subject(changelog=DirectoryChangelog(folder, auto_compact=False, export_interval=interval))
    begun = False
    for _ in range(100):
        if random.random() < 0.05:
            # It was killed.
            together.start()
            begun = True
        if random.random() < 0.02:
            for one in (each, together):
                one.group.flush()
        elements = [random_element(random) for _ in range(random.randrange(4))]
        commit = random.random() < 0.8
        for one in (each, together):
            one.run(*elements, commit=commit, starts_run=begun and one is together, watermark=one.number // 2)
        begun = begun and not commit
        assert together.sequences() == each.sequences()[: len(together.sequences())]
    for one in (each, together):
        one.start()
        one.group.flush()
    assert shown(together) == shown(each)
    for sequence in each.sequences():
        assert together.exported(sequence) == each.exported(sequence)
    assert together.exported() == together.entries() == each.entries()
    assert len(list(folder.glob("groups/*/*.segment"))) < len(each.sequences()) * (0.6 if interval > 20 else 1)
    together.changelog.compact()
    assert together.exported() == each.entries()


def test_commits_wait_for_their_export_no_longer_than_the_interval(tmp_path):
    folder = tmp_path / "log"
    subject = Subject(changelog=DirectoryChangelog(folder, export_interval=50))
    results = []
    for number in range(1, 31):
        subject.run((f"k{number}", "value", b"x"))
        results.append(subject.sequences())
    # Batches run every 10 ms. The first export is that of the first commit.
    assert results[1] == [1]
    assert [len(found) for found in results] == [0, *(1 + 5 * ((number - 2) // 5) for number in range(2, 31))]
    assert len(list(folder.glob("groups/*/*.segment"))) == 6
    # When a query starts, it is not known how long they have waited for it.
    subject.start()
    assert subject.run(starts_run=True).export_at == 310 + 50
    assert subject.sequences() == list(range(1, 31))


def test_at_most_so_many_commits_wait(tmp_path):
    subject = Subject(changelog=DirectoryChangelog(tmp_path / "log", export_interval=10**9))
    for _ in range(200):
        subject.set("a", b"x" * 10_000)
        meta = subject.group.committed()[0]
        assert meta is not None
        assert len(meta.waiting) < MOST_COMMITS
    assert subject.sequences() == list(range(1, 2 + 3 * MOST_COMMITS))
    subject.group.flush()
    assert subject.exported() == subject.entries()


def test_waiting_commits_are_refused_on_another_branch(tmp_path):
    subject = Subject(changelog=DirectoryChangelog(tmp_path / "log", export_interval=1_000))
    for number in range(5):
        subject.set("a", b"%d" % number)
    before = subject.commits.snapshot()
    subject.set("b", b"1")
    subject.group.flush()
    subject.commits.restore(before)
    subject.start()
    with pytest.raises(ChangelogDiverged, match="continues to batch 5, the checkpoint ends with 4"):
        subject.run(starts_run=True)
    # Batches without it.
    other = Subject(changelog=DirectoryChangelog(tmp_path / "other", export_interval=1_000))
    for number in range(5):
        other.set("a", b"%d" % number)
    assert other.sequences() == [1]
    other.start(exports=False)
    other.set("a", b"none")
    other.start()
    with pytest.raises(ChangelogDiverged, match="ends with batch 0, the checkpoint with 5: batches were run without"):
        other.run(starts_run=True)
