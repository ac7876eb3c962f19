"""Chained operators of the local runtime do what they do with a shuffle between them."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.errors import CheckpointError, RowError
from keyed.testing import MemoryChangelog, strategies
from keyed.vectorized import TableState, VectorizedFunction
from keyed.windows import Count, TumblingEventTimeWindows

ROW = "k bigint, v bigint"
ODD = keyed.OutputTag("odd", ROW)


class Hand(keyed.KeyedProcessFunction):
    """Hands rows on, and once more 5 ms later; odd ones go aside too."""

    last = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.last.update(value.v)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
        if value.v % 2:
            ctx.output(ODD, (value.k, value.v))
        yield value.k, value.v

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.last.value()


class Running(keyed.KeyedProcessFunction):
    """The sum so far with the watermark that it saw, and a timer 3 ms later that says it too."""

    total = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.v)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3)
        yield value.k, self.total.value(), ctx.timer_service().current_watermark()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.total.value(), timestamp


class Totals(VectorizedFunction):
    totals = TableState(ROW, key="k")

    def process_batch(self, table, ctx):
        self.totals.merge(table.select(["k", "v"]), {"v": "sum"})
        ctx.emit(table)


class Elsewhere(keyed.KeyedProcessFunction):
    """Changes the key of what it hands on."""

    def process_element(self, value, ctx):
        yield value.k + 1, value.v


ROW_OF_SOURCE = strategies.rows(
    "k int, t bigint, v int", k=strategies.skewed(*range(6)), t=st.just(0), v=st.integers(0, 9)
)
ROWS = strategies.streams(ROW_OF_SOURCE, timestamp="t", gap=2, delay=4, late=20, min_size=1, max_size=30).map(
    lambda stream: [tuple(record.value.values()) for record in stream]
)


def jobs(rows, *, chain, then="rows", parallelism=3, logs=None):
    """Two operators over rows (k, t, v), the second keyed as the first."""
    logs = logs or {}
    source = keyed.stream(
        [dict(zip("ktv", row, strict=True)) for row in rows], timestamp="t", watermark=keyed.bounded_out_of_orderness(4)
    )
    one = source.key_by("k").process(Hand(), ROW, name="hand", parallelism=parallelism, changelog=logs.get("hand"))
    by_key = one.key_by("k", chain=chain)
    options = {"name": "then", "parallelism": parallelism, "changelog": logs.get("then")}
    if then == "windows":
        return one, by_key.window(TumblingEventTimeWindows.of(10)).aggregate({"count": Count()}, **options)
    function = Running() if then == "rows" else Totals()
    return one, by_key.process(function, ROW + (", at bigint" if then == "rows" else ""), **options)


def outcome(rows, size, **options):
    """Their results: outputs by batch, counters and changelogs."""
    logs = {"hand": MemoryChangelog(), "then": MemoryChangelog()}
    one, two = jobs(rows, logs=logs, **options)
    sinks = [keyed.collect_sink() for _ in range(3)]
    bound = [output.to(sink) for output, sink in zip((one, one.side_output(ODD), two), sinks, strict=True)]
    counters = keyed.run(*bound, rows_per_batch=size, processing_time=lambda: 7).metrics
    for each in counters.values():
        del each["busy_microseconds"], each["log_bytes"]
    changes = [
        [
            (c.commit.sequence, c.commit.group, c.commit.watermark, c.commit.hash, *attrs.astuple(c, recurse=False)[1:])
            for c in keyed.recovery.read_changelog(log)
        ]
        for log in logs.values()
    ]
    batches = [{batch: list(map(tuple, values)) for batch, values in sink.batches.items()} for sink in sinks]
    return batches, counters, changes


@pytest.mark.parametrize("then", ["rows", "windows", pytest.param("columns", marks=pytest.mark.long)])
@settings(max_examples=settings().max_examples // 2)
@given(rows=ROWS, size=st.integers(1, 30))
def test_outputs_counters_and_changelogs_are_those_with_a_shuffle(then, rows, size):
    assert outcome(rows, size, chain=True, then=then) == outcome(rows, size, chain=False, then=then)


def test_a_row_of_another_key_group_is_refused():
    rows = [{"k": k, "v": 1} for k in range(6)]
    moved = keyed.stream(rows).key_by("k").process(Elsewhere(), ROW, name="moved", parallelism=4)
    for then, output in ((Hand(), ROW), (Totals(), ROW)):
        chained = moved.key_by("k").process(then, output, name="then", parallelism=4)
        with pytest.raises(RowError, match=r"'then' runs chained to 'moved', and key \d .*chain=False"):
            chained.run()
    again = moved.key_by("k", chain=False).process(Totals(), ROW, name="then", parallelism=4)
    assert sorted(row.k for row in again.run().values) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_goes_on_as_it_began(tmp_path):
    rows = [(k, k, 1) for k in range(6)]
    for chain in (True, False):
        jobs(rows, chain=chain)[1].run(checkpoint=tmp_path / str(chain), drain=False)
    more = [*rows, (1, 10, 1)]
    # What began unchained stays so, whatever the query says; what began chained is not taken apart.
    result = jobs(more, chain=True)[1].run(checkpoint=tmp_path / "False", drain=True)
    assert result.metrics["then"]["rows_in"] == 14
    with pytest.raises(CheckpointError, match="chain=False"):
        jobs(more, chain=False)[1].run(checkpoint=tmp_path / "True")
    assert jobs(more, chain=True)[1].run(checkpoint=tmp_path / "True", drain=True).values == result.values


def test_chained_operators_are_restored_at_another_parallelism(tmp_path):
    rows = [(k, k, k) for k in range(6)]
    logs = {name: keyed.DirectoryChangelog(tmp_path / name) for name in ("hand", "then")}
    jobs(rows, chain=True, logs=logs)[1].run(checkpoint=tmp_path / "ck", drain=False)
    one, two = jobs([*rows, (1, 20, 1)], chain=False, parallelism=2)
    whole = two.run().values
    source = keyed.stream(
        [dict(zip("ktv", row, strict=True)) for row in [*rows, (1, 20, 1)]],
        timestamp="t",
        watermark=keyed.bounded_out_of_orderness(4),
    )
    one = source.key_by("k").process(Hand(), ROW, name="hand", parallelism=2, restore_from=logs["hand"])
    two = one.key_by("k").process(Running(), f"{ROW}, at bigint", name="then", parallelism=2, restore_from=logs["then"])
    restored = two.run(checkpoint=tmp_path / "restored", drain=True)
    assert restored.restored is not None
    assert set(map(tuple, restored.values)) <= set(map(tuple, whole))
    assert (1, 3, 23) in map(tuple, restored.values)


def test_an_operator_that_begins_in_a_restored_query_is_not_taken_for_an_older_one(tmp_path, caplog):
    rows = [{"k": 1, "v": v, "t": v} for v in range(6)]
    changelog = keyed.DirectoryChangelog(tmp_path / "log")

    def run(number, **options):
        source = keyed.stream(rows[: 4 + 2 * number], timestamp="t")
        one = source.key_by("k").process(Hand(), ROW, name="hand", **options)
        two = one.key_by("k").process(Running(), f"{ROW}, at bigint", name="then")
        two.run(checkpoint=tmp_path / f"ck{number}", rows_per_batch=2)

    run(0, changelog=changelog)
    run(1, restore_from=changelog)
    assert "did not record" not in caplog.text
