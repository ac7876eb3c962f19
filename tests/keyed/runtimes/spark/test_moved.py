"""A checkpoint of Spark that was moved or copied runs on at its new path; what only reads it names the former one."""

import shutil

import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.errors import CheckpointError
from keyed.recovery import flush, verify
from tests.keyed.runtimes.spark.functions import CountInWindows, files_source, parquet_rows
from tests.keyed.runtimes.spark.test_changelog import LATENESS, ROWS, elements, write_files
from tests.support.viewfs import mounted

WINDOWS = "k string, start bigint, n bigint"


def files_in(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if not path.name.startswith("keyed-lease")}


@pytest.mark.parametrize("place", ["a folder", pytest.param("Spark alone", marks=pytest.mark.long)])
def test_a_moved_or_copied_checkpoint_runs_on(spark, tmp_path, place):
    at = str(tmp_path) if place == "a folder" else mounted(spark, tmp_path)
    changelog = DirectoryChangelog(tmp_path / "changelog")

    def run(name):
        stream = files_source(spark, tmp_path / "in", watermark=LATENESS).key_by("k")
        output = stream.process(CountInWindows(), WINDOWS, name="windows", parallelism=2, changelog=changelog)
        return output.run(tmp_path / "out", checkpoint=f"{at}/{name}")

    write_files(tmp_path, [0])
    run("first")
    shutil.move(tmp_path / "first", tmp_path / "second")
    before = files_in(tmp_path / "second")
    for use in (
        lambda path: flush(path, {"windows": DirectoryChangelog(tmp_path / "none")}, session=spark),
        lambda path: verify(path, session=spark),
    ):
        with pytest.raises(
            CheckpointError, match=rf"{at}/second was moved or copied from {at}/first, .* Start its query"
        ):
            use(f"{at}/second")
    assert files_in(tmp_path / "second") == before

    write_files(tmp_path, [1])
    run("second")
    shutil.copytree(tmp_path / "second", tmp_path / "third")
    shutil.rmtree(tmp_path / "second")
    write_files(tmp_path, [2])
    run("third")
    assert [group.problem for group in verify(f"{at}/third", session=spark)] == ["", ""]
    undisturbed = keyed.stream(elements(range(3)), timestamp="t", watermark=LATENESS).key_by("k")
    windows = undisturbed.process(CountInWindows(), WINDOWS, name="windows", parallelism=2)
    values = windows.run(rows_per_batch=ROWS, drain=False).values
    assert parquet_rows(tmp_path / "out") == sorted((row.k, row.start, row.n) for row in values)
