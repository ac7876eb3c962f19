"""Queries of Spark with changelogs in an object store, on a server in the process of the test.

Their checkpoints are in a folder of this machine, or in a file system that only Spark reaches.
"""

import shutil
from datetime import timedelta

import pytest

import keyed
from keyed.changelog import ObjectStoreChangelog
from keyed.job.results import Restored
from keyed.recovery import verify
from keyed.testing.changelog_conformance import state_of
from tests.keyed.runtimes.spark.functions import count, files_source
from tests.keyed.runtimes.spark.test_changelog import KEYS, ROWS, write_files
from tests.support.s3 import SECRET, s3_server
from tests.support.tables import poll_tables
from tests.support.viewfs import mounted


def entries(changelog):
    header = changelog.header()
    assert header is not None
    found = [state_of(changelog.reader(group)) for group in range(header.parallelism)]
    return {address: value for each in found for address, value in each.items()}


@pytest.mark.parametrize("place", [pytest.param("a folder", marks=pytest.mark.long), "Spark alone"])
def test_a_lost_checkpoint_is_restored_at_another_parallelism(spark, tmp_path, capfd, caplog, place):
    at = tmp_path if place == "a folder" else mounted(spark, tmp_path)
    with s3_server() as server:
        old, new = (ObjectStoreChangelog(f"s3://bucket/{name}/count", server.options) for name in ("old", "new"))
        write_files(tmp_path, range(3))
        output = count(files_source(spark, tmp_path / "in"), parallelism=2, changelog=old)
        assert output.run(tmp_path / "out", checkpoint=f"{at}/ck").batches == 3
        # Everything is exported when the run ends, and it is what the checkpoint has.
        assert [group.problem for group in verify(f"{at}/ck", old, session=spark)] == ["", ""]
        shutil.rmtree(tmp_path / "ck")

        write_files(tmp_path, range(3, 5))
        source = files_source(spark, tmp_path / "in")
        output = count(source, parallelism=3, changelog=new, restore_from=old)
        result = output.run(tmp_path / "out", checkpoint=f"{at}/ck2", local_dir=tmp_path / "stores")
        assert result.restored == Restored(2, with_position=True)
        assert [group.problem for group in verify(new)] == ["", "", ""]
        # It goes on from its own checkpoint.
        write_files(tmp_path, range(5, 6))
        assert output.run(tmp_path / "out", checkpoint=f"{at}/ck2", local_dir=tmp_path / "stores").batches == 1
        assert "no positions" not in caplog.text

        undisturbed = keyed.DirectoryChangelog(tmp_path / "undisturbed")
        count(source, changelog=undisturbed).run(tmp_path / "out2", checkpoint=tmp_path / "ck3")
        assert entries(new) == entries(undisturbed)
        with poll_tables(new, tmp_path / "tables") as tables:
            table = tables[next(iter(tables))]
            assert {row.key for row in table.scan()} == set(KEYS)
        plan = output.df._jdf.queryExecution().toString()
        assert SECRET not in plan
        left = b"".join(path.read_bytes() for path in (tmp_path / "ck2").rglob("*") if path.is_file())
        assert SECRET.encode() not in left
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.long
def test_with_an_export_interval_objects_do_not_depend_on_the_number_of_batches(spark, tmp_path):
    files = 6
    with s3_server() as server:
        hour = timedelta(hours=1)
        old, new = (
            ObjectStoreChangelog(f"s3://bucket/{name}/count", server.options, export_interval=hour)
            for name in ("old", "new")
        )
        write_files(tmp_path, range(files))
        source = files_source(spark, tmp_path / "in")
        count(source, parallelism=2, changelog=old).run(tmp_path / "out", checkpoint=tmp_path / "ck")
        # The first batch, and the others when the query ends: each with a position and the files read until then. The
        # header is put twice, to see that the store refuses it.
        assert len([key for key in server.objects if "/groups/" in key]) == 2 * 2
        assert len([key for key in server.objects if "/positions/" in key]) == 2
        assert server.requests["PUT"] == 2 * (2 + 1 + 1) + 2
        with poll_tables(old, tmp_path / "tables") as tables:
            totals = [sum(entry.value[0] for entry in tables["seen"].scan(as_of=batch)) for batch in range(files)]
        assert totals == [ROWS * (batch + 1) for batch in range(files)]
        shutil.rmtree(tmp_path / "ck")

        restored = count(source, parallelism=3, changelog=new, restore_from=keyed.RestorePoint(old, as_of=3))
        result = restored.run(tmp_path / "out2", checkpoint=tmp_path / "ck2")
        assert result.restored == Restored(3, with_position=True)
        # One batch loads the state.
        assert result.batches == 1 + files - 4
        assert [group.problem for group in verify(new)] == ["", "", ""]
        assert entries(new) == entries(old)
