"""Restore in the local runtime: another parallelism, positions and sinks, past states, refusals, what is reported."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import keyed
from keyed import KeyedProcessFunction, RestorePoint, ValueState, errors
from keyed.changelog.directory import DirectoryChangelog
from keyed.job.results import Restored, RestoreProgress
from keyed.recovery import verify
from keyed.testing import MemoryChangelog
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life

#: Jobs whose outputs do not depend on the order in which key groups come.
ORDERLESS = sorted(set(jobs.JOBS) - {"functions"})
#: One with each kind of table.
FAST = ("sessions", "tables", "vectorized-hopping")


class Stop(Exception):
    """Ends a run between two batches, without a flush."""


def stopped_after(batches: int) -> Any:
    """Ends a run after so many batches."""

    def on_progress(progress: keyed.Progress) -> None:
        if progress.batch_id + 1 == batches:
            raise Stop

    return on_progress


def broken_off(life: Life, batches: int) -> None:
    """Run a job until it has committed so many batches in all."""
    with pytest.raises(Stop):
        jobs.run(life, on_progress=stopped_after(batches))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in ORDERLESS]
)
@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(4, 2, marks=pytest.mark.long), (2, 4), pytest.param(3, 5, marks=pytest.mark.slow)],
)
def test_another_parallelism_writes_the_same(tmp_path, name, before, after):
    undisturbed = Life(tmp_path / "undisturbed", name)
    jobs.run(undisturbed)
    life = Life(tmp_path / "job", name, before)
    broken_off(life, 8)
    life.lose_checkpoint()
    life.parallelism = after
    result = jobs.run(life)
    for sink in (0, 1):
        assert jobs.rows_of(life.folder, sink) == jobs.rows_of(undisturbed.folder, sink)
    # The last batch had not been exported yet, and was run again.
    assert result.restored == Restored(6, with_position=True)
    assert result.batches == 21 - 7


def test_without_a_position_the_state_alone_is_restored_and_that_is_said(tmp_path, caplog):
    class NoPositions(MemoryChangelog):
        def put_position(self, sequence, data):
            pass

    log = NoPositions()
    run_count(range(100), log)
    result = run_count(range(100), restore_from=log)
    assert [value for _, value in result.values[:3]] == [11, 11, 11]
    assert result.restored == Restored(9, with_position=False)
    assert "batch 9 is restored without a position: the state is restored" in caplog.text


def test_a_position_that_is_lost_is_not_taken_for_none(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run_count(range(100), log)
    (tmp_path / "log" / "positions" / f"{10:020d}.position").unlink()
    with pytest.raises(errors.CorruptionError, match=r"after batch 8 and none after batch 9.*give as_of=8"):
        run_count(range(100), restore_from=log, checkpoint=tmp_path / "checkpoint")
    result = run_count(range(100), restore_from=RestorePoint(log, as_of=8), checkpoint=tmp_path / "checkpoint")
    assert [value for _, value in result.values] == [10] * 10


def test_compaction_beside_a_restore_moves_its_cut(tmp_path):
    class Running(DirectoryChangelog):
        """The old job goes on, and its log is compacted, when the cut is chosen."""

        def positions(self, after=0):
            if not went_on:
                went_on.append(True)
                run_count(range(rows[-1]), log, checkpoint=tmp_path / "old")
                log.compact()
            return super().positions(after)

    went_on: list[bool] = []
    rows = [130]
    log = DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
    run_count(range(100), log, checkpoint=tmp_path / "old")
    running = Running(log.path, compaction_lag=0, auto_compact=False)
    result = run_count(range(140), restore_from=running, checkpoint=tmp_path / "new")
    assert result.restored == Restored(12, with_position=True)
    assert [value for _, value in result.values] == [14] * 10
    went_on.clear()
    rows.append(160)
    with pytest.raises(errors.HistoryCompacted):
        run_count(range(140), restore_from=RestorePoint(running, as_of=12))


class Count(KeyedProcessFunction):
    """Counts per key."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield ctx.get_current_key(), self.count.value()


def run_count(rows: Any, changelog: Any = None, restore_from: Any = None, function: Any = None, **options: Any) -> Any:
    """Count numbers by their last digit, ten rows a batch."""
    stage = {name: options.pop(name) for name in ("name", "parallelism") if name in options}
    output = (
        keyed.stream(rows)
        .key_by(lambda number: number % 10)
        .process(function or Count(), changelog=changelog, restore_from=restore_from, **stage)
    )
    times = iter(range(0, 10_000_000, 1000))
    return output.run(rows_per_batch=10, processing_time=lambda: next(times), drain=False, **options)


def test_a_run_leaves_the_changelog_of_another_checkpoint_as_it_is(tmp_path):
    log = MemoryChangelog()
    run_count(range(60), log, checkpoint=tmp_path / "one")
    positions = list(log.positions())
    run_count(range(100), checkpoint=tmp_path / "other")
    with pytest.raises(errors.ChangelogDiverged, match="was written from another checkpoint"):
        run_count(range(110), log, checkpoint=tmp_path / "other")
    assert list(log.positions()) == positions
    # So its own goes on beyond that batch.
    run_count(range(200), log, checkpoint=tmp_path / "one")
    assert [group.problem for group in verify(log)] == [""]


def test_the_source_goes_on_and_the_sinks_are_not_written_again(tmp_path):
    log = MemoryChangelog()
    batches: dict[int, Any] = {}

    def sink(values: list[Any], batch: int) -> None:
        assert batch not in batches
        batches[batch] = values

    stream = keyed.stream(list(range(50))).key_by(lambda number: number % 10)
    stream.process(Count(), changelog=log).run(sink, rows_per_batch=10, drain=False)
    stream = keyed.stream(list(range(80))).key_by(lambda number: number % 10)
    result = stream.process(Count(), restore_from=log).run(sink, rows_per_batch=10, drain=False)
    assert sorted(batches) == list(range(8))
    assert batches[5] == [(number, 6) for number in range(10)]
    assert result.batches == 3


def test_counters_go_on_and_say_what_was_restored():
    log = MemoryChangelog()
    run_count(range(100), log, parallelism=4)
    for parallelism in (1, 4, 3):
        metrics = run_count(range(110), restore_from=log, parallelism=parallelism).metrics["Count"]
        # Ten batches with a change of each of the ten keys.
        assert metrics["records_restored"] == 100
        assert (metrics["rows_in"], metrics["live_entries"]) == (110, 10)


def test_progress_is_shown(caplog):
    log, shown = MemoryChangelog(), list[RestoreProgress]()
    run_count(range(100), log, parallelism=3)
    run_count(range(100), restore_from=log, on_restore=shown.append)
    assert [(p.operator, p.groups_done, p.groups) for p in shown] == [("Count", n, 3) for n in (1, 2, 3)]
    assert shown[-1].records == 100
    with caplog.at_level(logging.INFO):
        run_count(range(100), restore_from=log)
    assert "operator Count: 3 of 3 key groups and 100 records are restored" in caplog.text


def test_a_query_that_goes_on_from_its_checkpoint_is_not_restored_again(tmp_path):
    old, new = MemoryChangelog(), MemoryChangelog()
    run_count(range(100), old)
    checkpoint = {"checkpoint": tmp_path / "checkpoint"}
    assert run_count(range(120), new, old, **checkpoint).batches == 2
    result = run_count(range(130), new, old, **checkpoint)
    assert (result.batches, result.restored) == (1, None)
    assert [value for _, value in result.values] == [13] * 10
    assert [commit.sequence for commit, _ in new.reader(0).commits()] == [11, 12, 13]


class TestPastStates:
    @pytest.fixture
    def log(self):
        log = MemoryChangelog()
        run_count(range(100), log)
        return log

    @pytest.mark.parametrize("until", [0, 3, 9])
    def test_after_a_batch(self, log, until):
        result = run_count(range(110), restore_from=RestorePoint(log, as_of=until))
        assert result.restored == Restored(until, with_position=True)
        assert result.batches == 10 - until
        assert result.metrics["Count"]["rows_in"] == 110

    def test_at_a_time(self, log):
        # The batches have the processing times 0, 1, 2, ... seconds.
        for seconds, batch in ((0.0, 0), (3.5, 3), (100.0, 9)):
            until = datetime.fromtimestamp(seconds, UTC)
            result = run_count(range(100), restore_from=RestorePoint(log, as_of=until))
            assert result.restored == Restored(batch, with_position=True)

    def test_that_are_not_there(self, log, tmp_path):
        with pytest.raises(errors.ChangelogError, match="as_of=10: the newest batch that all key groups have is 9"):
            run_count(range(100), restore_from=RestorePoint(log, as_of=10))
        with pytest.raises(errors.HistoryCompacted, match="nothing that is so old"):
            run_count(range(100), restore_from=RestorePoint(log, as_of=datetime.fromtimestamp(-1, UTC)))

    def test_that_are_compacted(self, tmp_path):
        log = DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
        run_count(range(100), log, parallelism=2)
        log.compact()
        assert run_count(range(100), restore_from=log).batches == 0
        for until in (2, datetime.fromtimestamp(2, UTC)):
            with pytest.raises(errors.HistoryCompacted):
                run_count(range(100), restore_from=RestorePoint(log, as_of=until))


class TestRefusals:
    def test_a_changelog_that_was_never_written(self):
        with pytest.raises(errors.ChangelogError, match="nothing was written to it"):
            run_count(range(10), restore_from=MemoryChangelog())

    def test_a_changelog_without_a_commit_of_each_group(self):
        log = MemoryChangelog()
        log.prepare("Count", 2)
        with pytest.raises(errors.ChangelogError, match="start without restore_from="):
            run_count(range(10), restore_from=log)

    def test_the_changelog_of_another_operator(self):
        log = MemoryChangelog()
        run_count(range(10), log)
        with pytest.raises(errors.OperatorChanged, match="belongs to operator 'Count', the query has 'Other'"):
            run_count(range(10), restore_from=log, name="Other")

    def test_a_new_changelog_that_is_not_new(self):
        old, used = MemoryChangelog(), MemoryChangelog()
        run_count(range(10), old)
        run_count(range(20), used)
        with pytest.raises(errors.ChangelogDiverged, match="ends with batch 1 of an earlier run"):
            run_count(range(10), used, old)

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"changelog": "topic"}, "changelog='topic' is not a changelog"),
            ({"restore_from": 5}, "restore_from=5 is not a changelog"),
        ],
    )
    def test_no_changelogs(self, arguments, match):
        with pytest.raises(errors.DefinitionError, match=match):
            run_count(range(10), **arguments)

    def test_the_same_changelog_for_both_or_for_two_operators(self):
        log = MemoryChangelog()
        with pytest.raises(errors.DefinitionError, match="are the same"):
            run_count(range(10), log, log)
        first = keyed.stream([]).key_by("a").process(Count(), changelog=log)
        with pytest.raises(errors.DefinitionError, match="is used by another operator"):
            first.key_by("a").process(Count(), name="second", changelog=log)

    @pytest.mark.parametrize("until", [-1, -2, True, 1.5, datetime(2026, 1, 1)])
    def test_no_batch_and_no_time(self, until):
        with pytest.raises(errors.DefinitionError, match="as_of="):
            RestorePoint(MemoryChangelog(), as_of=until)

    def test_operators_at_different_batches(self):
        logs = [MemoryChangelog(), MemoryChangelog()]
        run_two(logs, [None, None])
        points = [RestorePoint(log, as_of=until) for log, until in zip(logs, (1, 2), strict=True)]
        with pytest.raises(errors.DefinitionError, match="different as_of="):
            run_two([None, None], points)

    def test_entries_that_are_not_those_of_the_commit(self):
        log = MemoryChangelog()
        run_count(range(10), log)
        block: Any = log._groups[0][0][1][0]
        prefix, sub, _ = block[0]
        block[0] = (prefix, sub, b"\x07")
        with pytest.raises(errors.CorruptionError, match="their hash differs"):
            run_count(range(10), restore_from=log)
        del block[0]
        with pytest.raises(errors.CorruptionError, match="9 entries were restored, batch 0 had 10"):
            run_count(range(10), restore_from=log)


class Twice(KeyedProcessFunction):
    """Counts what it gets."""

    total = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + 1)
        yield self.total.value()


def run_two(changelogs: list[Any], restore_from: list[Any], rows: int = 50, **options: Any) -> Any:
    """Two operators, of which each may have a changelog."""
    first = (
        keyed.stream(range(rows))
        .key_by(lambda number: number % 10)
        .process(Count(), changelog=changelogs[0], restore_from=restore_from[0])
    )
    second = first.key_by(lambda value: value[0] % 2).process(
        Twice(), changelog=changelogs[1], restore_from=restore_from[1]
    )
    return second.run(rows_per_batch=10, drain=False, **options)


def test_operators_are_restored_at_one_batch():
    logs = [MemoryChangelog(), MemoryChangelog()]
    run_two(logs, [None, None])
    # One operator lacks the last two batches.
    del logs[1]._groups[0][-2:]
    result = run_two([None, None], logs)
    assert result.restored == Restored(2, with_position=True)
    assert result.batches == 2
    assert max(result.values) == 25


def test_an_operator_that_is_new_in_the_query_starts_empty_at_the_same_batch():
    logs = [MemoryChangelog(), MemoryChangelog()]
    run_two([logs[0], None], [None, None])
    new = MemoryChangelog()
    result = run_two([None, new], [logs[0], None], rows=70)
    assert (result.batches, max(result.values)) == (2, 10)
    # So they can be restored together from now on.
    assert [commit.sequence for commit, _ in new.reader(0).commits()] == [6, 7]


def test_files_of_a_local_store_that_was_left_are_not_taken_for_state(tmp_path: Path):
    """The folder of local stores outlives the checkpoint; what is in it is another log's."""
    log = MemoryChangelog()

    def run(rows: int, checkpoint: str, **changelogs: Any) -> Any:
        stream = keyed.stream(range(rows)).key_by(lambda number: number % 10)
        output = stream.process(Count(), store="rocksdb", **changelogs)
        return output.run(
            checkpoint=tmp_path / checkpoint, local_dir=tmp_path / "stores", drain=False, rows_per_batch=10
        )

    run(50, "first", changelog=log)
    run(90, "other")
    assert [value for _, value in run(60, "second", restore_from=log).values] == [6] * 10
