"""Changelogs with an export interval on Spark: fewer files, and the same commits after failures and restores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import keyed
from keyed import RestorePoint
from keyed.changelog import DirectoryChangelog
from keyed.changelog.model import all_positions
from keyed.errors import DefinitionError, KeyedError
from keyed.job.results import Restored
from keyed.recovery import verify
from keyed.runtimes.spark.checkpoint.begin import decode_position
from keyed.runtimes.spark.session.spark_session import settings
from tests.keyed.runtimes.spark.functions import count, files_source, write_file
from tests.support.waiting import until

FILES = 9
HOUR = 3_600_000


def log_at(folder, interval=0):
    return DirectoryChangelog(folder / "log", auto_compact=False, export_interval=interval)


def write_files(folder, numbers):
    for number in numbers:
        write_file(folder / "in", number, [(f"k{i % 5}", number * 10 + i, number) for i in range(12)])


def changes(changelog):
    found = keyed.recovery.read_changelog(changelog, "seen")
    return sorted((change.commit.batch, change.key, change.value) for change in found)


def files(changelog, pattern="groups/*/*.segment"):
    return len([*Path(changelog.path).glob(pattern)])


def positions(changelog):
    """The batches after which the changelog has the position of the query."""
    found = [decode_position(record) for _, record in all_positions(changelog)]
    return [position.batch for position in found if position is not None]


def newest(changelog):
    """The newest batch that all key groups have exported."""
    return min(-1 if (last := changelog.reader(g).last()) is None else last.batch for g in range(2))


def states(changelog):
    """The state of each key group after each commit."""
    return [
        [
            (commit.sequence, commit.entries, commit.hash, commit.watermark)
            for commit, _ in changelog.reader(g).commits()
        ]
        for g in range(2)
    ]


@pytest.mark.slow
def test_a_failed_query_goes_on_and_is_restored_at_any_batch(spark, tmp_path):
    write_files(tmp_path, range(FILES))
    source = files_source(spark, tmp_path / "in")
    each = log_at(tmp_path / "each")
    count(source, changelog=each).run(tmp_path / "expected", checkpoint=tmp_path / "each-ck")

    together = log_at(tmp_path, HOUR)

    def failing(rows, batch):
        rows.collect()
        if batch == 6:
            raise RuntimeError("no disk")

    exported = {}

    def checked(rows, batch):
        rows.collect()
        exported[batch] = newest(together)
        # Each commit can be restored: the position after it was logged before it was exported.
        assert positions(together)[-1] >= exported[batch]

    counted = count(source, changelog=together)
    with pytest.raises(KeyedError, match="no disk"):
        keyed.run(counted.to(failing), checkpoint=tmp_path / "ck")
    # The first batch alone: the others wait in Spark's checkpoint.
    assert [len(found) for found in states(together)] == [1, 1]
    metrics = keyed.run(counted.to(checked), checkpoint=tmp_path / "ck").metrics["count"]
    # Batch 6 is run again without the tick with which the query starts. The next one has it.
    assert exported == {6: 0, 7: 6, 8: 6}
    assert states(together) == states(each)
    # The first batch, those up to the one that was run again, and those after it.
    assert files(together) == 2 * 3
    assert files(together, "positions/*") == 4
    assert metrics["records_exported"] > 0
    assert positions(together) == list(range(FILES))
    assert [found.problem for found in verify(together)] == ["", ""]
    found = verify(tmp_path / "ck", together, session=spark)
    assert [(group.problem, group.note) for group in found] == [("", "")] * 2

    expected = states(each)
    for batch in (4,):
        point = RestorePoint(together, as_of=batch)
        new = log_at(tmp_path / f"new-{batch}", HOUR)
        restored = count(source, changelog=new, restore_from=point, parallelism=3)
        result = restored.run(tmp_path / f"out-{batch}", checkpoint=tmp_path / f"ck-{batch}")
        assert result.restored == Restored(batch, with_position=True)
        assert [found.problem for found in verify(new)] == [""] * 3
        assert sum(marker.entries for g in range(3) if (marker := new.reader(g).last())) == sum(
            found[-1][1] for found in expected
        )
    shutil.rmtree(tmp_path / "ck")


@pytest.mark.slow
def test_an_idle_query_exports_what_waits_after_the_interval(spark, tmp_path):
    write_files(tmp_path, range(4))
    changelog = log_at(tmp_path, 2_000)
    source = files_source(spark, tmp_path / "in")
    query = count(source, changelog=changelog).start(
        tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds"
    )
    try:
        until(lambda: newest(changelog) >= 3)
    finally:
        query.stop()
    assert [found.problem for found in verify(changelog)] == ["", ""]


def test_a_query_whose_batches_spark_removes_before_their_export_is_refused(spark, tmp_path):
    write_files(tmp_path, range(1))
    query = count(files_source(spark, tmp_path / "in"), changelog=log_at(tmp_path, HOUR))
    few = settings(spark, {"spark.sql.streaming.minBatchesToRetain": "64"})
    with few, pytest.raises(DefinitionError, match=r"'count', changelog=: .*keeps 64 there; set .*minBatchesToRetain"):
        query.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    assert not (tmp_path / "log").exists()
