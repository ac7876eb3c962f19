"""Tables follow a job, say how far they are behind, and are taken over with what the changelog has beyond them."""

from __future__ import annotations

from typing import Any

import pytest

import keyed
from keyed import KeyedProcessFunction, ValueState
from keyed.changelog.directory import DirectoryChangelog
from keyed.errors import DefinitionError
from keyed.job.results import Restored
from keyed.tables import StateTables, open_tables
from keyed.tables.follower import Lag
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life
from tests.keyed.recovery.test_restore import Stop, broken_off, run_count, stopped_after
from tests.support.tables import poll_tables


@pytest.fixture
def log(tmp_path):
    return DirectoryChangelog(tmp_path / "log", auto_compact=False)


def test_a_copy_follows_and_a_restore_reads_only_what_it_lacks(tmp_path, log):
    checkpoint = {"checkpoint": tmp_path / "checkpoint", "parallelism": 3}
    run_count(range(60), log, **checkpoint)
    with open_tables(log, tmp_path / "standby") as standby:
        # Six batches, each of which changes the counts of ten keys.
        assert standby.lag() == Lag(60, 5.0)
        assert standby.poll() == 60
        assert standby.lag() == Lag(0, 0.0)
        run_count(range(90), log, **checkpoint)
        assert standby.lag().records == 30
        assert standby.poll() == 30
        assert standby.poll() == 0
    run_count(range(120), log, **checkpoint)
    # It goes on from what it has.
    with open_tables(log, tmp_path / "standby") as standby:
        assert standby.lag().records == 30
    point = keyed.RestorePoint(log, standby=tmp_path / "standby")
    metrics = run_count(range(130), restore_from=point, parallelism=2).metrics["Count"]
    assert (metrics["records_restored"], metrics["rows_in"], metrics["live_entries"]) == (30, 130, 10)


def test_taking_over_leaves_nothing_to_read(tmp_path, log):
    run_count(range(60), log)
    point = open_tables(log, tmp_path / "standby").take_over()["Count"]
    result = run_count(range(70), DirectoryChangelog(tmp_path / "new"), point)
    assert result.restored == Restored(5, with_position=True)
    assert result.metrics["Count"]["records_restored"] == 0
    assert [value for _, value in result.values] == [7] * 10


def test_it_follows_a_running_job_in_a_thread(tmp_path, log):
    standby: list[StateTables] = []

    def on_progress(progress: Any) -> None:
        if progress.batch_id == 3:
            standby.append(open_tables(log, tmp_path / "standby").start(every=0.001))
        if progress.batch_id > 3:
            # A batch is exported when the next one begins.
            before = progress.batch_id - 1
            assert standby[0].wait_for(before, 300) == before

    run_count(range(100), log, on_progress=on_progress)
    point = standby[0].take_over()["Count"]
    assert run_count(range(110), restore_from=point).metrics["Count"]["records_restored"] == 0


def test_all_groups_of_the_copy_are_at_one_batch(tmp_path, log):
    run_count(range(60), log, parallelism=2)
    # One group lacks the last two batches.
    for name in sorted((tmp_path / "log" / "groups" / "00001").iterdir())[-2:]:
        name.unlink()
    with poll_tables(log, tmp_path / "standby") as standby:
        assert standby.batch == 3
    point = keyed.RestorePoint(log, standby=tmp_path / "standby")
    result = run_count(range(70), restore_from=point)
    assert result.restored == Restored(3, with_position=True)
    assert result.metrics["Count"]["records_restored"] == 0
    assert [value for _, value in result.values[-10:]] == [7] * 10


@pytest.mark.parametrize(("history", "read"), [(60_000, 0), (0, 20)])
def test_a_past_state_is_taken_from_a_copy_that_still_has_it(tmp_path, log, history, read):
    run_count(range(60), log, parallelism=2)
    with poll_tables(log, tmp_path / "standby", history=history):
        pass
    point = keyed.RestorePoint(log, as_of=1, standby=tmp_path / "standby")
    result = run_count(range(60), restore_from=point, parallelism=3)
    assert (result.batches, result.metrics["Count"]["records_restored"]) == (4, read)
    assert sorted(value for _, value in result.values[-10:]) == [6] * 10
    # And the copy is left as it is.
    with open_tables(log, tmp_path / "standby") as standby:
        assert standby.poll() == 0


def test_a_restored_job_is_followed_and_taken_over_at_any_parallelism(tmp_path, log):
    run_count(range(60), log, parallelism=2)
    folder = tmp_path / "standby"
    with poll_tables(log, folder):
        pass
    logs = [log]
    for number, parallelism in enumerate((3, 4, 1), 1):
        logs.append(DirectoryChangelog(tmp_path / str(number)))
        run_count(
            range(60 + 20 * number), logs[-1], keyed.RestorePoint(logs[-2], standby=folder), parallelism=parallelism
        )
        with poll_tables(logs[-1], folder) as standby:
            assert (standby.rebuilds, standby.batch) == (0, 5 + 2 * number)
    point = keyed.RestorePoint(logs[-1], standby=folder)
    result = run_count(range(130), restore_from=point, parallelism=3)
    assert result.metrics["Count"]["records_restored"] == 0
    assert sorted(value for _, value in result.values[-10:]) == [13] * 10


def test_a_copy_of_another_changelog_is_not_used(tmp_path, log):
    run_count(range(60), log)
    with poll_tables(log, tmp_path / "standby"):
        pass
    other = DirectoryChangelog(tmp_path / "other")
    run_count(range(20), other)
    for folder in (tmp_path / "standby", tmp_path / "nothing"):
        result = run_count(range(30), restore_from=keyed.RestorePoint(other, standby=folder))
        assert result.metrics["Count"]["records_restored"] == 20


def test_tables_that_are_only_read_cannot_be_taken_over(tmp_path, log):
    run_count(range(60), log)
    with poll_tables(log, tmp_path / "standby"), keyed.tables.read_tables(tmp_path / "standby") as reading:
        for ask in (reading.take_over, reading.lag):
            with pytest.raises(DefinitionError, match="another program writes these tables"):
                ask()


class Large(KeyedProcessFunction):
    """Keeps a large value."""

    value = ValueState(bytes)

    def process_element(self, value, ctx):
        self.value.update(b"%4d" % value * 1_000)
        return ()


def test_large_commits_are_applied_whole(tmp_path, log):
    keyed.stream(range(3_000)).key_by(lambda number: number).process(Large(), changelog=log).run(drain=False)
    commits = log.reader(0).commits()
    commit, blocks = next(commits)
    assert len(list(blocks)) > 8
    with open_tables(log, tmp_path / "standby") as standby:
        assert standby.poll() == commit.records == 3_000
        assert standby.batch == 0


@pytest.mark.parametrize("name", ["functions", "tables", pytest.param("sessions", marks=pytest.mark.long)])
def test_jobs_of_all_kinds_are_taken_over(tmp_path, name):
    undisturbed = Life(tmp_path / "undisturbed", name)
    jobs.run(undisturbed)
    life = Life(tmp_path / "job", name)
    broken_off(life, 5)
    standby = open_tables([life.changelog(operator, 0) for operator in life.operators()], life.folder / "standby")
    assert standby.poll() > 0
    with pytest.raises(Stop):
        jobs.run(life, on_progress=stopped_after(9))
    standby.take_over()
    life.lose_checkpoint()
    jobs.run(life, standby=True)
    assert jobs.written(life.folder) == jobs.written(undisturbed.folder)
    assert jobs.final_state(life) == jobs.final_state(undisturbed)
