"""The files of a checkpoint."""

import json
import shutil

import pytest

from keyed.errors import CheckpointError
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder, checkpoint_folder, open_checkpoint, spark_path
from keyed.runtimes.spark.session.spark_session import is_here
from tests.support.viewfs import mounted


@pytest.fixture(params=["path", "file", pytest.param("Spark", marks=pytest.mark.slow)])
def folder(request, tmp_path):
    if request.param == "Spark":
        session = request.getfixturevalue("spark")
        return checkpoint_folder(session, f"{mounted(session, tmp_path)}/ck")
    return open_checkpoint(str(tmp_path / "ck") if request.param == "path" else f"file:{tmp_path}/ck")


def test_files_are_written_whole_and_read_back(folder):
    assert folder.read("offsets/0") is None
    assert folder.names("offsets") == []
    folder.write("offsets/0", b"one")
    folder.write("offsets/0", b"another")
    folder.write("offsets/1", b"")
    folder.write("top", b"x")
    assert (folder.read("offsets/0"), folder.read("offsets/1"), folder.read("top")) == (b"another", b"", b"x")
    assert sorted(folder.names("offsets")) == ["0", "1"]


def test_the_checksum_of_what_was_there_goes(tmp_path):
    # Hadoop would refuse a file whose checksum is that of another content.
    folder = open_checkpoint(str(tmp_path))
    assert folder is not None
    (tmp_path / "offsets").mkdir()
    for name in ("0", ".0.crc", "1", ".1.crc"):
        (tmp_path / "offsets" / name).write_text("of Spark")
    folder.write("offsets/0", b"of ours")
    assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == [".1.crc", "0", "1"]


def test_offsets_are_lines_and_commits_are_numbers(folder):
    assert folder.offsets(3) is None
    assert folder.last_commit() is None
    folder.write("offsets/3", b'v1\n{"conf":{}}\n{"logOffset":1}\n-\n{"offset":4}')
    for name in ("2", "10", ".10.crc", "9.tmp"):
        folder.write(f"commits/{name}", b"v1\n{}")
    assert folder.offsets(3) == ['{"logOffset":1}', "-", '{"offset":4}']
    assert folder.last_commit() == 10


def test_a_file_is_deleted_once(folder):
    folder.write("keyed-ticks/one", b"")
    folder.delete("keyed-ticks/one")
    folder.delete("keyed-ticks/one")
    assert folder.names("keyed-ticks") == []


def test_databricks_has_two_names_for_its_files(spark, monkeypatch):
    assert spark_path(spark, "/dbfs/job/ck") == "/dbfs/job/ck"
    monkeypatch.setattr("keyed.runtimes.spark.checkpoint.folder.default_files", lambda _: "dbfs:/")
    assert spark_path(spark, "/dbfs/job/ck") == "dbfs:/job/ck"
    assert spark_path(spark, "/Volumes/main/job/ck") == "/Volumes/main/job/ck"


def test_a_default_file_system_in_hadoops_own_settings_is_seen(spark):
    assert is_here(spark)
    hadoop = spark._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", "viewfs://cluster/")
    try:
        assert not is_here(spark)
    finally:
        hadoop.set("fs.defaultFS", before)


def test_a_scheme_that_spark_lacks_is_named(spark):
    assert open_checkpoint("nosuch://container@account/one") is None
    with pytest.raises(CheckpointError, match=r"nosuch://container@account/one: .*No FileSystem for scheme"):
        checkpoint_folder(spark, "nosuch://container@account/one")


def test_what_cannot_be_read_or_written_is_named(folder, tmp_path):
    (tmp_path / "ck").mkdir(exist_ok=True)
    (tmp_path / "ck" / "offsets").write_text("a file")
    with pytest.raises(CheckpointError, match=r"write offsets/0 of the checkpoint .*ck: "):
        folder.write("offsets/0", b"")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    folder = open_checkpoint(str(tmp_path))
    assert folder is not None
    (tmp_path / "offsets" / "0").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"read offsets/0 of the checkpoint"):
        folder.read("offsets/0")


def state_schema(at, *, versions=("stateSchemaFilePaths", "[%s]")):
    """The record in which Spark stores where the schema of a state is."""
    name, form = versions
    path = json.dumps(f"{at}/state/0/_stateSchema/default/0_1")
    store = f'{{"storeName":"default","numPartitions":2,"{name}":{form % path}}}'
    return f'v2\n{{"operatorInfo":{{"operatorId":0}},"stateStoreInfo":[{store}]}}'.encode()


@pytest.mark.parametrize("versions", [("stateSchemaFilePath", "%s"), ("stateSchemaFilePaths", "[%s]")], ids=str)
def test_a_checkpoint_is_where_spark_has_stored_that_it_is_however_its_path_is_written(tmp_path, monkeypatch, versions):
    monkeypatch.chdir(tmp_path)
    at = tmp_path / 'a b%41 "ü" state' / "state" / "ck"
    paths = [str(at), f"{at}/", f"{at.parent}//ck/", f"{at.parent}/x/../ck", f"file:{at}", f"file://{at}/"]
    for path in [*paths, str(at.relative_to(tmp_path))]:
        folder = open_checkpoint(path)
        assert folder is not None
        folder.check_location(ticks=True)
        folder.write("state/0/_metadata/v2/9", state_schema("file:/another"))
        folder.write("state/0/_metadata/v2/10", state_schema(f"file:{at}", versions=versions))
        folder.check_location(ticks=True)
        shutil.rmtree(at)


def test_without_ticks_a_checkpoint_is_moved_once_spark_misses_a_file_of_it(folder, tmp_path):
    former = f"{folder.path.removesuffix('ck')}former"
    folder.write("state/0/_metadata/v2/0", state_schema(former if "://" in former else f"file:{tmp_path}/former"))
    with pytest.raises(CheckpointError, match=rf"from {former.removeprefix('file:')}, "):
        folder.check_location(ticks=False)
    (tmp_path / "former" / "state" / "0" / "_stateSchema" / "default").mkdir(parents=True)
    (tmp_path / "former" / "state" / "0" / "_stateSchema" / "default" / "0_1").touch()
    folder.check_location(ticks=False)
    with pytest.raises(
        CheckpointError, match=rf"{folder.path} was moved or copied from {former.removeprefix('file:')}, "
    ):
        folder.check_location(ticks=True)


@pytest.mark.parametrize("fails_at", range(1, 5))
def test_a_relocation_that_was_interrupted_is_repeated_and_changes_no_path_of_the_user(folder, monkeypatch, fails_at):
    def log(path):
        return f'v1\n{{"path":"{path}","timestamp":1,"batchId":0}}'.encode()

    folder.write("offsets/0", b"v1\n{}\n-\n-\n-")
    inputs = log("file:/former/input/ticks/data")
    folder.write("sources/0/0", inputs)
    folder.write("sources/1/9.compact", log("file:///former/keyed-ticks/0123"))
    folder.write("sources/2/0", log("file:///former/keyed-global/rates/part-0.parquet"))
    for operator in (0, 1):
        folder.write(f"state/{operator}/_metadata/v2/0", state_schema("file:/former"))
    write = CheckpointFolder.write
    written = []

    def interrupted(self, name, data):
        written.append(name)
        if len(written) == fails_at:
            raise CheckpointError("interrupted")
        write(self, name, data)

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointFolder, "write", interrupted)
        with pytest.raises(CheckpointError, match="interrupted"):
            folder.relocate()
    with pytest.raises(CheckpointError, match=r"from (file:)?/former,"):
        folder.check_location(ticks=True)
    folder.relocate()
    folder.check_location(ticks=True)
    assert folder.read("sources/0/0") == inputs
    for name in ("sources/1/9.compact", "sources/2/0", "state/0/_metadata/v2/0", "state/1/_metadata/v2/0"):
        assert b"former" not in folder.read(name)
