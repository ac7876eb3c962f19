"""The files of a checkpoint."""

import pytest

from keyed.errors import CheckpointError
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder, open_checkpoint


def memory() -> CheckpointFolder:
    """A folder in a file system that is reached by its scheme."""
    folder = open_checkpoint("mock:///bucket/checkpoint")
    assert folder is not None
    return folder


@pytest.fixture(params=["path", "file", "scheme"])
def folder(request, tmp_path):
    if request.param == "scheme":
        return memory()
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


def test_a_file_system_that_is_not_known_is_not_reached():
    assert open_checkpoint("dbfs:/checkpoints/one") is None
    assert open_checkpoint("abfs-like://container@account/one") is None


def test_what_cannot_be_read_or_written_is_named(tmp_path):
    (tmp_path / "offsets").write_text("a file")
    folder = open_checkpoint(str(tmp_path))
    assert folder is not None
    with pytest.raises(CheckpointError, match=r"write offsets/0 of the checkpoint .*test_what"):
        folder.write("offsets/0", b"")
    with pytest.raises(CheckpointError, match=r"read offsets/0 of the checkpoint"):
        folder.read("offsets/0")
