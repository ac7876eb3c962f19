"""A class that declares a migration goes on from the checkpoint of a class before it, on Spark as in-process."""

import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.errors import StateSchemaChanged
from keyed.recovery import verify
from tests.keyed.recovery.test_class_migrations import Averaging, Counting
from tests.keyed.runtimes.spark.functions import files_source, parquet_rows, write_file


class Refused(Averaging):
    migration = None  # type: ignore[assignment]


def test_a_checkpoint_is_migrated_in_place_and_a_changelog_at_a_restore(spark, tmp_path):
    log = DirectoryChangelog(tmp_path / "log")
    files = [[(f"k{i % 7}", i * 10, i) for i in range(start, start + 20)] for start in (0, 20, 40)]

    def run(function, number, checkpoint="ck", **options):
        write_file(tmp_path / "in", number, files[number])
        stream = files_source(spark, tmp_path / "in").key_by("k")
        output = stream.process(function, "k string, n double", name="job", parallelism=2, **options)
        return output.run(tmp_path / "out", checkpoint=tmp_path / checkpoint)

    run(Counting(), 0, changelog=log)
    with pytest.raises(StateSchemaChanged, match=r"int became float|no longer declared"):
        run(Refused(), 1, changelog=log)
    run(Averaging(), 1, changelog=log)
    for place in (tmp_path / "ck", log):
        assert [group.problem for group in verify(place, session=spark)] == ["", ""]
    run(Averaging(), 2, changelog=log)

    rows = [{"k": k, "t": t, "v": v} for file in files for k, t, v in file]
    stream = keyed.stream(rows, timestamp="t").key_by("k")
    unchanged = stream.process(Counting(), "k string, n double", name="job").run(rows_per_batch=20, drain=False)
    assert parquet_rows(tmp_path / "out") == sorted((row.k, row.n) for row in unchanged.values)
