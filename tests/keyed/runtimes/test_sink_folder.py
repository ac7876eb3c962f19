"""Ownership of a Parquet sink's folder, and outputs that go to one sink."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import attrs
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import DirectoryChangelog, KeyedProcessFunction, OutputTag, RestorePoint, ValueState
from keyed.destinations.parquet import MARK, LocalFolder, ParquetSink, SparkFolder, claim_folder
from keyed.destinations.sink import Owner, SinkBatch, decode_mark, encode_mark
from keyed.errors import CorruptionError, DefinitionError, SinkError
from keyed.rows import row_class
from keyed.runtimes.spark.query import stream_job
from keyed.runtimes.spark.query.spark_sinks import Writer
from keyed.runtimes.spark.session import spark_session
from tests.keyed.runtimes.spark.functions import count, files_source, parquet_rows, write_file

EVEN = OutputTag("even", "k string, n bigint")


class Count(KeyedProcessFunction):
    n = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + 1)
        if self.n.value() % 2 == 0:
            ctx.output(EVEN, (value.k, self.n.value()))
        yield value.k, self.n.value()


def counts(source, **options):
    return keyed.stream(source).key_by("k").process(Count(), "k string, n bigint", **options)


def elements(number, key="a"):
    return [{"k": key}] * number


# Two outputs ----------------------------------------------------------------------------------------------------------


def test_two_outputs_into_one_sink_are_refused_by_whatever_names(tmp_path, monkeypatch):
    output = counts(elements(4))
    side = output.side_output(EVEN)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    same = [
        ("there", "there"),
        ("there", "there/"),
        ("there", tmp_path / "there"),
        ("there", "x/../there"),
        ("there", "link"),
        ("there", (tmp_path / "there").as_uri()),
        ("link/new", "there/new"),
        ("s3a://bucket/out", "S3A://bucket//out/"),
    ]
    for first, second in same:
        with pytest.raises(DefinitionError, match=r"two outputs go to the folder .*a sink of its own"):
            keyed.run(output.to(first), side.to(second))
    shared = keyed.collect_sink()
    with pytest.raises(DefinitionError, match=r"two outputs go to one collect_sink\(\)"):
        keyed.run(output.to(shared), side.to(shared))
    assert list((tmp_path / "there").iterdir()) == []
    assert shared.values == []
    both = keyed.collect_sink(), keyed.collect_sink()
    keyed.run(output.to(both[0]), side.to(both[1]))
    assert (len(both[0].values), len(both[1].values)) == (4, 2)


# One folder, one query ------------------------------------------------------------------------------------------------


def test_another_query_s_folder_is_refused_and_left_as_it_is(tmp_path):
    out = tmp_path / "out"
    counts(elements(4)).run(out, checkpoint=tmp_path / "first", rows_per_batch=2)
    before = parquet_rows(out)
    for options in ({}, {"checkpoint": tmp_path / "second"}, {"checkpoint": tmp_path / "second", "rows_per_batch": 9}):
        with pytest.raises(
            SinkError, match=r'written by the query \w{32}.*the checkpoint.*another folder.*"overwrite"'
        ):
            counts(elements(9, "b")).run(out, **options)
    assert parquet_rows(out) == before
    counts(elements(6)).run(out, checkpoint=tmp_path / "first", rows_per_batch=1)
    assert parquet_rows(out) == [("a", n) for n in range(1, 7)]


def test_overwrite_replaces_what_another_query_wrote_and_goes_on_in_its_own(tmp_path):
    sink = keyed.parquet_sink(tmp_path / "out", mode="overwrite")
    counts(elements(4)).run(sink, rows_per_batch=1)
    counts(elements(2, "b")).run(sink, checkpoint=tmp_path / "ck", rows_per_batch=1)
    assert parquet_rows(tmp_path / "out") == [("b", 1), ("b", 2)]
    counts(elements(3, "b")).run(sink, checkpoint=tmp_path / "ck", rows_per_batch=1)
    assert parquet_rows(tmp_path / "out") == [("b", 1), ("b", 2), ("b", 3)]
    with pytest.raises(DefinitionError, match="mode='append'"):
        keyed.parquet_sink(tmp_path / "out", mode="append")  # type: ignore[arg-type]


def test_files_of_others_are_never_removed(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    pq.write_table(pa.table({"k": ["x"], "n": [7]}), out / "mine.parquet")
    for mode in ("error", "overwrite"):
        with pytest.raises(SinkError, match=r"holds mine\.parquet, which no query of keyed wrote"):
            counts(elements(1)).run(keyed.parquet_sink(out, mode=mode))
    assert parquet_rows(out) == [("x", 7)]


def test_a_run_that_failed_before_it_wrote_leaves_the_folder_free(tmp_path):
    with pytest.raises(DefinitionError):
        counts([{"other": 1}]).run(tmp_path / "out")
    counts(elements(1)).run(tmp_path / "out")
    assert parquet_rows(tmp_path / "out") == [("a", 1)]


def test_a_restored_query_goes_on_in_the_folder_and_the_earlier_one_is_refused_there(tmp_path):
    out, changelog = tmp_path / "out", DirectoryChangelog(tmp_path / "log")
    counts(elements(4), changelog=changelog).run(out, checkpoint=tmp_path / "first", rows_per_batch=1)
    # It gets one batch further than its changelog does.
    shutil.copytree(tmp_path / "log", tmp_path / "behind")
    counts(elements(6), changelog=changelog).run(out, checkpoint=tmp_path / "first", rows_per_batch=1)
    restored = counts(elements(7), restore_from=DirectoryChangelog(tmp_path / "behind"))
    restored.run(out, checkpoint=tmp_path / "second", rows_per_batch=3)
    assert parquet_rows(out) == [("a", n) for n in range(1, 8)]
    with pytest.raises(SinkError):
        counts(elements(9), changelog=changelog).run(out, checkpoint=tmp_path / "first")
    # The restored one was lost before its first batch was exported: its changelog is restored from once more.
    again = counts(elements(8), restore_from=DirectoryChangelog(tmp_path / "behind"))
    again.run(out, checkpoint=tmp_path / "third", rows_per_batch=1)
    assert parquet_rows(out) == [("a", n) for n in range(1, 9)]


def test_a_query_restored_to_a_past_batch_is_another_one(tmp_path):
    out, changelog = tmp_path / "out", DirectoryChangelog(tmp_path / "log")
    counts(elements(4), changelog=changelog).run(out, checkpoint=tmp_path / "first", rows_per_batch=1)
    past = counts(elements(4), restore_from=RestorePoint(changelog, as_of=1))
    with pytest.raises(SinkError, match="was written by the query"):
        past.run(out, checkpoint=tmp_path / "second")
    past.run(tmp_path / "other", checkpoint=tmp_path / "second")
    assert parquet_rows(tmp_path / "other") == [("a", 3), ("a", 4)]


def test_a_folder_without_a_mark_is_refused(tmp_path):
    out = tmp_path / "out"
    counts(elements(2)).run(out, checkpoint=tmp_path / "first", rows_per_batch=1)
    (out / MARK).unlink()
    for checkpoint in ("first", "second"):
        with pytest.raises(SinkError, match="written by a query that left no mark"):
            counts(elements(3)).run(out, checkpoint=tmp_path / checkpoint)


def test_a_path_that_cannot_be_a_folder_is_refused_before_the_first_row(tmp_path):
    (tmp_path / "file").touch()
    for path in ("file", "file/out"):
        with pytest.raises(SinkError, match=rf"Parquet sink '.*/{path}': .*give the path of a folder that can be"):
            counts(elements(2)).run(tmp_path / path)


def test_a_damaged_mark_is_named(tmp_path):
    counts(elements(2)).run(tmp_path / "out")
    (tmp_path / "out" / MARK).write_bytes(b"\0" * 40)
    with pytest.raises(CorruptionError, match=MARK):
        counts(elements(2)).run(keyed.parquet_sink(tmp_path / "out", mode="overwrite"))


def test_folders_are_claimed_alike_wherever_they_are(tmp_path, runtime):
    out = tmp_path / "out"
    folder = LocalFolder(str(out)) if runtime.session is None else SparkFolder(runtime.session, out.as_uri())
    assert folder.read_mark() is None
    assert folder.parquet_files() == []
    claim_folder(folder, Owner(["a"]))
    assert folder.read_mark() == encode_mark(["a"])
    for batch in range(3):
        (out / f"batch={batch:010d}").mkdir()
        pq.write_table(pa.table({"n": [batch]}), out / f"batch={batch:010d}" / "part-0.parquet")
    claim_folder(folder, Owner(["a"], 3, 3))
    assert len(folder.parquet_files()) == 3
    with pytest.raises(SinkError):
        claim_folder(folder, Owner(["b"]))
    claim_folder(folder, Owner(["a", "c"], 2))
    assert [row[0] for row in rows_in(out)] == [0, 1]
    claim_folder(folder, Owner(["d"]), replaces=True)
    assert rows_in(out) == []
    assert folder.read_mark() == encode_mark(["d"])


@pytest.mark.long
def test_no_two_new_queries_take_a_folder_that_only_spark_reaches(spark, tmp_path):
    folder = SparkFolder(spark, (tmp_path / "out").as_uri())
    assert folder.read_mark() is None
    # Both have seen that there is none.
    folder.write_mark(encode_mark(["a"]), new=True)
    with pytest.raises(FileExistsError):
        folder.write_mark(encode_mark(["b"]), new=True)
    claim_folder(folder, Owner(["a"]))
    # One that is killed as it withdraws.
    with patch.object(SparkFolder, "_marks", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        folder.write_mark(encode_mark(["b"]), new=True)
    with pytest.raises(SinkError, match=f"2 queries began .* remove {MARK}"):
        claim_folder(folder, Owner(["a"]))


def rows_in(out):
    return sorted(
        tuple(row.values()) for file in out.glob("batch=*/*.parquet") for row in pq.ParquetFile(file).read().to_pylist()
    )


def test_a_query_goes_on_in_its_folder_on_the_other_runtime(spark, tmp_path):
    out = tmp_path / "out"
    logs = [DirectoryChangelog(tmp_path / f"log-{number}") for number in range(2)]
    local = count(keyed.stream([{"k": "a", "t": 1, "v": 1}], timestamp="t"), changelog=logs[0])
    local.run(out, checkpoint=tmp_path / "first")
    write_file(tmp_path / "in", 0, [("a", 2, 1)])
    source = files_source(spark, tmp_path / "in")
    count(source, changelog=logs[1], restore_from=logs[0]).run(out, checkpoint=tmp_path / "second")
    back = count(keyed.stream([{"k": "a", "t": 3, "v": 1}], timestamp="t"), restore_from=logs[1])
    back.run(out, checkpoint=tmp_path / "third")
    assert parquet_rows(out) == [("a", 1, 1), ("a", 2, 2), ("a", 3, 3)]


# One layout -----------------------------------------------------------------------------------------------------------


def test_a_query_on_a_cluster_writes_the_files_that_one_on_this_machine_writes(spark, tmp_path, monkeypatch):
    """Spark's reader finds the same columns, and each row once when a batch is written again."""
    monkeypatch.setattr(spark_session, "is_here", lambda session: False)
    monkeypatch.setattr(stream_job, "is_here", lambda session: False)
    out = tmp_path / "out"
    write_file(tmp_path / "in", 0, [("a", 1, 1), ("b", 2, 99)])
    job = count(files_source(spark, tmp_path / "in"))
    job.run(out, checkpoint=tmp_path / "ck")
    first = sorted(path.name for path in out.iterdir() if path.name[0] not in "._")
    assert first
    assert all(re.fullmatch(r"part-\d{10}-\d{4}\.parquet", name) for name in first)
    local = count(keyed.stream([{"k": "a", "t": 1, "v": 1}], timestamp="t"))
    local.run(tmp_path / "local")
    assert spark.read.parquet(str(out)).columns == spark.read.parquet(str(tmp_path / "local")).columns
    assert pq.read_table(out).column_names == pq.read_table(tmp_path / "local").column_names
    writer = Writer([Whole()], [ParquetSink(str(out), "overwrite")], mounted=True, queries=["a"])  # type: ignore[list-item]
    for _ in range(2):
        writer.write(spark.createDataFrame([("x", 1), ("y", 2)], "k string, n bigint"), 0)
    assert parquet_rows(out) == [("x", 1), ("y", 2)]


def test_a_folder_with_a_folder_for_each_batch_goes_on_so(spark, tmp_path):
    out = tmp_path / "out"
    frame = spark.createDataFrame([("a", 1)], "k string, n bigint")
    for batch, mounted in enumerate([False, True, True]):
        # The first as versions wrote it that had flat files in local mode only.
        writer = Writer([Whole()], [ParquetSink(str(out))], mounted=mounted, queries=["a"])  # type: ignore[list-item]
        writer.write(frame, batch)
    assert not list(out.glob("part-*"))
    assert spark.read.parquet(str(out)).count() == 3


# Files of batches -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Letters(SinkBatch):
    """A batch of so many rows in the local runtime."""

    number: int

    @property
    def rows(self):
        return [("x", n) for n in range(self.number)]

    @property
    def table(self):
        return pa.table({"k": ["x"] * self.number, "n": range(self.number)}) if self.number else None


@pytest.fixture
def write_batches(runtime, tmp_path):
    """A function that writes batches, by their ids and numbers of rows, in a run of the query ``a``."""
    sink, route = ParquetSink(str(tmp_path)), Whole()

    def write_locally(*batches):
        with closing(sink.open(Owner(["a"]), route.schema)) as writer:
            writer.claim()
            for batch_id, number in batches:
                writer.write(Letters(number), batch_id)

    def write_on_spark(*batches):
        writer = Writer([route], [sink], mounted=True, queries=["a"])  # type: ignore[list-item]
        for batch_id, number in batches:
            frame = runtime.session.createDataFrame([("x", n) for n in range(number)], "k string, n bigint")
            writer.write(frame, batch_id)

    return write_locally if runtime.session is None else write_on_spark


def test_a_run_lists_its_folder_once_however_many_batches_it_writes(write_batches, tmp_path, monkeypatch):
    listed = []
    for owner, name in ((Path, "glob"), (Path, "iterdir"), (os, "scandir"), (os, "listdir")):
        original = getattr(owner, name)

        def list_folder(path=".", *arguments, original=original):
            if str(path) == str(tmp_path):
                listed.append(path)
            return original(path, *arguments)

        monkeypatch.setattr(owner, name, list_folder)
    numbers = []
    for batches in (range(2), range(2, 4), range(4, 12)):
        write_batches(*((batch, batch % 3) for batch in batches))
        numbers.append(len(listed))
        listed.clear()
    # The first run also claims the folder.
    assert numbers[1] == numbers[2] <= numbers[0]
    assert len(parquet_rows(tmp_path)) == 12


def test_a_batch_that_comes_again_replaces_files_of_this_run_and_of_one_that_was_killed(write_batches, tmp_path):
    write_batches((0, 2), (1, 3))
    for name in ("part-0000000001-0001.parquet", "part-0000000001-0007.parquet"):
        shutil.copy(next(tmp_path.glob("part-0000000001-*")), tmp_path / name)
    (tmp_path / ".part-0000000001-0000.parquet.7.tmp").touch()
    write_batches((1, 1), (1, 2), (2, 2), (2, 0), (3, 1), (1, 1))
    assert parquet_rows(tmp_path) == [("x", 0), ("x", 0), ("x", 0), ("x", 1)]
    assert not list(tmp_path.glob(".part*"))


# Other columns --------------------------------------------------------------------------------------------------------


def emitting(source, output=None):
    """A job that emits its rows without the key."""

    class Emit(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield row_class(value._fields[1:])(tuple(value)[1:])

    return keyed.stream(source).key_by("k").process(Emit(), output)


BEFORE = [{"k": "a", "word": "x", "n": 1}]
CHANGES = [
    ("text string, n bigint", [{"k": "a", "text": "y", "n": 2}], "lose word: the file .* has word string, n "),
    ("word string, n string", [{"k": "a", "word": "y", "n": "2"}], r"lose n \((int64|bigint) there, string now\)"),
    ("word string", [{"k": "a", "word": "y"}], "lose n: the file .*; give the output a new folder"),
]


@pytest.mark.parametrize(("output", "rows", "message"), CHANGES)
@pytest.mark.parametrize("declared", [True, False])
def test_an_output_with_other_columns_than_the_files_there_is_refused_and_nothing_is_changed(
    tmp_path, output, rows, message, declared
):
    out, checkpoint = tmp_path / "out", tmp_path / "ck"
    emitting(BEFORE, "word string, n bigint" if declared else None).run(out, checkpoint=checkpoint, drain=False)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    job = emitting(BEFORE + rows, output if declared else None)
    with pytest.raises(SinkError, match=message):
        job.run(out, checkpoint=checkpoint, drain=False)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    result = job.run(tmp_path / "new", checkpoint=checkpoint, drain=False)
    assert result.batches == 1
    assert len(pq.read_table(tmp_path / "new")) == 1


def test_columns_may_be_added(tmp_path):
    out, checkpoint = tmp_path / "out", tmp_path / "ck"
    emitting(BEFORE, "word string, n bigint").run(out, checkpoint=checkpoint, drain=False)
    more = [*BEFORE, {"k": "a", "word": "y", "n": 2, "more": 0.5}]
    emitting(more, "word string, n bigint, more double").run(out, checkpoint=checkpoint, drain=False)
    read = pa.dataset.dataset(out, schema=pq.read_schema(max(out.glob("part-*")))).to_table().to_pylist()
    assert read == [{"word": "x", "n": 1, "more": None}, {"word": "y", "n": 2, "more": 0.5}]
    with pytest.raises(SinkError, match="lose more"):
        emitting([*more, BEFORE[0]], "word string, n bigint").run(out, checkpoint=checkpoint, drain=False)


def test_other_columns_are_refused_on_spark_too_and_across_the_runtimes(spark, tmp_path):
    out, changelog = tmp_path / "out", DirectoryChangelog(tmp_path / "log")
    local = count(keyed.stream([{"k": "a", "t": 1, "v": 1}], timestamp="t"), changelog=changelog)
    local.run(out, checkpoint=tmp_path / "first")
    columns = pq.read_schema(next(out.glob("part-*"))).names
    output = f"{columns[0]} string, {columns[1]} string"
    queries = decode_mark(LocalFolder(str(out)).read_mark() or b"", "mark")
    with pytest.raises(SinkError, match=f"lose {columns[1]} .bigint there, string now"):
        Writer([Whole(output)], [ParquetSink(str(out))], mounted=True, queries=queries).claim(spark, 1)  # type: ignore[list-item]


class Whole:
    """A route of all columns."""

    result = None

    def __init__(self, columns="k string, n bigint"):
        self.schema = keyed.base.schemas.schema_of(columns)

    def frame(self, whole):
        return whole


@pytest.mark.parametrize("name", ["x.csv", "out.JSON", "folder/x.txt"])
def test_a_path_with_the_name_of_a_file_is_refused(tmp_path, name):
    with pytest.raises(DefinitionError, match=r"has the name of a file.*keyed\.parquet_sink"):
        counts(elements(1)).run(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    counts(elements(1)).run(keyed.parquet_sink(tmp_path / name), checkpoint=tmp_path / "ck", drain=False)
    # A folder of this name is one that `parquet_sink` has begun.
    counts(elements(2)).run(tmp_path / name, checkpoint=tmp_path / "ck", drain=False)
    for other in ("x.parquet", "v1.2", "2026.11"):
        counts(elements(1)).run(tmp_path / other)


# Two queries at one moment --------------------------------------------------------------------------------------------


def test_of_two_queries_that_find_a_folder_without_a_mark_the_second_is_refused(tmp_path):
    class Slow(LocalFolder):
        def parquet_files(self):
            # Meanwhile the other one has the folder.
            claim_folder(LocalFolder(str(tmp_path)), Owner(["first"]))
            return super().parquet_files()

    with pytest.raises(SinkError, match="another query has just begun to write to the folder"):
        claim_folder(Slow(str(tmp_path)), Owner(["second"]))
    assert decode_mark(LocalFolder(str(tmp_path)).read_mark() or b"", "mark") == ["first"]


def test_the_mark_of_a_query_that_was_killed_when_it_made_it_counts_as_none(tmp_path):
    (tmp_path / MARK).touch()
    (tmp_path / f".{MARK}.12345.tmp").touch()
    claim_folder(LocalFolder(str(tmp_path)), Owner(["one"]))
    assert decode_mark((tmp_path / MARK).read_bytes(), "mark") == ["one"]
    assert [file.name for file in tmp_path.iterdir()] == [MARK]


def test_a_local_query_keeps_others_out_of_its_folder_while_it_runs(tmp_path):
    out, refused = str(tmp_path / "out"), []

    def source():
        try:
            counts(elements(3, "other")).run(out)
        except SinkError as error:
            refused.append(str(error))
        yield from elements(2)

    counts(source()).run(out)
    assert len(refused) == 1
    assert "another query has just begun to write to the folder" in refused[0]
    assert pq.read_table(out).column("k").to_pylist() == ["a", "a"]
