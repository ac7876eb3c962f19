"""The logs of file sources, in a checkpoint as Spark writes them and in a changelog."""

import json
import zlib

import pytest

from keyed.errors import CheckpointError, CorruptionError
from keyed.runtimes.spark.checkpoint.begin import KeptFiles, put_files
from keyed.runtimes.spark.checkpoint.folder import open_checkpoint
from keyed.testing import MemoryChangelog

INTERVAL = 10


@pytest.fixture
def changelog():
    made = MemoryChangelog()
    made.prepare("op", 1)
    return made


@pytest.fixture
def folder(tmp_path):
    return open_checkpoint(str(tmp_path / "old"))


def entry(batch, number=0):
    return {"path": f"file:///in/{batch}-{number}", "timestamp": 1_600_000_000_000 + batch, "batchId": batch}


def take(folder, batch, count=1, source=1):
    """Let the file source take files as its next batch, as Spark logs it."""
    entries = [entry(batch, number) for number in range(count)]
    name = str(batch)
    if (batch + 1) % INTERVAL == 0:
        name = f"{batch}.compact"
        for before in range(batch - 1, -1, -1):
            compacted = folder.read(f"sources/{source}/{before}.compact")
            content = compacted or folder.read(f"sources/{source}/{before}")
            entries += map(json.loads, content.decode().split("\n")[1:])
            if compacted:
                break
    rows = ["v1", *(json.dumps(each, separators=(",", ":")) for each in entries)]
    folder.write(f"sources/{source}/{name}", "\n".join(rows).encode())
    return ['{"topic":{"0":5}}', json.dumps({"logOffset": batch}, separators=(",", ":"))]


def restored(tmp_path, changelog, lines, source=1):
    """The names that a restored checkpoint has of the file source's files."""
    folder = open_checkpoint(str(tmp_path / "new"))
    assert folder is not None
    found = put_files(folder, changelog, lines)
    assert found == ['{"topic":{"0":5}}', '{"logOffset": 0}']
    assert folder.names(f"sources/{source}") == ["0"]
    version, *rows = (folder.read(f"sources/{source}/0") or b"").decode().split("\n")
    assert version == "v1"
    entries = [json.loads(row) for row in rows]
    assert {each["batchId"] for each in entries} <= {0}
    return sorted((each["path"], each["timestamp"]) for each in entries)


def expected(last, counts):
    return sorted(
        (entry(b, n)["path"], entry(b, n)["timestamp"]) for b in range(last + 1) for n in range(counts.get(b, 1))
    )


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "started again"])
def test_files_are_kept_batch_by_batch(tmp_path, folder, changelog, restarts):
    counts, at = {3: 5, 7: 0, 12: 3}, {}
    files = KeptFiles(folder, changelog)
    for batch in range(25):
        at[batch] = take(folder, batch, counts.get(batch, 1))
        files.keep(at[batch])
        if restarts:
            files = KeptFiles(folder, changelog)
            files.keep(at[batch])
    assert [name for name, _ in changelog.kept()] == [
        "files-1-0-7-0",
        "files-1-16-23-0",
        "files-1-24-24-0",
        "files-1-8-15-0",
    ]
    for last in (0, 3, 9, 10, 24):
        assert restored(tmp_path, changelog, at[last]) == expected(last, counts)


def test_there_are_few_records_however_many_batches_there_were(tmp_path, folder, changelog):
    files, at = KeptFiles(folder, changelog), {}
    for batch in range(400):
        at[batch] = take(folder, batch)
        files.keep(at[batch])
        assert len(list(changelog.kept())) <= 21
    for last in (0, 333, 399):
        assert restored(tmp_path, changelog, at[last]) == expected(last, {})


def test_a_crash_while_records_are_folded_costs_nothing(tmp_path, folder, changelog):
    class Crash(Exception):
        pass

    def crash(names):
        raise Crash

    for batch in range(7):
        KeptFiles(folder, changelog).keep(take(folder, batch))
    forget, changelog.forget = changelog.forget, crash
    lines = take(folder, 7)
    with pytest.raises(Crash):
        KeptFiles(folder, changelog).keep(lines)
    changelog.forget = forget
    assert len(list(changelog.kept())) == 9
    assert restored(tmp_path, changelog, lines) == expected(7, {})
    for batch in range(8, 100):
        lines = take(folder, batch)
        KeptFiles(folder, changelog).keep(lines)
    assert len(list(changelog.kept())) <= 14
    assert restored(tmp_path, changelog, lines) == expected(99, {})


def test_a_changelog_that_comes_later_gets_all_files(tmp_path, folder, changelog):
    for batch in range(23):
        lines = take(folder, batch, count=300)
    KeptFiles(folder, changelog).keep(lines)
    names = [name for name, _ in changelog.kept()]
    assert names == [f"files-1-0-22-{part}" for part in range(4)]
    assert restored(tmp_path, changelog, lines) == expected(22, dict.fromkeys(range(23), 300))


def test_what_spark_has_cleaned_away_is_in_a_later_compaction(tmp_path, folder, changelog):
    # A crash may leave the changelog far behind, and Spark deletes what a compaction has.
    at = {batch: take(folder, batch) for batch in range(20)}
    KeptFiles(folder, changelog).keep(at[2])
    for batch in range(19):
        for name in (str(batch), f"{batch}.compact"):
            (tmp_path / "old/sources/1" / name).unlink(missing_ok=True)
    KeptFiles(folder, changelog).keep(at[17])
    assert restored(tmp_path, changelog, at[17]) == expected(17, {})


def test_half_of_what_was_to_be_kept_does_not_count(tmp_path, folder, changelog):
    at = {batch: take(folder, batch, count=1500) for batch in range(3)}
    half = MemoryChangelog()
    KeptFiles(folder, half).keep(at[1])
    (name, data), _ = half.kept()
    changelog.keep(name, data)
    KeptFiles(folder, changelog).keep(at[2])
    assert restored(tmp_path, changelog, at[2]) == expected(2, dict.fromkeys(range(3), 1500))


def test_sources_of_other_kinds_stay_as_they_are(tmp_path, folder, changelog):
    lines = ['{"topic":{"0":5}}', '{"offset":3,"timestamp":3000}', "-", '{"sourceVersion":1,"index":2}']
    KeptFiles(folder, changelog).keep(lines)
    assert list(changelog.kept()) == []
    assert put_files(folder, changelog, lines) == lines
    assert folder.names("sources/0") == []


def test_missing_files_are_missed(tmp_path, folder, changelog):
    lines = [take(folder, batch) for batch in range(4)]
    for each in lines:
        KeptFiles(folder, changelog).keep(each)
    changelog.forget(["files-1-1-1-0"])
    with pytest.raises(
        CorruptionError, match="position at batch 3 of file source 1, and lacks the files of its batch 1"
    ):
        put_files(folder, changelog, lines[3])
    (tmp_path / "old/sources/1/1").unlink()
    with pytest.raises(CheckpointError, match="lacks batch 1 of file source 1"):
        KeptFiles(folder, changelog).keep(lines[3])


def test_another_version_of_the_log_is_refused(tmp_path, folder, changelog):
    lines = take(folder, 0)
    folder.write("sources/1/0", b"v2\n{}")
    with pytest.raises(CheckpointError, match="version 'v2', not 'v1'"):
        KeptFiles(folder, changelog).keep(lines)


@pytest.mark.parametrize("data", [b"", b"junk", *map(zlib.compress, (b"[1", b"7", b'[1,[{"path":"p"}]]'))])
def test_damage_is_named(tmp_path, folder, changelog, data):
    changelog.keep("files-0-0-0-0", data)
    with pytest.raises(CorruptionError, match="files-0-0-0-0 is malformed"):
        put_files(folder, changelog, ['{"logOffset":0}'])
