"""Tables with a share of the key groups: what they have equals that of whole tables, and what they lack is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

import keyed
from keyed import DirectoryChangelog
from keyed.codec.key_hash import group_of, key_hash
from keyed.errors import DefinitionError, GroupUnavailable, KeyTypeError
from keyed.tables import StateTables, open_tables, read_tables
from keyed.testing import KeyedTestHarness
from tests.keyed.tables.shares import GROUPS, SHARES, counts, open_shares, run, share_of
from tests.support.tables import poll_tables, write_tables


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    with open_shares(tmp_path_factory.mktemp("shares")) as opened:
        yield opened


def reads(tables: StateTables, key: Any) -> dict[str, Any]:
    """Every way to ask for a key."""
    count, items = tables["count"], tables["items"]
    return {
        "get": lambda: count.get(key),
        "many": lambda: count.get_many([key]),
        "query": lambda: count.query(key).found,
        "map": lambda: items.get(key),
        "entry": lambda: items.get(key, 1),
        "past": lambda: count.get(key, as_of=1),
        "scan": lambda: list(items.scan(key=key)),
        "history": lambda: count.history(key),
        "timers": lambda: tables.timers.get(key),
        "subscribe": lambda: [attrs.evolve(change, token="") for change in count.subscribe(key).take(0)],
    }


def test_the_share_of_a_key_answers_as_whole_tables_do_and_the_others_raise(followed):
    _, whole, shares = followed
    for key in (*range(20), *range(100, 110)):
        expected = {name: read() for name, read in reads(whole, key).items()}
        for number, tables in enumerate(shares):
            for name, read in reads(tables, key).items():
                if number == share_of(key):
                    assert read() == expected[name], (key, name)
                    continue
                with pytest.raises(GroupUnavailable, match=r"key group \d, which these tables do not have") as raised:
                    read()
                assert f"key {key} is in key group {group_of(key_hash(key), GROUPS)}," in str(raised.value)


def test_a_key_of_another_type_is_refused_whatever_group_it_has(followed):
    for tables in followed[2]:
        for key in ("1", 1.0, True, (1,)):
            with pytest.raises(KeyTypeError):
                tables["count"].get(key)


def calls_about_all(tables: StateTables) -> dict[str, Any]:
    count = tables["count"]
    return {
        "scan": lambda: sorted((entry.key, entry.value) for entry in count.scan()),
        "prefix": lambda: sorted((entry.key, entry.value) for entry in count.scan(from_=3, to=9)),
        "iteration": lambda: [entry.key for entry in count],
        "len": lambda: [None] * len(count),
        "dataset": lambda: sorted(map(str, count.dataset().to_table()["key"].to_pylist())),
        "sql": lambda: tables.sql("select key, value from count order by key").to_pylist(),
        "timers": lambda: sorted(tables.timers, key=repr),
        "count of timers": lambda: [None] * len(tables.timers),
        "first": lambda: [count.first()][:0],
        "subscribe": lambda: sorted(str(change.key) for change in count.subscribe().take(0)),
        "snapshot": lambda: snapshot_keys(tables),
        "snapshot sql": lambda: snapshot_sql(tables),
    }


def snapshot_keys(tables: StateTables) -> list[Any]:
    with tables.snapshot() as snapshot:
        return sorted(entry.key for entry in snapshot["items"])


def snapshot_sql(tables: StateTables) -> list[Any]:
    with tables.snapshot(1) as snapshot:
        return snapshot.sql("select entry from items order by 1").to_pylist()


def test_calls_about_all_keys_raise_unless_the_share_is_asked_for(followed):
    _, whole, shares = followed
    for name, expected in calls_about_all(whole).items():
        for tables in shares:
            with pytest.raises(GroupUnavailable, match=r"lack .* Use tables.share"):
                calls_about_all(tables)[name]()
        found = [row for tables in shares for row in calls_about_all(tables.share)[name]()]
        assert sorted(found, key=repr) == sorted(expected(), key=repr), name


def test_positions_of_the_shares_add_up_to_that_of_whole_tables(followed):
    _, whole, shares = followed
    total = whole["count"].scan().position
    parts = [tables.share["count"].scan().position for tables in shares]
    assert total.groups is None
    assert [part.groups for part in parts] == [tuple(groups) for groups in SHARES]
    assert sum(part.entries for part in parts) == total.entries
    assert sum(int(part.hash, 16) for part in parts) % (1 << 128) == int(total.hash, 16)
    assert {(part.batch, part.watermark, part.processing_time) for part in parts} == {
        (total.batch, total.watermark, total.processing_time)
    }


def test_wrong_shares_are_refused_before_anything_is_written(tmp_path, followed):
    log = followed[0]
    wrong: list[tuple[Any, str]] = [
        ([], "give the numbers of one or several key groups"),
        ("0-3", "give the numbers"),
        (3, "give the numbers"),
        ([-1], "give the numbers"),
        ([True], "give the numbers"),
        ([0, 1.0], "give the numbers"),
        ([7, 8, 9], "has 8 key groups, 0 to 7, and no 8-9"),
    ]
    for groups, message in wrong:
        with pytest.raises(DefinitionError, match=message):
            open_tables(log, tmp_path / "tables", groups=groups)
    assert not (tmp_path / "tables").exists()


def test_a_folder_keeps_its_share(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(log, 20)
    with poll_tables(log, tmp_path / "tables", groups=[2, 0, 2]) as tables:
        assert tables["count"].groups == (0, 2)
    for groups in (None, [0], range(8)):
        with pytest.raises(DefinitionError, match="have key groups 0, 2 of operator 'Count', and not"):
            open_tables(log, tmp_path / "tables", groups=groups)
    run(log, 40)
    with open_tables(log, tmp_path / "tables", groups=(0, 2)) as tables, read_tables(tmp_path / "tables") as reader:
        assert tables.lag().records < 60
        tables.poll()
        reader.poll()
        assert (tables.rebuilds, tables.batch, reader.batch) == (0, 1, 1)
        mine = [key for key in range(20) if group_of(key_hash(key), GROUPS) in (0, 2)]
        assert sorted(entry.key for entry in reader.share["count"]) == mine
        assert all(tables["count"].get(key) == reader["count"].get(key) == 2 for key in mine)
        with pytest.raises(GroupUnavailable, match="They have key groups 0, 2 of 8"):
            reader.sql("select * from count")
    write_tables(log, tmp_path / "whole")
    with pytest.raises(DefinitionError, match="have all key groups"):
        open_tables(log, tmp_path / "whole", groups=range(8))


def test_another_number_of_key_groups_ends_following_a_share(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(log, 20)
    other = DirectoryChangelog(tmp_path / "other", auto_compact=False)
    counts(40, other, 4, restore_from=keyed.RestorePoint(log)).run(checkpoint=tmp_path / "checkpoint", drain=False)
    write_tables(log, tmp_path / "tables", groups=[0, 1])
    with (
        open_tables(other, tmp_path / "tables", groups=[0, 1]) as tables,
        pytest.raises(DefinitionError, match=r"have key groups 0-1 of 8, and .* has now 4 key groups"),
    ):
        tables.poll()


def test_a_standby_with_a_share_restores_whole_state(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(log, 60)
    points = open_tables(log, tmp_path / "standby", groups=range(4)).take_over()
    for parallelism in (8, 3, 4):
        new = DirectoryChangelog(tmp_path / f"new-{parallelism}", auto_compact=False)
        result = counts(80, new, parallelism, restore_from=points["Count"]).run(drain=False)
        # The other groups are read from the changelog.
        read = result.metrics["Count"]["records_restored"]
        assert read > 0 if parallelism == 3 else 0 < read < 60 * 4
        with poll_tables(new, tmp_path / f"tables-{parallelism}") as tables:
            assert {entry.key: entry.value for entry in tables["count"]} == dict.fromkeys(range(20), 4)


class Rules(keyed.KeyedBroadcastProcessFunction):
    """Multiplies by a rule that all keys see."""

    last = keyed.ValueState(int)

    def process_element(self, value, ctx):
        self.last.update(value)
        return ()

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put("rule", value)
        return ()


RULES = keyed.MapState(str, int, name="rules")


def test_every_share_has_the_broadcast_state_also_in_the_past(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    with KeyedTestHarness(Rules(), key=lambda value: value, parallelism=4, changelog=log, broadcast=[RULES]) as harness:
        for number in range(3):
            harness.process_broadcast_element(number)
            harness.process(number)
    for group in range(4):
        with poll_tables(log, tmp_path / f"tables-{group}", groups=[group]) as tables:
            rules = tables["rules"]
            newest = tables.batch
            assert [rules.get(None, "rule", as_of=batch) for batch in range(newest + 1)] == sorted(
                rules.get(None, "rule", as_of=batch) for batch in range(newest + 1)
            )
            assert rules.get(None, "rule") == 2
            assert [entry.value for entry in rules.scan()] == [2]
            assert len(rules) == 1


def test_reading_a_group_that_is_not_followed_does_not_touch_its_folder(tmp_path: Path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(log, 20)
    for name in (tmp_path / "log" / "groups" / "00007").iterdir():
        name.write_bytes(b"damaged")
    with poll_tables(log, tmp_path / "tables", groups=range(7)) as tables:
        assert len(tables.share["count"]) == sum(1 for key in range(20) if group_of(key_hash(key), GROUPS) < 7)
