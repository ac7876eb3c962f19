"""Broadcast state against a plain model, over restarts and restores, and how it is seen."""

from __future__ import annotations

import json
import random

import attrs
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import MapState, OutputTag
from keyed.changelog import DirectoryChangelog
from keyed.cli.main import main
from keyed.errors import DefinitionError, KeyTypeError
from keyed.recovery import verify
from keyed.testing import KeyedTestHarness, strategies
from keyed.testing.scripts import Rows
from tests.keyed.runtimes.conftest import long_on_spark
from tests.keyed.runtimes.spark.functions import RULES, SCHEMA, Limits, limits_of, parquet_rows, write_file
from tests.keyed.runtimes.test_two_inputs import in_order, tuples
from tests.support.jobs import Pass, collect, watermarks_of
from tests.support.spark_programs import Program
from tests.support.tables import client_of, poll_tables

BAD, BAD_RULES = OutputTag("bad"), OutputTag("bad_rules")


def rows_of(seed, number, keys="abcdefgh"):
    chance = random.Random(seed)
    return [{"k": chance.choice(keys), "t": i, "v": chance.randrange(100)} for i in range(number)]


def rules_of(seed, number):
    """Return rules: some remove one, and a few reset the counts."""
    chance = random.Random(seed)
    limits = [*range(0, 100, 7), -1, -1, -1, 1000]
    return [{"k": f"r{chance.randrange(6)}", "t": i, "v": chance.choice(limits)} for i in range(number)]


def batches_of(rules, rows, size):
    """Return the batches that the local runtime makes: so many of each side."""
    count = -(-max(len(rules), len(rows)) // size)
    return [(rules[i * size : (i + 1) * size], rows[i * size : (i + 1) * size]) for i in range(count)]


def limits(rows, rules, *, timed=True, **options):
    first = keyed.stream(rows, timestamp="t")
    second = keyed.stream(rules, timestamp="t") if timed else keyed.stream(rules)
    return first.key_by("k").connect(second.broadcast(RULES)).process(Limits(), **options)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("make", [list, pa.Table.from_pylist, pd.DataFrame])
def test_every_key_group_has_the_rules_of_a_batch_before_its_rows(make, parallelism):
    rows, rules = rows_of(1, 100), rules_of(2, 40)
    for size in (7, 1000):
        result = limits(make(rows), make(rules), parallelism=parallelism).run(rows_per_batch=size)
        assert sorted(result.values) == limits_of(batches_of(rules, rows, size))
        assert result.metrics["Limits"]["rows_in"] == 140


@pytest.mark.parametrize("parallelism", [1, 3])
def test_both_sides_may_be_outputs_of_operators(parallelism):
    rows, rules = rows_of(7, 30), [rule for rule in rules_of(8, 10) if rule["v"] != 1000]
    first, second = (
        keyed.stream(each, timestamp="t")
        .key_by("k")
        .process(Pass(), "k string, t bigint, v bigint", name=name, parallelism=2)
        for name, each in (("rows", rows), ("rules", rules))
    )
    out = first.key_by("k").connect(second.broadcast(RULES)).process(Limits(), parallelism=parallelism)
    result = out.run(rows_per_batch=10)
    assert sorted(result.values) == limits_of(batches_of(rules, rows, 10))
    assert result.metrics["Limits"]["rows_in"] == 30 + len(rules)


ELEMENTS = strategies.streams(
    strategies.rows(
        "k string, t bigint, v int", k=strategies.skewed("a", "b", "c"), v=st.sampled_from([0, 3, 5, -1, 1000])
    ),
    timestamp="t",
    gap=1,
)
STEPS = strategies.two_streams(ELEMENTS, ELEMENTS).flatmap(
    lambda stream: strategies.steps(stream, clocks=False, crashes=True, parallelisms=(1, 2, 3, 5))
)


@pytest.mark.parametrize("store", ["memory", pytest.param("rocksdb", marks=pytest.mark.slow)])
@given(STEPS, st.integers(1, 3))
def test_it_is_as_a_plain_model_whatever_happens(store, steps, parallelism):
    rules, seen = dict[str, int](), dict[str, int]()
    with KeyedTestHarness(Limits(), key="k", broadcast=[RULES], store=store, parallelism=parallelism) as harness:
        for step in steps:
            step.do(harness, harness.function)
            if isinstance(step, Rows):
                rows, of_rules = ([row.value for row in step.rows if row.input == side] for side in (1, 2))
                found = sorted(record.value for record in harness.take_output())
                assert found == limits_of([(of_rules, rows)], rules, seen)
            assert harness.broadcast_state("rules") == rules or not harness.metrics()
            assert harness.state("seen") == seen


def test_a_run_goes_on_and_is_restored_with_another_parallelism(tmp_path, capsys):
    rows, rules = rows_of(4, 90), [rule for rule in rules_of(5, 60) if rule["v"] != 1000]
    changelog = DirectoryChangelog(tmp_path / "log")
    known: dict[str, int] = {}
    seen: dict[str, int] = {}
    expected = limits_of([(rules[:20], rows[:30]), (rules[20:40], rows[30:60])], known, seen)
    values = []
    for number in (1, 2):
        job = limits(rows[: 30 * number], rules[: 20 * number], parallelism=4, changelog=changelog)
        values += job.run(checkpoint=tmp_path / "ck").values
    assert sorted(values) == expected
    assert [found.problem for found in verify(changelog)] == [""] * 4
    assert [found.problem for found in verify(tmp_path / "ck", changelog)] == [""] * 4

    # Programs and commands see the rules once, and not once for each key group.
    changes = list(keyed.recovery.read_changelog(changelog, "rules", map_key_type=str))
    assert {change.key for change in changes} == {None}
    assert len(changes) == len({(change.commit.sequence, change.entry) for change in changes})
    assert main(["inspect", str(tmp_path / "ck"), "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)["states"]["rules"]
    assert (inspected["kind"], inspected["entries"]) == ("broadcast", len(known))
    with poll_tables(changelog, tmp_path / "open", types={"rules": RULES}) as tables:
        table = tables["rules"]
        assert {entry.entry: entry.value for entry in table.scan()} == known
        name = next(iter(known))
        assert table.get(None, name) == known[name]
        with pytest.raises(KeyTypeError, match=r"get\(None, "):
            table.get(name)
        assert main(["get", str(tmp_path / "log"), "rules", "null", "--entry", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == known[name]
        with client_of(tables) as client:
            asked = client.get("/tables/rules/keys/null", params={"entry": name}).json()
        assert (asked["key"], asked["value"]) == (None, known[name])
        assert tables.sql("SELECT entry, value FROM rules").to_pylist() == [
            {"entry": name, "value": known[name]} for name in sorted(known)
        ]

    # Restored from the open tables.
    again = DirectoryChangelog(tmp_path / "again")
    point = keyed.RestorePoint(changelog, standby=tmp_path / "open")
    result = limits(rows, rules, parallelism=3, restore_from=point, changelog=again).run(checkpoint=tmp_path / "ck2")
    assert sorted(result.values) == limits_of([(rules[40:], rows[60:])], dict(known), dict(seen))
    assert [found.problem for found in verify(tmp_path / "ck2", again)] == [""] * 3


def test_the_watermark_is_the_least_of_both_sides_where_rules_have_times():
    rows, rules = rows_of(1, 20), rules_of(2, 4)
    assert watermarks_of(limits(rows, rules), rows_per_batch=10) == [2, 2, keyed.MAX_TIMESTAMP]
    assert watermarks_of(limits(rows, rules, timed=False), rows_per_batch=10) == [8, 18, keyed.MAX_TIMESTAMP]


def test_each_source_has_its_own_bad_rows_and_late_ones_are_counted_once():
    rows = [{"k": "a", "t": 50, "v": 1}, {"k": None, "t": 51, "v": 1}, {"k": "b", "t": 3, "v": 1}]
    rules = [{"k": "r", "t": 50, "v": 1}, {"k": "s", "t": None, "v": 1}, {"k": "u", "t": 4, "v": 0}]
    first = keyed.stream(rows, timestamp="t", on_bad_row=BAD)
    second = keyed.stream(rules, timestamp="t", on_bad_row=BAD_RULES)
    out = first.key_by("k").connect(second.broadcast(RULES)).process(Limits(), parallelism=3)
    (_, bad, bad_rules), result = collect(out, out.side_output(BAD), out.side_output(BAD_RULES), rows_per_batch=1)
    assert [row.v for row in bad] == [1]
    assert [row.k for row in bad_rules] == ["s"]
    metrics = result.metrics["Limits"]
    assert (metrics["rows_in"], metrics["rows_bad"], metrics["rows_late"]) == (4, 2, 2)


def test_times_on_the_broadcast_side_alone_are_refused():
    with pytest.raises(DefinitionError, match="one of the streams has timestamps"):
        keyed.stream([]).key_by("k").connect(keyed.stream([], timestamp="t").broadcast(RULES))


def test_a_drained_checkpoint_takes_no_more_rules(tmp_path):
    limits(rows_of(1, 3), rules_of(2, 3)).run(checkpoint=tmp_path, drain=True)
    with pytest.raises(keyed.errors.CheckpointFinished):
        limits(rows_of(1, 3), rules_of(2, 4)).run(checkpoint=tmp_path)


@attrs.frozen
class Limit:
    least: int


@attrs.frozen
class NotedLimit(Limit):
    note: str


class Reached(keyed.KeyedBroadcastProcessFunction):
    """Tells which limits a row reaches. The class of the limits and the name of the state may be others."""

    def __init__(self, descriptor, limit):
        self.descriptor, self.limit = descriptor, limit

    def process_element(self, value, ctx):
        yield value.k, [limit for _, limit in sorted(ctx.get_broadcast_state(self.descriptor).items())]

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(self.descriptor)[value.k] = self.limit(value.v)


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_declared_migration_goes_over_broadcast_state(tmp_path, parallelism):
    log, rules = DirectoryChangelog(tmp_path / "log"), [{"k": "r", "v": 1}, {"k": "s", "v": 2}]

    def reached(function, rows, **options):
        stream = keyed.stream(rows).key_by("k").connect(keyed.stream(rules).broadcast(function.descriptor))
        return stream.process(function, name="reached", **options).run(drain=False).values

    old = MapState(str, Limit, name="limits")
    reached(Reached(old, Limit), [{"k": "a"}], parallelism=3, changelog=log)
    new = Reached(MapState(str, NotedLimit, name="settings"), lambda least: NotedLimit(least, "new"))
    migrate = keyed.StateMigration(renamed={"limits": "settings"}, added={"settings": {"note": "old"}})
    rules.append({"k": "t", "v": 3})
    options = {"parallelism": parallelism, "restore_from": keyed.RestorePoint(log, migrate=migrate)}
    assert reached(new, [{"k": "a"}, {"k": "b"}], **options) == [
        ("b", [NotedLimit(1, "old"), NotedLimit(2, "old"), NotedLimit(3, "new")])
    ]
    with pytest.raises(keyed.errors.StateSchemaChanged, match="broadcast state 'limits' of str"):
        reached(new, [{"k": "a"}], restore_from=log)


# On Spark ------------------------------------------------------------------------------------------------------------


OUTPUT = "k string, n bigint, reached bigint"


def limits_on_spark(rows, rules, *, on_bad_row=None, **options):
    first, second = keyed.stream(rows, timestamp="t"), keyed.stream(rules, timestamp="t", on_bad_row=on_bad_row)
    return first.key_by("k").connect(second.broadcast(RULES)).process(Limits(), OUTPUT, name="limits", **options)


def test_batch_dataframes_give_what_a_plain_model_gives(spark):
    rows, rules = rows_of(1, 60), rules_of(2, 40)
    frames = (
        spark.createDataFrame(tuples(rows), SCHEMA),
        spark.createDataFrame([*tuples(rules), ("bad", None, 3)], SCHEMA).repartition(1),
    )
    out = limits_on_spark(*frames, on_bad_row=BAD_RULES, parallelism=3)
    (main, bad), result = collect(out, out.side_output(BAD_RULES))
    assert in_order(main) == limits_of([(rules, rows)])
    assert [row.k for row in bad] == ["bad"]
    assert (result.metrics["limits"]["rows_in"], result.metrics["limits"]["rows_bad"]) == (100, 1)
    plan = out.df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1


@long_on_spark
def test_a_query_goes_on_and_is_restored_with_another_parallelism(runtime, tmp_path):
    rows, rules = rows_of(3, 90), [rule for rule in rules_of(4, 60) if rule["v"] != 1000]
    runtime.size = 30
    changelog = DirectoryChangelog(tmp_path / "log")
    batches = [(rules[20 * i : 20 * i + 20], rows[30 * i : 30 * i + 30]) for i in range(3)]
    values, watermarks = [], []

    def run(number, checkpoint, *, drain=False, **options):
        for name, part in zip(("rules", "in"), batches[number], strict=True):
            runtime.add(tmp_path / name, tuples(part))
        first, second = (runtime.source(tmp_path / name) for name in ("in", "rules"))
        job = first.key_by("k").connect(second.broadcast(RULES)).process(Limits(), OUTPUT, name="limits", **options)
        options = {"checkpoint": tmp_path / checkpoint, "drain": drain, **runtime.batches}
        values.extend(job.run(on_progress=lambda each: watermarks.append(each.watermark), **options).values)

    for number in (0, 1):
        run(number, "ck", parallelism=2, changelog=changelog)
    assert watermarks[-1] == batches[1][0][-1]["t"] - 1
    keyed.recovery.flush(tmp_path / "ck", {"limits": changelog}, session=runtime.session)
    for place in ([changelog], [tmp_path / "ck", changelog]):
        assert [group.problem for group in verify(*place, session=runtime.session)] == ["", ""]
    run(2, "ck2", parallelism=3, restore_from=changelog, drain=True)
    assert in_order(values) == limits_of(batches)


@pytest.mark.long
@pytest.mark.spark
def test_a_killed_query_ends_as_an_undisturbed_one(tmp_path):
    rows, rules = rows_of(5, 120), rules_of(6, 60)
    batches = [(rules[15 * i : 15 * i + 15], rows[30 * i : 30 * i + 30]) for i in range(4)]
    for number, (new, some) in enumerate(batches):
        write_file(tmp_path / "rules", number, tuples(new))
        write_file(tmp_path / "in", number, tuples(some))
    life = Program("killed_jobs.apply_rules", tmp_path)
    assert life.wait_for_batches(2), life.said()
    life.kill()
    assert "DONE" not in life.said()
    status, said = Program("killed_jobs.apply_rules", tmp_path).end()
    assert status == 0, said
    assert sorted(parquet_rows(tmp_path / "sink")) == limits_of(batches_read(tmp_path / "checkpoint", rules, rows))


def batches_read(checkpoint, rules, rows):
    """Return the rules and rows of each batch: after a kill a file source may give two of its files at once."""
    read, before = [], (0, 0)
    for number in range(len(list((checkpoint / "offsets").glob("[0-9]*")))):
        lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()[2:4]
        ends = tuple(json.loads(line)["logOffset"] + 1 for line in lines)
        read.append((rules[15 * before[1] : 15 * ends[1]], rows[30 * before[0] : 30 * ends[0]]))
        before = ends
    assert before == (4, 4)
    return read
