"""A changelog is created in a new or empty folder alone: a folder that holds something else stays as it is."""

import shutil
import threading

import pytest

import keyed
from keyed import DirectoryChangelog
from keyed.changelog.model import LogHeader
from keyed.errors import ChangelogError
from tests.keyed.changelog.directory.support import OsCalls
from tests.support.jobs import Tally


def counts(changelog=None):
    rows = [{"key": "a"}, {"key": "b"}, {"key": "a"}]
    output = "key string, n bigint"
    return keyed.stream(rows).key_by("key").process(Tally(), output, name="job", changelog=changelog)


def content_of(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


@pytest.fixture
def folders(tmp_path):
    """The folders of a query, and some of other programs."""
    log = DirectoryChangelog(tmp_path / "log")
    counts(log).run(
        tmp_path / "sink", checkpoint=tmp_path / "checkpoint", tables=tmp_path / "tables", record=tmp_path / "record"
    )
    counts().run(tables=tmp_path / "logs of tables")
    (tmp_path / "log" / "header").unlink()
    for name in ("metadata", "offsets/0", "commits/0", "state/0/0/_metadata/schema"):
        (tmp_path / "spark" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "spark" / name).write_bytes(b"v1")
    (tmp_path / "thesis").mkdir()
    for name in ("chapter-1.tex", "chapter-2.tex"):
        (tmp_path / "thesis" / name).write_text("Once")
    (tmp_path / "home" / "groups").mkdir(parents=True)
    (tmp_path / "home" / "letter.txt").write_text("Dear")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("checkpoint", "the checkpoint of a query in the local runtime"),
        ("spark", "the checkpoint of a query on Spark"),
        ("sink", "the output of a query"),
        ("record", "the output of a query"),
        ("tables", r"the state tables or changelogs of 'job', each in a folder below it"),
        ("logs of tables", r"the state tables or changelogs of 'job', each in a folder below it"),
        ("log", "the key groups of a changelog whose file 'header' is missing"),
        ("thesis", r"'chapter-1\.tex' and 1 more"),
        ("home", r"'letter\.txt'"),
    ],
)
def test_a_folder_that_holds_something_else_is_named_and_nothing_is_written_to_it(folders, name, found):
    before = content_of(folders / name)
    with pytest.raises(ChangelogError, match=rf"{name} holds {found}, .*nothing was written.*new or empty"):
        counts(DirectoryChangelog(folders / name)).run()
    assert content_of(folders / name) == before


def interrupted_at(call, changelog, monkeypatch):
    """Let the creation end with a call to the file system, as a kill does, and return whether it came so far."""

    def before(number, *_):
        if number > call:
            # What follows does not happen either, not even removing a temporary file.
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        OsCalls(patch, ("mkdir", "open", "write", "fsync", "link", "unlink"), before)
        try:
            changelog.prepare("job", 1)
        except KeyboardInterrupt:
            return True
    return False


def test_a_creation_goes_on_wherever_an_earlier_one_was_interrupted(tmp_path, monkeypatch):
    left = set()
    for call in range(200):
        changelog = DirectoryChangelog(tmp_path / str(call) / "log")
        interrupted = interrupted_at(call, changelog, monkeypatch)
        left.add(tuple(sorted(path.name.split(".")[0] for path in (tmp_path / str(call)).glob("log/*"))))
        assert changelog.prepare("job", 1) == changelog.header()
        assert counts(changelog).run().values == [("a", 1), ("b", 1), ("a", 2)]
        if not interrupted:
            break
    assert not interrupted
    # Before the folder, with an unpublished header, with the header alone, with each folder.
    assert len(left) >= 5


@pytest.mark.parametrize("name", [".DS_Store", ".nfs0000000000000001", "lost+found"])
def test_what_systems_put_into_an_empty_folder_does_not_count(tmp_path, name):
    (tmp_path / "log" / name).mkdir(parents=True)
    assert counts(DirectoryChangelog(tmp_path / "log")).run().values


def test_a_changelog_with_files_of_others_beside_it_stays_in_use(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    counts(changelog).run()
    (tmp_path / "log" / "NOTES.txt").write_text("keep")
    assert changelog.prepare("job", 1) == changelog.header()


def test_drivers_that_create_one_changelog_at_once_agree(tmp_path):
    for number in range(30):
        changelog = DirectoryChangelog(tmp_path / str(number))
        headers: list[LogHeader] = []
        start = threading.Barrier(4)

        def create(changelog=changelog, headers=headers, start=start):
            start.wait()
            headers.append(changelog.prepare("job", 1))

        threads = [threading.Thread(target=create) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert headers == [changelog.header()] * 4
        shutil.rmtree(tmp_path / str(number))
