"""Jobs with changelogs in an object store, which is named by a URL; credentials and endpoint are in the environment."""

import json
import logging

import pytest

import keyed
from keyed import ObjectStoreChangelog
from keyed.changelog.objects import bucket
from keyed.cli.main import main
from keyed.errors import DefinitionError
from keyed.recovery import read_changelog, verify
from keyed.testing import KeyedTestHarness
from tests.keyed.recovery.test_restore import Count, run_count
from tests.support.s3 import KEY_ID, SECRET
from tests.support.tables import poll_tables

URL = "s3://bucket/jobs/count"


@pytest.fixture(autouse=True)
def _environment(server, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    bucket._store_of.cache_clear()


def test_a_job_is_restored_at_another_parallelism(tmp_path):
    first = run_count(range(100), URL, parallelism=3, checkpoint=tmp_path / "first")
    second = run_count(range(150), URL + "2", restore_from=URL, parallelism=2, checkpoint=tmp_path / "second")
    assert (first.batches, second.batches) == (10, 5)
    assert second.metrics["Count"]["rows_in"] == 150
    for url in (URL, URL + "2"):
        assert [group.problem for group in verify(ObjectStoreChangelog(url))] == [""] * (3 if url == URL else 2)
    assert [group.problem for group in verify(tmp_path / "second", URL + "2")] == ["", ""]


def test_tables_and_readers_take_it(tmp_path):
    run_count(range(100), URL, parallelism=2, checkpoint=tmp_path / "checkpoint")
    with poll_tables(URL, tmp_path / "tables") as tables:
        assert tables.batch == 9
        state = next(iter(tables))
        found = {row.key: row.value for row in tables[state].scan()}
    changes = {change.key: change.value for change in read_changelog(URL, state)}
    assert found == changes
    assert set(found) == set(range(10))
    with KeyedTestHarness.from_changelog(URL, Count(), key=lambda number: number % 10, keys=[3]) as harness:
        assert harness.state(state) == {3: found[3]}


def test_commands_take_it(tmp_path, capsys):
    run_count(range(100), URL, parallelism=2, checkpoint=tmp_path / "checkpoint")
    checkpoint = str(tmp_path / "checkpoint")
    for command in (
        ["verify", URL],
        ["verify", URL, "--checkpoint", checkpoint],
        ["flush", checkpoint, f"Count={URL}"],
        ["compact", URL, "--lag-seconds", "0"],
        ["restore", str(tmp_path / "restored"), URL, "--parallelism", "3"],
        ["tables", URL],
        ["standby", URL, str(tmp_path / "tables"), "--seconds", "0"],
    ):
        assert main(command) == 0, (command, capsys.readouterr())
    said = capsys.readouterr()
    assert "restored batch 9" in said.out
    assert "\n    1     9      10  " in said.out
    assert SECRET not in said.out + said.err


def test_secrets_are_in_nothing_that_a_job_leaves_or_logs(server, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    changelog = ObjectStoreChangelog(URL, server.options)
    keyed.stream(range(30)).key_by(lambda number: number % 10).process(Count(), changelog=changelog).run(
        checkpoint=tmp_path / "checkpoint", tables=tmp_path / "tables"
    )
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    left += json.dumps(sorted(server.objects)).encode() + b"".join(server.objects.values())
    assert left
    assert SECRET.encode() not in left
    assert SECRET not in caplog.text


def test_one_prefix_is_for_one_operator(tmp_path):
    run_count(range(20), URL, parallelism=2)
    with pytest.raises(DefinitionError, match="restore_from and changelog are the same"):
        run_count(range(20), URL, restore_from=URL)
    with pytest.raises(keyed.KeyedError, match="give each operator and number of key groups its own prefix"):
        run_count(range(20), URL, parallelism=3)
