"""The commands that check, flush, restore and follow."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from keyed.changelog import DirectoryChangelog, KafkaChangelog
from keyed.cli.command import changelog_of
from keyed.cli.main import main, parser
from keyed.engine.group_log import encode_meta
from keyed.errors import DefinitionError
from keyed.stores.commit_store import CommitStore
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life
from tests.keyed.recovery.test_restore import broken_off, run_count


@pytest.fixture
def log(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run_count(range(100), log, parallelism=2, checkpoint=tmp_path / "checkpoint")
    return log


def test_verify(log, tmp_path, capsys):
    assert main(["verify", log.path]) == 0
    head, *lines, word = capsys.readouterr().out.splitlines()
    assert word == "verified"
    assert head.split() == ["group", "first", "batch", "last", "batch", "entries"]
    assert [line.split() for line in lines] == [["0", "0", "9", "5"], ["1", "0", "9", "5"]]
    assert main(["verify", log.path, "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_verify_takes_a_checkpoint_alone(log, tmp_path, capsys):
    checkpoint = str(tmp_path / "checkpoint")
    assert main(["verify", checkpoint]) == 0
    _, *lines, _ = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["0", "9", "9", "5"], ["1", "9", "9", "5"]]
    with closing(CommitStore(checkpoint)) as commits:
        kept = commits.group_log("Count", 1)
        meta = kept.meta("a test")
        assert meta is not None
        meta.hash = "0" * 32
        kept.write_meta(encode_meta(meta))
        commits.commit()
    assert main(["verify", checkpoint]) == 1
    assert "group 1: the hash of its 5 live entries is" in capsys.readouterr().err


def test_verify_of_a_checkpoint_takes_all_its_operators(tmp_path, capsys):
    life = Life(tmp_path, "functions")
    broken_off(life, 8)
    assert main(["verify", str(life.folder / "checkpoint")]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("operator")] == ["operator Windows", "operator Totals"]


def test_verify_tells_what_is_wrong(log, tmp_path, capsys):
    segment = sorted((tmp_path / "log" / "groups" / "00001").iterdir())[3]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    assert main(["verify", log.path]) == 1
    said = capsys.readouterr()
    assert "group 1: " in said.err
    assert said.out.splitlines()[-1] == "not verified: 1 of 2 key groups"
    assert str(segment) in said.err
    assert main(["verify", str(tmp_path / "none")]) == 1
    assert main(["verify", str(tmp_path / "none"), "--checkpoint", str(tmp_path / "checkpoint")]) == 1


def test_flush(tmp_path, capsys):
    run_count(range(100), checkpoint=tmp_path / "checkpoint")
    command = ["flush", str(tmp_path / "checkpoint"), f"Count={tmp_path / 'log'}"]
    for _ in range(2):
        assert main(command) == 0
        assert capsys.readouterr().out == "Count: batch 9\n"
    assert main(["verify", str(tmp_path / "log"), "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    assert main(["flush", str(tmp_path / "checkpoint"), str(tmp_path / "log")]) == 1
    assert "give OPERATOR=CHANGELOG" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--parallelism", "1"], ["--parallelism", "5"], ["--as-of", "3"]])
def test_restore(log, tmp_path, capsys, options):
    restored = str(tmp_path / "restored")
    assert main(["restore", restored, log.path, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    batch = 3 if "--as-of" in options else 9
    assert lines[0].startswith("Count: 1/2 key groups, ")
    assert lines[-1] == f"restored batch {batch}"
    parallelism = int(options[1]) if "--parallelism" in options else 2
    new = DirectoryChangelog(tmp_path / "new")
    result = run_count(range(110), new, checkpoint=restored, parallelism=parallelism)
    assert (result.batches, result.metrics["Count"]["rows_in"]) == (10 - batch, 110)
    assert main(["restore", restored, log.path]) == 1
    assert "is a checkpoint of the local runtime; give a new folder" in capsys.readouterr().err
    assert main(["verify", new.path, "--checkpoint", restored]) == 0


def test_restore_of_a_whole_job(tmp_path):
    undisturbed = Life(tmp_path / "undisturbed", "functions")
    jobs.run(undisturbed)
    life = Life(tmp_path / "job", "functions")
    broken_off(life, 8)
    # In the order in which the operators are in the query.
    logs = [life.changelog(operator, 0).path for operator in ("Windows", "Totals")]
    life.lose_checkpoint()
    assert main(["restore", str(life.folder / "checkpoint"), *logs]) == 0
    jobs.run(life)
    assert jobs.written(life.folder) == jobs.written(undisturbed.folder)


@pytest.mark.parametrize("parallelism", ["0", "-2", "40000"])
def test_restore_at_no_parallelism(log, tmp_path, capsys, parallelism):
    assert main(["restore", str(tmp_path / "a"), log.path, "--parallelism", parallelism]) == 1
    assert f"parallelism={parallelism} must be an int from 1 to 32768" in capsys.readouterr().err


def test_restore_at_a_time(log, tmp_path, capsys):
    assert main(["restore", str(tmp_path / "a"), log.path, "--as-of", "1970-01-01T00:00:03.5Z"]) == 0
    assert "restored batch 3" in capsys.readouterr().out
    for wrong in ("soon", "1970-01-01T00:00:03"):
        assert main(["restore", str(tmp_path / "b"), log.path, "--as-of", wrong]) == 1
        assert "as_of=" in capsys.readouterr().err.replace("-", "_")


def test_standby(log, tmp_path, capsys):
    command = ["standby", log.path, str(tmp_path / "copy"), "--every", "0.01", "--seconds", "0"]
    assert main(command) == 0
    assert capsys.readouterr().out == "batch 9, following, 0 records and 0.0 s behind\n"
    assert main(command) == 0
    assert capsys.readouterr().out == ""


def test_a_standby_ends_with_what_cannot_pass(log, tmp_path, capsys):
    command = ["standby", log.path, str(tmp_path / "copy"), "--seconds", "0"]
    assert main(command) == 0
    capsys.readouterr()
    other = DirectoryChangelog(tmp_path / "other", auto_compact=False)
    run_count(range(100), other, parallelism=2)
    command[1] = other.path
    assert main(command) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "error: the tables in" in said.err
    assert "whose job was not restored from it" in said.err


def test_names_of_changelogs():
    def named(text: str, *options: str) -> Any:
        return changelog_of(text, parser().parse_args(["verify", text, *options]), may_be_new=True)

    assert named("some/folder") == DirectoryChangelog("some/folder", auto_compact=False)
    given = ("security.protocol=SSL", "ssl.ca.location=a=b", "client.rack=")
    settings = [word for setting in given for word in ("--kafka-setting", setting)]
    assert named("kafka://one:9092,two:9092/topic", *settings) == KafkaChangelog(
        "topic",
        bootstrap="one:9092,two:9092",
        settings={"security.protocol": "SSL", "ssl.ca.location": "a=b", "client.rack": ""},
    )
    for wrong in (
        ["kafka://one"],
        ["kafka:///topic"],
        ["kafka://one/"],
        ["kafka://one/t", "--kafka-setting", "x"],
        ["kafka://one/t", *settings, "--kafka-setting", "client.rack=b"],
    ):
        with pytest.raises(DefinitionError, match="give"):
            named(*wrong)
