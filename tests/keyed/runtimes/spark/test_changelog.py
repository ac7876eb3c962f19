"""Changelogs of Spark queries: what is exported, flushed and verified, and restored where the checkpoint is lost."""

import logging
import shutil
from pathlib import Path

import pytest

import keyed
from keyed import RestorePoint, bounded_out_of_orderness
from keyed.changelog import DirectoryChangelog
from keyed.cli.main import main
from keyed.content.contents import MODULUS, hash_of_text
from keyed.errors import ChangelogDiverged, CheckpointError, OperatorChanged, UserFunctionError
from keyed.job.results import Restored, RestoreProgress
from keyed.recovery import verify
from keyed.testing.changelog_conformance import state_of
from tests.keyed.runtimes.spark.functions import (
    BIG,
    COUNTED,
    Best,
    BestColumns,
    CompactedMeanwhile,
    Count,
    CountColumns,
    CountInWindows,
    Lottery,
    best,
    count,
    files_source,
    parquet_rows,
    random_rows,
    write_file,
)
from tests.support.waiting import until

KEYS = [*"abcdefg"]
ROWS = 150
LATENESS = bounded_out_of_orderness(milliseconds=30)
OPERATORS = ("windows", "best")


def rows_of(number):
    return random_rows(number, ROWS, number * ROWS, 50)


def write_files(folder, numbers):
    for number in numbers:
        write_file(folder / "in", number, rows_of(number))


def elements(numbers):
    return [{"k": k, "t": t, "v": v} for number in numbers for k, t, v in rows_of(number)]


def changelogs(folder):
    """A changelog for each operator of the chain of two stages."""
    return {name: DirectoryChangelog(folder / name, auto_compact=False) for name in OPERATORS}


def total(changelog):
    """Sequence, number of entries, hash and clocks that the newest markers of all key groups have together."""
    header = changelog.header()
    assert header is not None
    markers = [changelog.reader(group).last() for group in range(header.parallelism)]
    (sequence, watermark) = {(marker.sequence, marker.watermark) for marker in markers if marker}.pop()
    assert all(marker and (marker.sequence, marker.watermark) == (sequence, watermark) for marker in markers)
    hashes = sum(hash_of_text(marker.hash, "") for marker in markers) % MODULUS
    return sequence, sum(marker.entries for marker in markers), hashes, watermark


def committed(checkpoint):
    """Return the number of batches that Spark has committed."""
    return 1 + max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))


def assert_sound(changelog):
    """Every commit is what its marker says."""
    assert [found.problem for found in verify(changelog) if found.problem] == []


def assert_same(spark, checkpoint, changelog, operator):
    """A checkpoint and its changelog hold the same, entry by entry."""
    found = keyed.recovery.verify(checkpoint, changelog, session=spark)
    assert [(each.problem, each.note) for each in found] == [("", "")] * len(found)
    return found


@pytest.mark.long
@pytest.mark.parametrize("columns", [pytest.param(False, id="rows"), pytest.param(True, id="columns")])
def test_a_lost_checkpoint_is_restored_at_another_parallelism(spark, tmp_path, columns):
    functions = (CountColumns, BestColumns) if columns else (CountInWindows, Best)

    def run(source, logs, out, *, old=None, parallelism=None, store="memory", **options):
        by_stage = {name: {"changelog": logs[name], "restore_from": old[name] if old else None} for name in OPERATORS}
        windows, ranked = best(source, functions[0](), functions[1](), by_stage, parallelism=parallelism, store=store)
        sinks = [windows.to(out / "windows"), ranked.to(out / "best")]
        if not columns:
            sinks.append(windows.side_output(BIG).to(out / "late"))
        return keyed.run(*sinks, **options)

    write_files(tmp_path, range(3))
    source = files_source(spark, tmp_path / "in", watermark=LATENESS)
    logs, checkpoint = changelogs(tmp_path / "logs"), tmp_path / "ck"
    result = run(source, logs, tmp_path / "out", checkpoint=checkpoint)
    assert (result.batches, result.restored) == (3, None)
    # Everything is exported when the run ends, and what is exported is what the checkpoint has.
    for name in OPERATORS:
        assert total(logs[name])[0] == 3
        assert_sound(logs[name])
        assert len(assert_same(spark, checkpoint, logs[name], name)) == 2
    # The checkpoint alone gives another changelog the same state.
    exported = changelogs(tmp_path / "exported")
    assert keyed.recovery.flush(checkpoint, exported, session=spark) == {"windows": 2, "best": 2}
    for name in OPERATORS:
        assert total(exported[name]) == total(logs[name])
        assert_sound(exported[name])

    shutil.rmtree(checkpoint)
    write_files(tmp_path, range(3, 5))
    new = changelogs(tmp_path / "new")
    seen: list[keyed.Progress] = []
    told: list[RestoreProgress] = []
    options = {"checkpoint": tmp_path / "ck2", "local_dir": tmp_path / "stores", "store": "rocksdb"}
    options |= {"old": logs, "on_progress": seen.append, "on_restore": told.append}
    result = run(source, new, tmp_path / "out", parallelism=3, **options)
    # What was restored stays in the local store of the key group.
    assert len(list((tmp_path / "stores").iterdir())) == 3 * len(OPERATORS)
    assert result.restored == Restored(2, with_position=True)
    for progress in told:
        assert progress.groups_done == progress.groups == 2
        assert result.metrics[progress.operator]["records_restored"] == progress.records
    assert [(progress.operator, progress.records > 0) for progress in told] == [("windows", True), ("best", False)]
    # The first batch restores, and has an id of its own; the source goes on with the files that are new.
    assert [(progress.batch_id, progress.rows) for progress in seen] == [(3, 0), (4, ROWS), (5, ROWS)]
    for name in OPERATORS:
        assert_sound(new[name])
        assert len(assert_same(spark, tmp_path / "ck2", new[name], name)) == 3

    local_logs = changelogs(tmp_path / "local")
    local = keyed.stream(elements(range(5)), timestamp="t", watermark=LATENESS)
    options = {"rows_per_batch": ROWS, "checkpoint": tmp_path / "local-ck", "drain": False}
    run(local, local_logs, tmp_path / "expected", **options)
    for name in OPERATORS:
        assert total(new[name])[1:] == total(local_logs[name])[1:]
    for name in ("windows", "best", *([] if columns else ["late"])):
        assert parquet_rows(tmp_path / "out" / name) == parquet_rows(tmp_path / "expected" / name), name


@pytest.mark.long
def test_a_batch_that_is_run_again_with_another_result_leaves_log_and_state_the_same(spark, tmp_path):
    # What the first attempt at a batch did was random, and it had exported the batch before when it failed.
    changelog, checkpoint = DirectoryChangelog(tmp_path / "log"), tmp_path / "ck"
    for number in range(4):
        rows = rows_of(number)
        if number in (1, 3):
            rows[ROWS // 2] = ("a", number * ROWS, Lottery.RAISES - number)
        write_file(tmp_path / "in", number, rows)
    source = files_source(spark, tmp_path / "in")
    drawn = source.key_by("k").process(Lottery(str(tmp_path)), "k string, n bigint", name="drawn", changelog=changelog)
    exported = []
    for _ in range(2):
        with pytest.raises(UserFunctionError, match="mishap"):
            drawn.run(checkpoint=checkpoint)
        # The task that failed had exported the batch before; one of another key group may have ended before it did.
        exported.append(max(marker.sequence for group in range(2) if (marker := changelog.reader(group).last())))
    result = drawn.run(checkpoint=checkpoint)
    assert exported == [1, 3]
    assert result.metrics["drawn"]["rows_in"] == 4 * ROWS
    # All four files are exported; a batch of nothing but a tick after them is left to `flush`.
    assert total(changelog)[0] in (4, committed(checkpoint))
    keyed.recovery.flush(checkpoint, {"drawn": changelog}, session=spark)
    assert total(changelog)[0] == committed(checkpoint)
    assert_sound(changelog)
    assert_same(spark, checkpoint, changelog, "drawn")


@pytest.mark.long
def test_a_query_written_by_hand_is_flushed_and_its_state_alone_restored(spark, tmp_path, caplog, capsys):
    changelog, checkpoint = DirectoryChangelog(tmp_path / "log"), tmp_path / "ck"
    write_files(tmp_path, range(2))

    def by_hand(**options):
        frame = count(files_source(spark, tmp_path / "in"), parallelism=2, **options).df
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    by_hand(changelog=changelog)
    assert total(changelog)[0] == 1
    with pytest.raises(OperatorChanged, match="no operator 'other'; it has"):
        keyed.recovery.flush(checkpoint, {"other": changelog}, session=spark)
    for _ in range(2):
        assert keyed.recovery.flush(checkpoint, {"count": changelog}, session=spark) == {"count": 2}
    assert_same(spark, checkpoint, changelog, "count")
    assert list(changelog.positions()) == []
    # The next run begins after the flush.
    write_files(tmp_path, [2])
    by_hand(changelog=changelog)
    assert main(["flush", str(checkpoint), f"count={changelog.path}"]) == 0
    assert main(["verify", changelog.path, "--checkpoint", str(checkpoint)]) == 0
    flushed, _, *groups = capsys.readouterr().out.splitlines()
    assert flushed == "count: commit 3"
    assert [group.split()[:3] for group in groups] == [["0", "3", "3"], ["1", "3", "3"]]
    assert_sound(changelog)

    new = DirectoryChangelog(tmp_path / "new")
    restored = count(files_source(spark, tmp_path / "in"), changelog=new, restore_from=changelog)
    with caplog.at_level(logging.WARNING):
        result = restored.run(checkpoint=tmp_path / "ck2")
    assert "batch 3 is restored without a position" in caplog.text
    assert result.restored == Restored(2, with_position=False)
    # The source was read from its beginning once more.
    assert max(row.n for row in result.values) == 2 * max(
        sum(element["k"] == key for element in elements(range(3))) for key in KEYS
    )
    assert total(new)[:2] == (6, len(KEYS))

    caplog.clear()
    checkpoint = tmp_path / "ck3"
    with caplog.at_level(logging.WARNING):
        by_hand(restore_from=RestorePoint(changelog, as_of=1))
    assert "the position of ['count'] is not restored with the DataFrame" in caplog.text
    found = DirectoryChangelog(tmp_path / "of-ck3")
    keyed.recovery.flush(checkpoint, {"count": found}, session=spark)
    assert total(found)[:2] == (4, len(KEYS))


def test_a_query_that_is_stopped_has_exported_all_it_did(spark, tmp_path, monkeypatch):
    changelog, checkpoint = DirectoryChangelog(tmp_path / "log"), tmp_path / "ck"
    write_files(tmp_path, [0])
    counted = count(files_source(spark, tmp_path / "in"), changelog=changelog)
    query = counted.start(tmp_path / "out", checkpoint=checkpoint, trigger="100 milliseconds")
    until(lambda: (query.progress is not None and len(query.batches) >= 2) or not query.is_active)
    assert query.is_active
    # The last batch is a tick's, which exports the one before it and does nothing more: that is not waited for.
    monkeypatch.setattr("keyed.runtimes.spark.query.exports.export_last", lambda *_: pytest.fail("a flush"))
    query.stop()
    query.stop()
    # It may have been published.
    exported = total(changelog)[0]
    assert committed(checkpoint) - 1 <= exported <= committed(checkpoint)
    assert [sequence for sequence, _ in changelog.positions()] == list(range(1, exported + 1))
    keyed.recovery.flush(checkpoint, {"count": changelog}, session=spark)
    assert_same(spark, checkpoint, changelog, "count")


@pytest.mark.long
def test_batches_after_the_end_of_the_input_commit_nothing_and_have_no_position(spark, tmp_path):
    changelog, checkpoint = DirectoryChangelog(tmp_path / "log"), tmp_path / "ck"
    write_files(tmp_path, [0])
    counted = count(files_source(spark, tmp_path / "in"), changelog=changelog)
    counted.run(checkpoint=checkpoint, drain=True)
    found = total(changelog), list(changelog.positions())
    assert found[0][0] == len(found[1]) == committed(checkpoint) == 2
    for _ in range(2):
        counted.run(checkpoint=checkpoint)
        assert (total(changelog), list(changelog.positions())) == found
    assert committed(checkpoint) > 2


@pytest.mark.long
def test_a_past_batch_is_restored_and_the_source_goes_on_after_it(spark, tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    write_files(tmp_path, range(3))
    count(files_source(spark, tmp_path / "in"), changelog=changelog).run(tmp_path / "a", checkpoint=tmp_path / "ck")
    past = RestorePoint(changelog, as_of=1)
    new = DirectoryChangelog(tmp_path / "new")
    again = count(files_source(spark, tmp_path / "in"), changelog=new, restore_from=past, parallelism=1)
    seen: list[keyed.Progress] = []
    result = again.run(tmp_path / "b", checkpoint=tmp_path / "ck2", on_progress=seen.append)
    assert result.restored == Restored(0, with_position=True)
    assert [(progress.batch_id, progress.rows) for progress in seen] == [(1, 0), (2, ROWS), (3, ROWS)]
    first = {path.name for path in (tmp_path / "a").glob("part-0000000000-*")}
    assert first
    for name in first:
        shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    assert parquet_rows(tmp_path / "a") == parquet_rows(tmp_path / "b")
    assert state_of(new.reader(0)) == {
        address: value for group in range(2) for address, value in state_of(changelog.reader(group)).items()
    }


@pytest.mark.long
def test_a_restore_whose_cut_is_compacted_away_meanwhile_takes_a_newer_one(spark, tmp_path):
    changelog = CompactedMeanwhile(tmp_path / "log", compaction_lag=0, auto_compact=False)
    source, out = files_source(spark, tmp_path / "in"), tmp_path / "out"
    job = count(source, changelog=changelog, parallelism=1)
    write_files(tmp_path, range(2))
    job.run(out, checkpoint=tmp_path / "ck")
    shutil.copytree(tmp_path / "log", tmp_path / "early")
    write_files(tmp_path, range(2, 4))
    job.run(out, checkpoint=tmp_path / "ck")
    changelog.compact()
    (tmp_path / "log").rename(tmp_path / "log-later")
    (tmp_path / "early").rename(tmp_path / "log")
    write_files(tmp_path, [4])
    result = count(source, restore_from=changelog, parallelism=1).run(out, checkpoint=tmp_path / "ck2")
    assert result.restored == Restored(3, with_position=True)
    expected = count(keyed.stream(elements(range(5)), timestamp="t")).run(rows_per_batch=ROWS)
    assert parquet_rows(out) == sorted(map(tuple, expected.values))


@pytest.mark.long
def test_a_changelog_of_another_checkpoint_is_refused(spark, tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    write_files(tmp_path, [0])
    job = count(files_source(spark, tmp_path / "in"), changelog=changelog)
    job.run(checkpoint=tmp_path / "ck")
    with pytest.raises(ChangelogDiverged, match="its checkpoint is new"):
        job.run(checkpoint=tmp_path / "other")
    assert total(changelog)[0] == 1
    # Nor does a flush, or a run, leave anything in it, not even a position.
    positions = list(changelog.positions())
    for file in (1, 2):
        write_files(tmp_path, [file])
        count(files_source(spark, tmp_path / "in")).run(checkpoint=tmp_path / "third")
    with pytest.raises(ChangelogDiverged, match="was written from another checkpoint"):
        keyed.recovery.flush(tmp_path / "third", {"count": changelog}, session=spark)
    write_files(tmp_path, [3])
    with pytest.raises(ChangelogDiverged, match="was written from another checkpoint"):
        job.run(checkpoint=tmp_path / "third")
    assert list(changelog.positions()) == positions


@pytest.mark.smoke
def test_a_changelog_on_a_batch_dataframe_is_refused(spark, tmp_path):
    frame = spark.createDataFrame([("a", 1, 1)], "k string, t bigint, v bigint")
    stream = keyed.stream(frame, timestamp="t").key_by("k")
    with pytest.raises(keyed.errors.DefinitionError, match="a batch DataFrame has no checkpoint"):
        stream.process(Count(), COUNTED, changelog=DirectoryChangelog(tmp_path / "log")).run()
    assert not Path(tmp_path / "log").exists()


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["with space", "100%", "a#b"])
def test_a_checkpoint_that_spark_could_not_read_again_is_refused(spark, tmp_path, name):
    job = count(files_source(spark, tmp_path / "in"), changelog=DirectoryChangelog(tmp_path / "log"))
    with pytest.raises(CheckpointError, match="in its path"):
        job.run(checkpoint=tmp_path / name)
    with pytest.raises(CheckpointError, match="in its path"):
        keyed.recovery.flush(tmp_path / name, {}, session=spark)


def test_a_batch_dataframe_can_start_with_the_state_of_a_changelog(spark, tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    write_files(tmp_path, [0])
    count(files_source(spark, tmp_path / "in"), changelog=changelog).run(checkpoint=tmp_path / "ck")
    frame = spark.createDataFrame([("a", 10_000, 1)], "k string, t bigint, v bigint")
    counted = count(keyed.stream(frame, timestamp="t"), restore_from=changelog, parallelism=1)
    result = counted.run()
    assert result.restored == Restored(0, with_position=False)
    assert [row.n for row in result.values] == [sum(key == "a" for key, _, _ in rows_of(0)) + 1]
