"""The changelog over SQLite does what every changelog does, and is as short as its page says."""

from __future__ import annotations

import inspect
import sqlite3

import pytest

from examples import sqlite_changelog
from examples.sqlite_changelog import SqliteChangelog
from keyed.errors import ChangelogError, CorruptionError
from keyed.testing import KeyedTestHarness
from keyed.testing.changelog_conformance import ChangelogConformance


class TestSqliteChangelog(ChangelogConformance):
    def make_changelog(self, path):
        return SqliteChangelog(str(path / "log.db"))


def test_it_is_shorter_than_200_lines():
    assert len(inspect.getsource(sqlite_changelog).splitlines()) < 200


def test_the_program_goes_on_from_the_database_alone(tmp_path, capsys):
    sqlite_changelog.main(str(tmp_path / "counts.db"))
    first, second = capsys.readouterr().out.splitlines()
    assert first == "[('to', 1), ('be', 1), ('or', 1), ('not', 1), ('to', 2), ('be', 2)]"
    assert second == "[('is', 1)]"


def test_damage_and_a_file_that_is_no_database_are_told(tmp_path):
    path = tmp_path / "log.db"
    with KeyedTestHarness(sqlite_changelog.Count(), changelog=SqliteChangelog(str(path))) as harness:
        harness.process("a")
    with sqlite3.connect(path) as database:
        database.execute("update commits set marker = substr(marker, 1, 40)")
    database.close()
    with pytest.raises(CorruptionError, match="commit 1"):
        SqliteChangelog(str(path)).reader(0).last()
    path.write_text("no database" * 100)
    with pytest.raises(ChangelogError, match="file is not a database"):
        SqliteChangelog(str(path)).header()
