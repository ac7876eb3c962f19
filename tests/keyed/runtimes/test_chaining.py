"""Chained operators do what they do with a shuffle between them: outputs, state, changelogs and counters."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import DirectoryChangelog, bounded_out_of_orderness, windows
from keyed.cli.inspect_command import inspect_spark
from keyed.errors import CheckpointError, RowError
from keyed.testing import MemoryChangelog, strategies
from tests.keyed.runtimes.conftest import SparkRuntime, long_on_spark
from tests.keyed.runtimes.spark.functions import (
    BIG,
    COUNTED,
    EVERY,
    CombinedColumns,
    Count,
    CountInWindows,
    HandOn,
    Moved,
    expected_counts,
    parquet_rows,
)

ROW = "k string, v bigint"
WINDOWS = "k string, start bigint, n bigint"
KINDS = {"rows": (CountInWindows, WINDOWS), "columns": (CombinedColumns, WINDOWS), "counter": (Count, COUNTED)}
OPERATORS = ("hand", "then")
#: What has to do with the machine, with which worker serves a group, and with when Spark asks for a batch without rows.
CHANCE = {"busy_microseconds", "segments_replayed", "entries_replayed", "stores_rebuilt", "stores_opened"}
CHANCE |= {"log_bytes", "log_rows", "processing_time"}


def rows_of(seed, count=60):
    chance = random.Random(seed)
    return [
        (chance.choice("abcdefgh"), seed * 2 * count + i * 2 + chance.randint(-5, 5), chance.randrange(100))
        for i in range(count)
    ]


def jobs(source, kind, logs, *, chain, parallelism=2, restore_from=None):
    """Two operators, the second keyed as the first, with changelogs."""
    options = {
        name: {
            "name": name,
            "parallelism": parallelism,
            "changelog": logs[name],
            "restore_from": restore_from and restore_from[name],
        }
        for name in OPERATORS
    }
    one = source.key_by("k").process(HandOn(), ROW, **options["hand"])
    by_key = one.key_by("k", chain=chain)
    if kind == "windows":
        by_window = by_key.window(windows.TumblingEventTimeWindows.of(10))
        return one, by_window.aggregate({"count": windows.Count()}, **options["then"])
    function, output = KINDS[kind]
    return one, by_key.process(function(), output, **options["then"])


def changes(logs):
    """The content of the changelogs, by the batch of each operator."""
    found = []
    for name in OPERATORS:
        for change in keyed.recovery.read_changelog(logs[name]):
            commit = change.commit
            where = (commit.sequence, commit.group, commit.watermark, commit.hash)
            found.append((name, *where, *map(repr, attrs.astuple(change, recurse=False)[1:])))
    return sorted(found)


def counters(result):
    return {name: {k: v for k, v in each.items() if k not in CHANCE} for name, each in result.metrics.items()}


ROWS = strategies.streams(
    strategies.rows("k string, t bigint, v int", k=strategies.skewed(*"abcdef"), t=st.just(0), v=st.integers(80, 99)),
    timestamp="t",
    gap=9,
    delay=4,
    late=90,
    min_size=1,
    max_size=30,
).map(lambda stream: [record.value for record in stream])


def outcome(rows, size, kind, *, chain):
    """The results in the local runtime: outputs by batch, changelogs and counters."""
    logs = {name: MemoryChangelog() for name in OPERATORS}
    source = keyed.stream(rows, timestamp="t", watermark=bounded_out_of_orderness(4))
    one, two = jobs(source, kind, logs, chain=chain, parallelism=3)
    sinks = [keyed.collect_sink() for _ in range(3)]
    bound = [output.to(sink) for output, sink in zip((one, one.side_output(BIG), two), sinks, strict=True)]
    result = keyed.run(*bound, rows_per_batch=size, processing_time=lambda: 7)
    return [sink.batches for sink in sinks], changes(logs), counters(result)


@pytest.mark.parametrize("kind", ["rows", "windows", pytest.param("columns", marks=pytest.mark.long)])
@settings(max_examples=settings().max_examples // 2)
@given(rows=ROWS, size=st.integers(1, 30))
def test_outputs_counters_and_changelogs_are_those_with_a_shuffle(kind, rows, size):
    assert outcome(rows, size, kind, chain=True) == outcome(rows, size, kind, chain=False)


def logs_of(folder):
    return {name: DirectoryChangelog(folder / "log" / name) for name in OPERATORS}


def run(runtime, folder, kind, *, reads=None, drain=False, **options):
    """Run what is in ``in`` and has not run. Return the counters."""
    source = runtime.source(reads or folder / "in", watermark=bounded_out_of_orderness(milliseconds=6))
    one, two = jobs(source, kind, logs_of(folder), **options)
    bound = [one.to(folder / "one"), one.side_output(BIG).to(folder / "big"), two.to(folder / "two")]
    if kind == "rows":
        bound.append(two.side_output(EVERY).to(folder / "every"))
    places = {"checkpoint": folder / "ck", "local_dir": folder / "stores"}
    return counters(keyed.run(*bound, **places, drain=drain, **runtime.batches))


def outputs(folder):
    return {name: parquet_rows(folder / name) for name in ("one", "big", "two", "every") if (folder / name).exists()}


def problems(runtime, folder):
    """The problems of a checkpoint and its changelogs."""
    verified = [keyed.recovery.verify(folder / "ck", log, session=runtime.session) for log in logs_of(folder).values()]
    return [each.problem for groups in verified for each in groups]


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_on_spark_outputs_state_changelogs_and_counters_are_those_with_a_shuffle(spark, tmp_path, kind):
    runtime, counted, inspected = SparkRuntime(spark), {}, {}
    for chain in (True, False):
        folder = tmp_path / str(chain)
        for number in range(2):
            runtime.add(folder / "in", rows_of(number))
        first = run(runtime, folder, kind, chain=chain)
        runtime.add(folder / "in", rows_of(2))
        counted[chain] = first, run(runtime, folder, kind, chain=chain, drain=True)
        seen = inspect_spark(spark, str(folder / "ck"))
        inspected[chain] = {name: (each.batch, each.groups, each.watermark) for name, each in seen.items()}
        assert not any(problems(runtime, folder))
    for of in (outputs, lambda folder: changes(logs_of(folder))):
        assert of(tmp_path / "True") == of(tmp_path / "False")
    assert counted[True] == counted[False]
    assert inspected[True] == inspected[False]
    assert inspected[True].keys() == {*OPERATORS}


@long_on_spark
def test_a_checkpoint_goes_on_as_it_began(runtime, tmp_path):
    for chain in (True, False):
        runtime.add(tmp_path / str(chain) / "in", rows_of(0))
        run(runtime, tmp_path / str(chain), "rows", chain=chain)
        runtime.add(tmp_path / str(chain) / "in", rows_of(1))
    # What began unchained stays so, whatever the query says; what began chained is not taken apart.
    with pytest.raises(CheckpointError, match=r"'then' runs chained to 'hand' in the checkpoint.*chain=False"):
        run(runtime, tmp_path / "True", "rows", chain=False)
    counted = [run(runtime, tmp_path / str(chain), "rows", chain=True, drain=True) for chain in (True, False)]
    for of in (outputs, lambda folder: changes(logs_of(folder))):
        assert of(tmp_path / "True") == of(tmp_path / "False")
    assert counted[0] == counted[1]


@long_on_spark
def test_chained_operators_are_restored_at_another_parallelism_and_layout(runtime, tmp_path):
    before = tmp_path / "before"
    runtime.add(before / "in", rows_of(0))
    run(runtime, before, "rows", chain=True)
    runtime.add(before / "in", rows_of(1))
    for chain in (True, False):
        restored = {"parallelism": 3, "restore_from": logs_of(before), "reads": before / "in"}
        run(runtime, tmp_path / str(chain), "rows", chain=chain, drain=True, **restored)
        assert problems(runtime, tmp_path / str(chain)) == [""] * 6
    run(runtime, before, "rows", chain=True, drain=True)
    assert outputs(tmp_path / "True") == outputs(tmp_path / "False")
    assert set(outputs(tmp_path / "True")["two"]) <= set(outputs(before)["two"])


def test_a_row_of_another_key_group_is_refused(runtime):
    moved = runtime.stream(rows_of(0), timestamp="t").key_by("k").process(Moved(), ROW, name="moved", parallelism=4)
    for then, output in ((Count(), COUNTED), (CombinedColumns(), WINDOWS)):
        with pytest.raises(RowError, match=r"'then' runs chained to 'moved', and key 'moved .' .*chain=False"):
            moved.key_by("k").process(then, output, name="then", parallelism=4).run()
    shuffled = moved.key_by("k", chain=False).process(Count(), COUNTED, name="then", parallelism=4)
    expected = expected_counts([(f"moved {k}", t, v) for k, t, v in rows_of(0)])
    assert sorted(map(tuple, shuffled.run().values)) == expected


def test_an_operator_that_begins_in_a_restored_query_is_not_taken_for_an_older_one(tmp_path, caplog):
    rows = [{"k": "a", "v": v, "t": v} for v in range(6)]
    changelog = DirectoryChangelog(tmp_path / "log")
    options: Any
    for number, options in enumerate(({"changelog": changelog}, {"restore_from": changelog})):
        source = keyed.stream(rows[: 4 + 2 * number], timestamp="t")
        one = source.key_by("k").process(HandOn(), ROW, name="hand", **options)
        two = one.key_by("k").process(Count(), COUNTED, name="then")
        two.run(checkpoint=tmp_path / f"ck{number}", rows_per_batch=2)
    assert "did not record" not in caplog.text
