"""Modes of keyed's files, and accepted paths."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest

import keyed
from keyed import DirectoryChangelog
from keyed.errors import DefinitionError, LocalStoreError
from keyed.runtimes.spark.worker.worker_caches import default_local_dir
from keyed.stores import open_rocks_store
from keyed.testing.store_conformance import random_changes
from tests.support.jobs import Tally


def run(folder, **options):
    output = keyed.stream([{"k": "a"}] * 3).key_by("k")
    group = options.get("group_access", False)
    changelog = DirectoryChangelog(folder / "log", group_access=group)
    output.process(Tally(), "k string, n bigint", store="rocksdb", changelog=changelog).run(
        folder / "out", checkpoint=folder / "a" / "ck", local_dir=folder / "stores", rows_per_batch=1, **options
    )


def modes(folder, *, files):
    return {oct(path.stat().st_mode & 0o7777) for path in folder.rglob("*") if path.is_file() == files}


@pytest.fixture(params=[0o022, 0o077, 0o000])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_what_is_kept_is_for_the_user_alone(tmp_path, umask):
    run(tmp_path)
    for name in ("a", "a/ck", "a/ck/keyed-commits-1", "log", "stores"):
        assert oct((tmp_path / name).stat().st_mode & 0o7777) == "0o700", name
    assert modes(tmp_path / "log", files=False) == {"0o700"}
    # Also those that RocksDB has written, and those of the changelog.
    for name in ("a", "log", "stores"):
        assert modes(tmp_path / name, files=True) == {"0o600"}


def test_a_group_may_read_if_asked(tmp_path, umask):
    run(tmp_path, group_access=True)
    for name in ("a", "a/ck", "log", "log/groups/00000"):
        assert oct((tmp_path / name).stat().st_mode & 0o7777) == "0o2750", name
    for name in ("a", "log"):
        assert modes(tmp_path / name, files=True) == {"0o640"}
    assert modes(tmp_path / "stores", files=True) == {"0o600"}
    assert oct((tmp_path / "stores").stat().st_mode & 0o777) == "0o700"


def test_folders_that_are_there_keep_their_mode(tmp_path):
    for name in ("a", "log"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name).chmod(0o755)
    run(tmp_path)
    assert oct((tmp_path / "log").stat().st_mode & 0o7777) == "0o755"
    assert oct((tmp_path / "a" / "ck").stat().st_mode & 0o7777) == "0o700"
    assert modes(tmp_path / "log", files=True) == {"0o600"}


@pytest.mark.parametrize("acls", [True, False])
def test_files_of_rocksdb_are_for_the_user_alone(tmp_path, monkeypatch, acls):
    if not acls:
        monkeypatch.setattr(os, "setxattr", Mock(side_effect=OSError(errno.EOPNOTSUPP, "")))
    for number in range(3):
        store = open_rocks_store(tmp_path)
        store.apply("log", number, random_changes(Random(number), 500))
        if acls:
            assert modes(tmp_path, files=True) == {"0o600"}
        # A flush writes files in another thread.
        store.close()
        assert modes(tmp_path, files=True) == {"0o600"}
        # As copies may have it.
        for path in tmp_path.rglob("*.sst"):
            path.chmod(0o644)


@pytest.mark.spark
def test_spark_s_checkpoint_is_for_the_user_alone(spark, tmp_path):
    from tests.keyed.runtimes.spark.functions import count, files_source, write_file

    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    for group, mode in ((False, "0o700"), (True, "0o2750")):
        count(files_source(spark, tmp_path / "in")).run(checkpoint=tmp_path / str(group), group_access=group)
        assert oct((tmp_path / str(group)).stat().st_mode & 0o7777) == mode
        assert (tmp_path / str(group) / "metadata").exists()


@pytest.mark.parametrize("path", ["s3://bucket/x", "file:///x", "", "a\0b", 5])
def test_paths_that_are_no_folders_are_refused(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    output = keyed.stream([{"k": "a"}]).key_by("k").process(Tally(), "k string, n bigint")
    for refused in (
        lambda: output.run(checkpoint=path),
        lambda: output.run(local_dir=path),
        lambda: output.run(keyed.parquet_sink(path)),
        lambda: DirectoryChangelog(path),
    ):
        with pytest.raises((DefinitionError, TypeError) if path == 5 else DefinitionError):
            refused()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_for_local_stores_is_this_user_s_own(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = Path(default_local_dir())
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert Path(default_local_dir()) == folder
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocalStoreError, match=r"is a link, or belongs to another user; remove it, or give local_dir="):
        default_local_dir()
    folder.unlink()
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(LocalStoreError, match="belongs to another user"):
        default_local_dir()
