"""A checkpoint of Spark that was moved or copied is refused; put back, or restored at a new path, the job continues."""

import shutil

import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.errors import CheckpointMoved
from keyed.recovery import flush, verify
from tests.keyed.runtimes.spark.functions import CountInWindows, files_source, parquet_rows
from tests.keyed.runtimes.spark.test_changelog import LATENESS, ROWS, elements, write_files
from tests.support.viewfs import mounted

WINDOWS = "k string, start bigint, n bigint"


def files_in(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if not path.name.startswith("keyed-lease")}


@pytest.mark.parametrize("place", ["a folder", pytest.param("Spark alone", marks=pytest.mark.long)])
def test_a_moved_checkpoint_is_refused_and_runs_on_when_it_is_put_back_or_restored(spark, tmp_path, place):
    at = str(tmp_path) if place == "a folder" else mounted(spark, tmp_path)
    old, new = DirectoryChangelog(tmp_path / "old"), DirectoryChangelog(tmp_path / "new")

    def run(name, changelog=old, restore_from=None):
        stream = files_source(spark, tmp_path / "in", watermark=LATENESS).key_by("k")
        output = stream.process(
            CountInWindows(), WINDOWS, name="windows", parallelism=2, changelog=changelog, restore_from=restore_from
        )
        return output.run(tmp_path / "out", checkpoint=f"{at}/{name}")

    def refused(name, use):
        before = files_in(tmp_path / name)
        with pytest.raises(CheckpointMoved) as caught:
            use(name)
        assert all(
            part in str(caught.value) for part in (f"{at}/{name} was moved", f"from {at}/first,", "restore_from")
        )
        assert files_in(tmp_path / name) == before

    write_files(tmp_path, [0])
    run("first")
    shutil.move(tmp_path / "first", tmp_path / "second")
    for use in (
        run,
        lambda name: flush(f"{at}/{name}", {"windows": DirectoryChangelog(tmp_path / "none")}, session=spark),
        lambda name: verify(f"{at}/{name}", session=spark),
    ):
        refused("second", use)

    # Put back, or found through a link at the former path.
    if place == "a folder":
        (tmp_path / "first").symlink_to(tmp_path / "second")
    else:
        shutil.move(tmp_path / "second", tmp_path / "first")
    write_files(tmp_path, [1])
    run("first")
    shutil.copytree(tmp_path / "first", tmp_path / "third")
    refused("third", run)

    write_files(tmp_path, [2])
    assert run("fourth", new, old).restored == keyed.Restored(1, with_position=True)
    assert [group.problem for group in verify(new)] == ["", ""]
    undisturbed = keyed.stream(elements(range(3)), timestamp="t", watermark=LATENESS).key_by("k")
    windows = undisturbed.process(CountInWindows(), WINDOWS, name="windows", parallelism=2)
    values = windows.run(rows_per_batch=ROWS, drain=False).values
    assert parquet_rows(tmp_path / "out") == sorted((row.k, row.start, row.n) for row in values)
