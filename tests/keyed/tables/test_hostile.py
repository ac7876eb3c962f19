"""Hostile input: whatever is asked of tables is answered or refused, and reaches nothing else.

``KEYED_FUZZ=10000`` tries more texts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed.changelog.model import encode_header
from keyed.cli.main import main
from keyed.tables import open_tables
from keyed.tables.sql import run_sql
from tests.support.data_files import read_data
from tests.support.tables import followed

TEXTS = int(os.environ.get("KEYED_FUZZ", "200"))
SECRET = "what nobody may read"
KEYS = ["ann", "<script>alert(1)</script>", "../../etc/passwd", "a\0b", "'; drop table count; --", "ü" * 1_000, ""]

#: What texts are made of: {file} is one that is there, {new} one that must not be, {other} a table that is not given.
QUERIES = read_data("keyed/tables/hostile_queries.json")


class Count(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int)
    items = keyed.MapState(str, str)
    secrets = keyed.ValueState(str)

    def process_element(self, value, ctx):
        self.count.update(len(value))
        self.items.put(value, value)
        self.secrets.update(SECRET)
        return ()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    with followed(Count(), folder, key=lambda value: value, parallelism=2) as (harness, tables):
        with harness.batch():
            for key in KEYS:
                harness.process(key)
        tables.poll()
        yield folder, tables


def texts(folder: Path) -> Iterator[tuple[str, Any]]:
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    print(f"KEYED_SEED={seed}")  # noqa: T201 - repeats a failure
    chance = Random(seed)
    for _ in range(TEXTS):
        text = " ".join(chance.choice(QUERIES["parts"]) for _ in range(chance.choice([1, 1, 1, 2, 3])))
        for name, choices in QUERIES["filled"].items():
            text = text.replace(f"{{{name}}}", chance.choice(choices))
        text = text.replace("{file}", f"{folder}/secret.csv").replace("{new}", f"{folder}/new")
        text = text.replace("{folder}", str(folder))
        if chance.random() < 0.2:
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chr(chance.choice([0, 9, 34, 39, 59, 0x202E, chance.randrange(1, 0xD7FF)])) + text[at:]
        yield text, chance.choice([None, ["ann"], [1, 2], {"key": "ann"}])


def test_no_sql_text_reaches_files_settings_or_other_tables(place, monkeypatch):
    folder, tables = place
    monkeypatch.setenv("KEYED_SECRET", SECRET)
    (folder / "secret.csv").write_text(f"a,b\n1,{SECRET}\n")
    before = sorted(path.name for path in folder.iterdir())
    answered = 0
    # As a server has it whose token is not for the table of secrets.
    given = {name: tables[name] for name in ("count", "items")}
    for text, parameters in texts(folder):
        try:
            found = run_sql(given, text, parameters)
        except (keyed.errors.DefinitionError, keyed.errors.QueryFailed):
            continue
        answered += 1
        assert isinstance(found, pa.Table)
        said = str(found.slice(0, 100).to_pylist())
        assert SECRET not in said, text
        assert "root:" not in said, text
    assert answered > 0
    assert sorted(path.name for path in folder.iterdir()) == before
    # What was asked has left nothing behind, and nothing of one who may ask for more is there for one who may not.
    assert run_sql({"count": tables["count"]}, "select count(*) as n from count").to_pylist() == [{"n": len(KEYS)}]
    assert run_sql(tables, "select count(*) as n from secrets").to_pylist() == [{"n": len(KEYS)}]
    with pytest.raises(keyed.errors.DefinitionError, match="secrets"):
        run_sql(given, "select * from secrets")


@pytest.mark.parametrize("name", ["../log", "/etc/passwd", "count/../items", "", "a\0b", "count.", "Count..count"])
def test_names_lead_to_no_other_folder(place, name):
    folder, tables = place
    with pytest.raises(keyed.errors.TableNotFound):
        tables[name]
    with pytest.raises(keyed.errors.TableNotFound):
        tables.timers_of(name)
    assert main(["scan", str(tables.path), name]) == 1
    with pytest.raises(keyed.KeyedError):
        keyed.tables.read_tables(folder / "log" / (name or "x"))


def test_huge_ranges_are_read_as_they_are_asked_for(place):
    _, tables = place
    table = tables["count"]
    assert len(list(table.scan(limit=2**62))) == len(KEYS)
    assert list(table.scan(prefix="x" * 5_000_000)) == []
    assert list(table.scan(from_="z" * 1_000_000, to="z")) == []
    assert table.get("y" * 5_000_000) is None
    with pytest.raises(keyed.errors.HistoryCompacted):
        table.get("ann", as_of=-(2**70))
    with pytest.raises(keyed.errors.ChangelogError):
        table.get("ann", as_of=2**70)


@pytest.mark.parametrize("token", ["", "A", "!" * 50, "x" * 100_000, "gqFhAQ==", "lKFhAcDC", "\u0661", "k6FhAaFi"])
def test_tokens_that_nobody_gave_are_refused(place, token):
    _, tables = place
    with pytest.raises((keyed.errors.DefinitionError, keyed.errors.HistoryCompacted, keyed.errors.ChangelogError)):
        list(tables["count"].scan(after=token))
    try:
        changes = tables["count"].subscribe(after=token).take(0)
    except keyed.errors.DefinitionError:
        return
    # One that could be of another changelog: the state comes anew.
    assert {change.kind for change in changes} == {"snapshot"}


@pytest.mark.parametrize("name", ["../../out", "/tmp/out", "a/b", "", "a\0b", ".", "..", "a b", "x" * 129])
def test_operators_whose_names_lead_elsewhere_are_refused(tmp_path, name):
    """The name comes from the changelog, and becomes a folder of the tables."""
    log = keyed.DirectoryChangelog(tmp_path / "log")
    header = log.prepare("operator", 1)
    object.__setattr__(header, "operator", name)
    (tmp_path / "log" / "header").write_bytes(encode_header(header))
    with pytest.raises(keyed.errors.CorruptionError, match="names of operators become paths"):
        open_tables(log, tmp_path / "within" / "tables")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
