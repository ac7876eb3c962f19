"""Changelogs with an export interval: several commits in a file, and the same state and positions at each batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

import keyed
from keyed import DirectoryChangelog, KeyedProcessFunction, RestorePoint, ValueState
from keyed.changelog.model import all_positions
from keyed.errors import DefinitionError
from keyed.recovery import flush, read_changelog, verify
from tests.keyed.recovery.test_restore import Stop, stopped_after

ROWS = [{"key": f"k{number % 3}", "n": number} for number in range(40)]


class Sums(KeyedProcessFunction):
    total = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value["n"])
        yield value["key"], self.total.value()


def run(folder: Path, changelog: Any, **options: Any) -> Any:
    """Sums over the rows, one in a batch. The clock is a second for each batch."""
    seconds = iter(range(1, 10_000))
    after = {name: options.pop(name) for name in ("restore_from", "parallelism") if name in options}
    stream = keyed.stream(ROWS).key_by("key")
    sums = stream.process(Sums(), "key string, total bigint", name="sums", changelog=changelog, **after)
    clock = options.pop("clock", lambda: next(seconds) * 1000)
    return sums.run(checkpoint=folder / "checkpoint", rows_per_batch=1, processing_time=clock, **options)


def log_at(folder: Path, **options: Any) -> DirectoryChangelog:
    return DirectoryChangelog(folder / "log", auto_compact=False, **options)


def files(changelog: DirectoryChangelog, kind: str = "segment") -> int:
    return len([*Path(changelog.path).glob(f"**/*.{kind}")])


def changes(changelog: DirectoryChangelog) -> list[Any]:
    return [(change.commit.batch, change.key, change.value) for change in read_changelog(changelog, "total")]


@pytest.fixture(scope="module")
def each(tmp_path_factory) -> Any:
    """A changelog of which each commit is a file, and the rows of its job."""
    folder = tmp_path_factory.mktemp("each")
    changelog = log_at(folder)
    return changelog, run(folder, changelog).values


def test_a_killed_job_goes_on_and_its_changelog_holds_the_same(tmp_path, each):
    changelog = log_at(tmp_path, export_interval=10_000)
    values = []
    for batches in (7, 19, 22):
        with pytest.raises(Stop):
            run(tmp_path, changelog, on_progress=stopped_after(batches))
        # Nobody has flushed it.
        last = changelog.reader(0).last()
        assert last is not None
        assert last.batch < batches - 1
        positions = [number for number, _ in all_positions(changelog)]
        assert positions == list(range(1, last.sequence + 1))
    values = run(tmp_path, changelog).values
    assert values == each[1][22:]
    assert changes(changelog) == changes(each[0])
    assert files(changelog) < files(each[0]) / 3
    assert files(changelog, "position") < files(each[0], "position") / 3
    assert [group.problem for group in verify(changelog)] == [""]


def test_each_batch_can_be_restored_at_another_parallelism(tmp_path, each):
    changelog = log_at(tmp_path, export_interval=7_000)
    run(tmp_path, changelog)
    for batch in range(0, len(ROWS), 3):
        folder = tmp_path / str(batch)
        point = RestorePoint(changelog, as_of=batch)
        result = run(folder, None, restore_from=point, parallelism=3)
        assert (result.restored.batch_id, result.restored.with_position) == (batch, True)
        assert sorted(result.values) == sorted(each[1][batch + 1 :])


def test_a_flush_exports_what_waits_with_the_positions(tmp_path, each):
    changelog = log_at(tmp_path, export_interval=10**9)
    with pytest.raises(Stop):
        run(tmp_path, changelog, on_progress=stopped_after(20))
    assert changes(changelog) == changes(each[0])[:1]
    assert flush(tmp_path / "checkpoint", {"sums": changelog}) == {"sums": 19}
    assert changes(changelog) == changes(each[0])[:20]
    assert [number for number, _ in all_positions(changelog)] == list(range(1, 21))
    assert [group.problem for group in verify(tmp_path / "checkpoint", changelog)] == [""]
    # Another interval from now on, and none.
    for batches, interval in ((25, 3_000), (30, 0), (33, 10**9)):
        with pytest.raises(Stop):
            run(tmp_path, log_at(tmp_path, export_interval=interval), on_progress=stopped_after(batches))
    run(tmp_path, changelog)
    assert changes(changelog) == changes(each[0])
    assert [number for number, _ in all_positions(changelog)] == list(range(1, len(ROWS) + 1))
    assert [group.problem for group in verify(changelog)] == [""]


def test_a_new_changelog_for_a_checkpoint_with_waiting_commits_starts_with_a_snapshot(tmp_path, each):
    with pytest.raises(Stop):
        run(tmp_path, log_at(tmp_path, export_interval=10**9), on_progress=stopped_after(20))
    other = log_at(tmp_path / "other", export_interval=10_000)
    run(tmp_path, other)
    commits = [commit for commit, _ in other.reader(0).commits()]
    assert [(commit.sequence, commit.snapshot) for commit in commits[:2]] == [(20, True), (21, False)]
    assert changes(other)[-20:] == changes(each[0])[-20:]


@pytest.mark.parametrize("wrong", [-1, 1.5, "10 seconds", True])
@pytest.mark.parametrize(
    "make",
    [
        lambda value: DirectoryChangelog("log", export_interval=value),
        lambda value: keyed.KafkaChangelog("log", bootstrap="localhost:9092", export_interval=value),
        lambda value: keyed.ObjectStoreChangelog("s3://bucket/log", export_interval=value),
    ],
)
def test_a_wrong_interval_is_refused(make, wrong):
    with pytest.raises(DefinitionError, match="export_interval"):
        make(wrong)


def test_a_changelog_is_the_same_whatever_its_interval():
    assert log_at(Path("a"), export_interval=5) == log_at(Path("a"))
    assert attrs.evolve(log_at(Path("a"), export_interval=5), compaction_lag=0).export_interval == 5
