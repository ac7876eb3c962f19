"""A standby follows a running job, says how far it is behind, and takes over with what the changelog has beyond it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import keyed
from keyed import ChangelogError, CorruptionError, KeyedProcessFunction, LocalStoreError, ValueState
from keyed.changelog.directory import DirectoryChangelog
from keyed.recovery import Lag, Standby
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life
from tests.keyed.recovery.test_restore import Stop, broken_off, run_count, stopped_after


@pytest.fixture
def log(tmp_path):
    return DirectoryChangelog(tmp_path / "log", auto_compact=False)


def test_a_copy_follows_and_a_restore_reads_only_what_it_lacks(tmp_path, log):
    checkpoint = {"checkpoint": tmp_path / "checkpoint", "parallelism": 3}
    run_count(range(60), log, **checkpoint)
    with Standby(log, tmp_path / "standby") as standby:
        # Six batches, each of which changes the counts of ten keys.
        assert standby.lag() == Lag(60, 5.0)
        assert standby.catch_up() == 60
        assert standby.lag() == Lag(0, 0.0)
        run_count(range(90), log, **checkpoint)
        assert standby.lag().records == 30
        assert standby.catch_up() == 30
        assert standby.catch_up() == 0
    run_count(range(120), log, **checkpoint)
    # It goes on from what it has.
    standby = Standby(log, tmp_path / "standby")
    assert standby.lag().records == 30
    standby.close()
    point = keyed.RestorePoint(log, standby=tmp_path / "standby")
    metrics = run_count(range(130), restore_from=point, parallelism=2).metrics["Count"]
    assert (metrics["records_restored"], metrics["rows_in"], metrics["live_entries"]) == (30, 130, 10)


def test_taking_over_leaves_nothing_to_read(tmp_path, log):
    run_count(range(60), log)
    point = Standby(log, tmp_path / "standby").take_over()
    result = run_count(range(70), DirectoryChangelog(tmp_path / "new"), point)
    assert result.restored == keyed.Restored(6, with_position=True)
    assert result.metrics["Count"]["records_restored"] == 0
    assert [value for _, value in result.values] == [7] * 10


def test_it_follows_a_running_job_in_a_thread(tmp_path, log):
    standby: list[Standby] = []

    def on_progress(progress: Any) -> None:
        if progress.batch_id == 3:
            standby.append(Standby(log, tmp_path / "standby").start(every=0.001))
        if progress.batch_id > 3:
            # Batch n is exported when batch n + 1 begins.
            there = log.header().log_id, progress.batch_id
            assert _waited(lambda: standby[0]._stores[0].position() == there)

    run_count(range(100), log, on_progress=on_progress)
    assert run_count(range(110), restore_from=standby[0].take_over()).metrics["Count"]["records_restored"] == 0


def _waited(condition: Any) -> bool:
    """Wait for a condition that another thread brings about."""
    wait = threading.Event()
    return any(condition() or wait.wait(0.01) for _ in range(1_000))


def test_all_groups_of_the_copy_are_at_one_batch(tmp_path, log):
    run_count(range(60), log, parallelism=2)
    # One group lacks the last two batches.
    for name in sorted((tmp_path / "log" / "groups" / "00001").iterdir())[-2:]:
        name.unlink()
    with Standby(log, tmp_path / "standby") as standby:
        standby.catch_up()
        assert [store.position() for store in standby._stores] == [(log.header().log_id, 4)] * 2
    point = keyed.RestorePoint(log, standby=tmp_path / "standby")
    result = run_count(range(70), restore_from=point)
    assert result.restored == keyed.Restored(4, with_position=True)
    assert result.metrics["Count"]["records_restored"] == 0
    assert [value for _, value in result.values[-10:]] == [7] * 10


def test_a_past_state_is_not_taken_from_a_copy_beyond_it(tmp_path, log):
    run_count(range(60), log)
    with Standby(log, tmp_path / "standby") as standby:
        standby.catch_up()
    point = keyed.RestorePoint(log, until=2, standby=tmp_path / "standby")
    result = run_count(range(60), restore_from=point)
    assert (result.batches, result.metrics["Count"]["records_restored"]) == (4, 20)
    # And the copy is left as it is.
    with Standby(log, tmp_path / "standby") as standby:
        assert standby.catch_up() == 0


def test_a_copy_that_was_away_for_too_long_is_built_anew(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", compaction_lag=0, auto_compact=False)
    checkpoint = {"checkpoint": tmp_path / "checkpoint"}
    run_count(range(60), log, **checkpoint)
    with Standby(log, tmp_path / "standby") as standby:
        standby.catch_up()
        run_count(range(200), log, **checkpoint)
        log.compact()
        # Ten counts in the base, and ten changes in the newest commit.
        assert standby.lag().records == 20
        assert standby.catch_up() == 20
    point = keyed.RestorePoint(log, standby=tmp_path / "standby")
    assert run_count(range(210), restore_from=point).metrics["Count"]["rows_in"] == 210


def test_a_changelog_that_is_not_there_yet(tmp_path, log):
    with pytest.raises(ChangelogError, match="start the job"):
        Standby(log, tmp_path / "standby")
    log.prepare("Count", 2)
    with Standby(log, tmp_path / "standby") as standby:
        assert standby.catch_up() == 0
        assert standby.lag() == Lag(0, 0.0)


def test_a_folder_in_use_is_refused(tmp_path, log):
    run_count(range(60), log)
    with (
        Standby(log, tmp_path / "standby"),
        pytest.raises(LocalStoreError, match="in use by another standby"),
    ):
        Standby(log, tmp_path / "standby")


def test_a_changelog_that_is_away_for_a_while_is_followed_again(tmp_path, log, caplog):
    run_count(range(60), log)
    header, away = tmp_path / "log" / "header", tmp_path / "log" / "away"
    with Standby(log, tmp_path / "standby") as standby:
        header.rename(away)
        standby.start(every=0.001)
        assert _waited(lambda: "tries again: there is no changelog" in caplog.text)
        away.rename(header)
        assert _waited(lambda: standby._stores[0].position() is not None)
        assert standby.take_over().changelog == log


def test_what_the_thread_fails_with_is_raised_when_it_is_stopped(tmp_path, log):
    run_count(range(60), log)
    segment = sorted((tmp_path / "log" / "groups" / "00000").iterdir())[2]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    standby = Standby(log, tmp_path / "standby").start(every=0.001)
    assert _waited(lambda: standby._error is not None)
    with pytest.raises(CorruptionError):
        standby.take_over()
    standby.close()


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
    with Standby(log, tmp_path / "standby") as standby:
        assert standby.catch_up() == commit.records == 3_000
        (position,) = {store.position() for store in standby._stores}
        assert position == (log.header().log_id, 1)


@pytest.mark.parametrize("name", ["functions", "tables", "sessions"])
def test_jobs_of_all_kinds_are_taken_over(tmp_path, name):
    undisturbed = Life(tmp_path / "undisturbed", name)
    jobs.run(undisturbed)
    life = Life(tmp_path / "job", name)
    broken_off(life, 5)
    standbys = [Standby(life.changelog(operator, 0), life.folder / "standby") for operator in life.operators()]
    for standby in standbys:
        assert standby.catch_up() > 0
    with pytest.raises(Stop):
        jobs.run(life, on_progress=stopped_after(9))
    for standby in standbys:
        standby.take_over()
    life.lose_checkpoint()
    jobs.run(life, standby=True)
    assert jobs.written(life.folder) == jobs.written(undisturbed.folder)
    assert jobs.final_state(life) == jobs.final_state(undisturbed)
