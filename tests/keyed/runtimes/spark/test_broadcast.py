"""Broadcast state on Spark: the results of a plain model, in one query with one shuffle, over restarts and a kill."""

from __future__ import annotations

import json

import pytest

import keyed
from keyed import OutputTag
from keyed.changelog import DirectoryChangelog
from keyed.recovery import verify
from tests.keyed.runtimes.local.test_broadcast import rows_of, rules_of
from tests.keyed.runtimes.spark.functions import RULES, SCHEMA, Limits, limits_of, parquet_rows, write_file
from tests.support.spark_programs import Program

OUTPUT = "k string, n bigint, reached bigint"
BAD_RULES = OutputTag("bad_rules")


def tuples(rows):
    return [tuple(row.values()) for row in rows]


def in_order(values):
    return sorted(map(tuple, values))


def limits(rows, rules, *, on_bad_row=None, **options):
    first, second = keyed.stream(rows, timestamp="t"), keyed.stream(rules, timestamp="t", on_bad_row=on_bad_row)
    return first.key_by("k").connect(second.broadcast(RULES)).process(Limits(), OUTPUT, name="limits", **options)


def test_batch_dataframes_give_what_a_plain_model_gives(spark):
    rows, rules = rows_of(1, 60), rules_of(2, 40)
    frames = (
        spark.createDataFrame(tuples(rows), SCHEMA),
        spark.createDataFrame([*tuples(rules), ("bad", None, 3)], SCHEMA).repartition(1),
    )
    out = limits(*frames, on_bad_row=BAD_RULES, parallelism=3)
    main, bad = keyed.collect_sink(), keyed.collect_sink()
    result = keyed.run(out.to(main), out.side_output(BAD_RULES).to(bad))
    assert in_order(main.values) == limits_of([(rules, rows)])
    assert [row.k for row in bad.values] == ["bad"]
    assert (result.metrics["limits"]["rows_in"], result.metrics["limits"]["rows_bad"]) == (100, 1)
    plan = out.df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1


def files(spark, folder):
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.long
def test_a_query_goes_on_and_is_restored_with_another_parallelism(spark, tmp_path):
    rows, rules = rows_of(3, 90), [rule for rule in rules_of(4, 60) if rule["v"] != 1000]
    sources = files(spark, tmp_path / "in"), files(spark, tmp_path / "rules")
    changelog = DirectoryChangelog(tmp_path / "log")
    batches = [(rules[20 * i : 20 * i + 20], rows[30 * i : 30 * i + 30]) for i in range(3)]
    values, watermarks = [], []

    def add(number):
        write_file(tmp_path / "rules", number, tuples(batches[number][0]))
        write_file(tmp_path / "in", number, tuples(batches[number][1]))

    def run(job, checkpoint, **options):
        values.extend(
            job.run(checkpoint=checkpoint, on_progress=lambda each: watermarks.append(each.watermark), **options).values
        )

    for number in (0, 1):
        add(number)
        run(limits(*sources, parallelism=2, changelog=changelog), tmp_path / "ck")
    assert watermarks[-1] == batches[1][0][-1]["t"] - 1
    keyed.recovery.flush(tmp_path / "ck", {"limits": changelog}, session=spark)
    assert [found.problem for found in verify(changelog)] == ["", ""]
    found = keyed.recovery.verify(tmp_path / "ck", changelog, session=spark)
    assert [each.problem for each in found] == ["", ""]
    add(2)
    again = limits(*sources, parallelism=3, restore_from=changelog)
    run(again, tmp_path / "ck2", drain=True)
    assert in_order(values) == limits_of(batches)


@pytest.mark.long
@pytest.mark.spark
def test_a_killed_query_ends_as_an_undisturbed_one(tmp_path):
    rows, rules = rows_of(5, 120), rules_of(6, 60)
    batches = [(rules[15 * i : 15 * i + 15], rows[30 * i : 30 * i + 30]) for i in range(4)]
    for number, (new, some) in enumerate(batches):
        write_file(tmp_path / "rules", number, tuples(new))
        write_file(tmp_path / "in", number, tuples(some))
    life = Program("broadcast_program", tmp_path, "rules")
    assert life.wait_for_batches(2), life.said()
    life.kill()
    assert "DONE" not in life.said()
    status, said = Program("broadcast_program", tmp_path, "rules").end()
    assert status == 0, said
    assert sorted(parquet_rows(tmp_path / "sink")) == limits_of(batches_of(tmp_path / "checkpoint", rules, rows))


def batches_of(checkpoint, rules, rows):
    """Return the rules and rows of each batch: after a kill a file source may give two of its files at once."""
    read, before = [], (0, 0)
    for number in range(len(list((checkpoint / "offsets").glob("[0-9]*")))):
        lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()[2:4]
        ends = tuple(json.loads(line)["logOffset"] + 1 for line in lines)
        read.append((rules[15 * before[1] : 15 * ends[1]], rows[30 * before[0] : 30 * ends[0]]))
        before = ends
    assert before == (4, 4)
    return read
