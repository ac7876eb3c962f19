"""Files of before keyed 0.1 are refused by their version, with the file and the remedy.

``before_0_1.tar.gz`` has the checkpoint and the changelog that commit 9cbacef wrote for a job of windows.
"""

import re
import shutil
import tarfile
from pathlib import Path

import pytest

import keyed
from keyed import KeyedProcessFunction
from keyed.changelog.directory import DirectoryChangelog
from keyed.errors import CorruptionError
from keyed.recovery import flush, read_changelog, verify
from keyed.tables import open_tables

REMEDY = (
    "version 1 of before keyed 0.1, and this program reads version 1: start from a new checkpoint and an empty "
    "changelog, or run the keyed that wrote the record in "
)


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(Path(__file__).parent / "before_0_1.tar.gz") as archive:
        # Python has filters from 3.11.4 on, and warns without one from 3.12 on; the archive is our own.
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    return tmp_path


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value["k"]


def run(**options):
    stream = keyed.stream([{"k": "a"}]).key_by("k")
    return stream.process(Pass(), "k string", name="WindowOperator", parallelism=2, **options)


def refused(file):
    return pytest.raises(CorruptionError, match=re.escape(REMEDY) + ".*" + re.escape(file))


def test_a_checkpoint_is_refused(folder):
    checkpoint = folder / "checkpoint"
    before = {file: file.read_bytes() for file in checkpoint.rglob("*.sst")}
    with refused("keyed-commits-1"):
        run().run(checkpoint=checkpoint)
    with refused("keyed-commits-1"):
        flush(checkpoint, {"WindowOperator": DirectoryChangelog(folder / "changelog")})
    assert before == {file: file.read_bytes() for file in before}


def test_a_changelog_is_refused(folder):
    changelog = DirectoryChangelog(folder / "changelog")
    with refused("changelog/header"):
        run(changelog=changelog).run(checkpoint=folder / "new")
    with refused("changelog/header"):
        run(restore_from=changelog).run(checkpoint=folder / "new")
    with refused("changelog/header"):
        verify(changelog)
    with refused("changelog/header"):
        list(read_changelog(changelog))
    with refused("changelog/header"):
        open_tables(changelog, folder / "tables")


def test_the_segments_of_a_changelog_are_refused_after_another_header(folder):
    changelog = DirectoryChangelog(folder / "new")
    changelog.prepare("WindowOperator", 2)
    shutil.rmtree(folder / "new" / "groups", ignore_errors=True)
    (folder / "changelog" / "groups").rename(folder / "new" / "groups")
    with refused(".segment"):
        changelog.reader(0).last()
