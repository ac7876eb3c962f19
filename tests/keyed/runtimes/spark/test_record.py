"""A job on Spark records its input, and is replayed from the record: two sides, a restored query, refusals."""

from __future__ import annotations

import pytest

import keyed
from keyed import bounded_out_of_orderness
from keyed.changelog import DirectoryChangelog
from keyed.errors import ChangelogError, DefinitionError
from keyed.testing import Recording, replay
from tests.keyed.runtimes.spark.functions import COUNTED, SCHEMA, Both, Count, files, write_file
from tests.keyed.runtimes.test_two_inputs import rows_of, tuples

DELAY = bounded_out_of_orderness(5)
COUNTS = "k string, first int, second int"


class Doubled(Count):
    """Counts each row twice."""

    def process_element(self, value, ctx):
        yield from super().process_element(value, ctx)
        yield from super().process_element(value, ctx)


def counting(source, **options):
    stream = keyed.stream(source, timestamp="t", watermark=DELAY).key_by("k")
    return stream.process(Count(), COUNTED, name="count", parallelism=2, **options)


def test_what_a_query_has_recorded_is_replayed(spark, tmp_path):
    rows = tuples(rows_of(1, 60, disorder=5))
    for number in range(3):
        write_file(tmp_path / "in", number, rows[number * 20 : number * 20 + 20])
    changelog, record = DirectoryChangelog(tmp_path / "log"), tmp_path / "record"
    job = counting(files(spark, tmp_path / "in"), changelog=changelog)
    job.run(checkpoint=tmp_path / "ck", record=record, drain=True)
    recording = Recording(record)
    assert sorted(tuple(row.value) for row in recording.between(-1, 99)) == sorted(rows)
    assert [len(recording.batch(number)) for number in range(3)] == [20, 20, 20]
    assert {path.stat().st_mode & 0o777 for path in record.glob("part-*")} == {0o600}
    for first in (0, 1):
        done = replay(changelog, Count(), Count(), recording, key="k", watermark=DELAY, first=first)
        assert done.lines == ()
        assert done.rows == 60 - 20 * first
    changed = replay(changelog, Count(), Doubled(), recording, key="k", watermark=DELAY)
    assert any(line.startswith("+ state") for line in changed.lines)
    with pytest.raises(ChangelogError, match=r"run it with record=folder and give Recording"):
        replay(changelog, Count(), Count(), [], key="k")


@pytest.mark.long
def test_a_restored_query_goes_on_in_the_record(spark, tmp_path):
    rows = tuples(rows_of(1, 30, disorder=5))
    write_file(tmp_path / "in", 0, rows[:20])
    changelog, again, record = (
        DirectoryChangelog(tmp_path / "log"),
        DirectoryChangelog(tmp_path / "log2"),
        tmp_path / "record",
    )
    counting(files(spark, tmp_path / "in"), changelog=changelog).run(checkpoint=tmp_path / "ck", record=record)
    write_file(tmp_path / "in", 1, rows[20:])
    restored = counting(files(spark, tmp_path / "in"), changelog=again, restore_from=changelog)
    restored.run(checkpoint=tmp_path / "ck2", record=record)
    recording = Recording(record)
    assert sorted(tuple(row.value) for row in recording.between(-1, 99)) == sorted(rows)
    first = max(number for number, _ in again.positions())
    assert replay(again, Count(), Count(), recording, key="k", watermark=DELAY, first=first).rows == 10


@pytest.mark.long
def test_both_sides_of_a_query_are_recorded(spark, tmp_path):
    left, right = rows_of(1, 30, disorder=5), rows_of(2, 20, key="other", time="u", disorder=5)
    write_file(tmp_path / "in", 0, tuples(left))
    write_file(tmp_path / "in2", 0, tuples(right))
    sources = [
        files(spark, tmp_path / "in"),
        files(spark, tmp_path / "in2").withColumnsRenamed({"k": "other", "t": "u"}),
    ]
    first, second = (
        keyed.stream(source, timestamp=time, watermark=DELAY) for source, time in zip(sources, "tu", strict=True)
    )
    changelog = DirectoryChangelog(tmp_path / "log")
    both = first.connect(second).key_by("k", "other").process(Both(), COUNTS, parallelism=2, changelog=changelog)
    both.run(checkpoint=tmp_path / "ck", record=tmp_path / "record")
    recording = Recording(tmp_path / "record")
    assert [sum(row.input == side for row in recording.between(-1, 99)) for side in (1, 2)] == [30, 20]
    done = replay(changelog, Both(), Both(), recording, key="k", key2="other", watermark=DELAY)
    assert (done.rows, done.lines) == (50, ())


def test_a_batch_dataframe_records_nothing(spark, tmp_path):
    with pytest.raises(DefinitionError, match="record="):
        counting(spark.createDataFrame([("a", 1, 1)], SCHEMA)).run(record=tmp_path / "record")
