"""Chained operators on Spark do what they do with a shuffle between them: outputs, state, changelogs and counters."""

from __future__ import annotations

import random

import pytest

import keyed
from keyed import DirectoryChangelog, bounded_out_of_orderness
from keyed.cli.inspect_command import inspect_spark
from keyed.errors import CheckpointError, RowError
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
    files_source,
    parquet_rows,
    write_file,
)

ROW = "k string, v bigint"
WINDOWS = "k string, start bigint, n bigint"
KINDS = {"rows": (CountInWindows, WINDOWS), "columns": (CombinedColumns, WINDOWS), "counter": (Count, COUNTED)}
#: What has to do with the machine, with which worker serves a group, and with when Spark asks for a batch without rows.
CHANCE = {"busy_microseconds", "segments_replayed", "entries_replayed", "stores_rebuilt", "stores_opened"}
CHANCE |= {"log_bytes", "log_rows", "processing_time"}


def rows_of(seed, count=60):
    chance = random.Random(seed)
    return [
        (chance.choice("abcdefgh"), seed * 2 * count + i * 2 + chance.randint(-5, 5), chance.randrange(100))
        for i in range(count)
    ]


def jobs(source, folder, kind, *, chain, parallelism=2, **options):
    """Two operators, the second keyed as the first, with changelogs."""
    function, output = KINDS[kind]
    logs = {name: DirectoryChangelog(folder / "log" / name) for name in ("hand", "then")}
    more = {name: {key: value[name] for key, value in options.items()} for name in logs}
    one = source.key_by("k").process(
        HandOn(), ROW, name="hand", parallelism=parallelism, changelog=logs["hand"], **more["hand"]
    )
    then = one.key_by("k", chain=chain)
    return one, then.process(
        function(), output, name="then", parallelism=parallelism, changelog=logs["then"], **more["then"]
    )


def run(spark, folder, kind, *, reads=None, drain=False, **options):
    """Run what is in ``in`` and has not run. The counters, without what chance makes of them."""
    source = files_source(spark, reads or folder / "in", watermark=bounded_out_of_orderness(milliseconds=6))
    one, two = jobs(source, folder, kind, **options)
    bound = [one.to(folder / "one"), one.side_output(BIG).to(folder / "big"), two.to(folder / "two")]
    if kind == "rows":
        bound.append(two.side_output(EVERY).to(folder / "every"))
    result = keyed.run(*bound, checkpoint=folder / "ck", local_dir=folder / "stores", drain=drain)
    return {name: {k: v for k, v in each.items() if k not in CHANCE} for name, each in result.metrics.items()}


def outputs(folder):
    return {name: parquet_rows(folder / name) for name in ("one", "big", "two", "every") if (folder / name).exists()}


def changes(folder):
    """The content of the changelogs, by the batch of each operator."""
    found = []
    for name in ("hand", "then"):
        for change in keyed.recovery.read_changelog(DirectoryChangelog(folder / "log" / name)):
            commit = change.commit
            where = (commit.sequence, commit.group, commit.watermark, commit.hash)
            found.append((name, *where, change.state, change.key, repr(change.entry), repr(change.value)))
    return sorted(found)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_outputs_state_changelogs_and_counters_are_those_with_a_shuffle(spark, tmp_path, kind):
    counters, inspected = {}, {}
    for chain in (True, False):
        folder = tmp_path / str(chain)
        for number in range(2):
            write_file(folder / "in", number, rows_of(number))
        first = run(spark, folder, kind, chain=chain)
        write_file(folder / "in", 2, rows_of(2))
        counters[chain] = first, run(spark, folder, kind, chain=chain, drain=True)
        seen = inspect_spark(spark, str(folder / "ck"))
        inspected[chain] = {name: (each.batch, each.groups, each.watermark) for name, each in seen.items()}
        for name in ("hand", "then"):
            log = DirectoryChangelog(folder / "log" / name)
            assert not any(each.problem for each in keyed.recovery.verify(folder / "ck", log, session=spark)), name
    assert outputs(tmp_path / "True") == outputs(tmp_path / "False")
    assert changes(tmp_path / "True") == changes(tmp_path / "False")
    assert counters[True] == counters[False]
    assert inspected[True] == inspected[False]
    assert list(inspected[True]) == ["then", "hand"] or list(inspected[True]) == ["hand", "then"]


@pytest.mark.long
def test_a_checkpoint_goes_on_as_it_began_and_is_restored_otherwise(spark, tmp_path):
    for chain in (True, False):
        write_file(tmp_path / str(chain) / "in", 0, rows_of(0))
        run(spark, tmp_path / str(chain), "rows", chain=chain)
        write_file(tmp_path / str(chain) / "in", 1, rows_of(1))
    # What began unchained stays so, whatever the query says; what began chained is not taken apart.
    with pytest.raises(CheckpointError, match=r"'then' runs chained to 'hand' in the checkpoint.*chain=False"):
        run(spark, tmp_path / "True", "rows", chain=False)
    counters = [run(spark, tmp_path / str(chain), "rows", chain=True, drain=True) for chain in (True, False)]
    assert outputs(tmp_path / "True") == outputs(tmp_path / "False")
    assert changes(tmp_path / "True") == changes(tmp_path / "False")
    assert counters[0] == counters[1]


@pytest.mark.long
def test_chained_operators_are_restored_at_another_parallelism_and_layout(spark, tmp_path):
    before = tmp_path / "before"
    write_file(before / "in", 0, rows_of(0))
    run(spark, before, "rows", chain=True)
    write_file(before / "in", 1, rows_of(1))
    logs = {name: DirectoryChangelog(before / "log" / name) for name in ("hand", "then")}
    for chain in (True, False):
        restored = {"parallelism": 3, "restore_from": logs, "reads": before / "in"}
        run(spark, tmp_path / str(chain), "rows", chain=chain, drain=True, **restored)
    run(spark, before, "rows", chain=True, drain=True)
    for chain in (True, False):
        for name in ("hand", "then"):
            log = DirectoryChangelog(tmp_path / str(chain) / "log" / name)
            verified = keyed.recovery.verify(tmp_path / str(chain) / "ck", log, session=spark)
            assert [each.problem for each in verified] == [""] * 3
    assert outputs(tmp_path / "True") == outputs(tmp_path / "False")
    assert set(outputs(tmp_path / "True")["two"]) <= set(outputs(before)["two"])


def test_a_row_of_another_key_group_is_refused(spark):
    frame = spark.createDataFrame(rows_of(0), "k string, t bigint, v bigint")
    moved = keyed.stream(frame, timestamp="t").key_by("k").process(Moved(), ROW, name="moved", parallelism=4)
    with pytest.raises(RowError, match=r"'then' runs chained to 'moved', and key 'moved .' .*chain=False"):
        moved.key_by("k").process(Count(), COUNTED, name="then", parallelism=4).run()
    shuffled = moved.key_by("k", chain=False).process(Count(), COUNTED, name="then", parallelism=4)
    expected = expected_counts([(f"moved {k}", t, v) for k, t, v in rows_of(0)])
    assert sorted(map(tuple, shuffled.run().values)) == expected
