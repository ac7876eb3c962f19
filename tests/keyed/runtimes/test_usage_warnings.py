"""Likely mistakes are refused, or warned of once with the remedy."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import keyed
from keyed import KeyedProcessFunction, OutputTag, windows
from keyed.errors import DefinitionError
from keyed.joins import AsOfJoin, Select, TableJoin
from keyed.rows import row
from keyed.runtimes.run_reports import unit_warning
from keyed.testing import KeyedTestHarness
from tests.keyed.runtimes.conftest import CASES, long_on_spark
from tests.keyed.runtimes.spark.functions import COUNTED, SCHEMA, files_source, write_file

LATE = OutputTag("late")


class Diverts(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.output("late", value)


class Later(KeyedProcessFunction):
    """Sets an event-time timer at each row."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value.t)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        pass


def told(caplog: Any) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "keyed.runtimes.run_reports"]


def warnings(caplog: Any, output: Any, *others: Any, **options: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="keyed"):
        keyed.run(output.to(keyed.collect_sink()), *others, **options)
    return told(caplog)


def test_side_outputs_with_a_wrong_name_and_times_in_another_unit_are_told_once(runtime, tmp_path, caplog: Any) -> None:
    runtime.size = 1
    for number in range(3):
        runtime.add(tmp_path / "in", [("a", 1_700_000_000 + number, 1)])
    strategy = keyed.bounded_out_of_orderness(seconds=10)
    output = runtime.source(tmp_path / "in", watermark=strategy).key_by("k").process(Diverts(), COUNTED, name="f")
    side, other = (output.side_output(OutputTag(name, SCHEMA)).to(tmp_path / name) for name in ("lat", "late"))
    units, name = warnings(caplog, output, side, checkpoint=tmp_path / "ck", **runtime.batches)
    assert units.startswith(
        "timestamp 't' is read as milliseconds: 1700000000 looks like seconds since the epoch; give a "
    )
    assert name == (
        "operator 'f': the side output 'lat' got no rows, and 'late', which did, has no sink; check the names"
    )
    for number, sinks in enumerate(([other], [])):
        (units,) = warnings(caplog, output, *sinks, checkpoint=tmp_path / f"ck{number}", **runtime.batches)
        assert "looks like seconds" in units


def test_the_harness_knows_the_side_outputs_that_got_something() -> None:
    with KeyedTestHarness(Diverts()) as harness:
        assert harness.take_side_output("lat") == []
        harness.process(1)
        with pytest.raises(DefinitionError, match="side output 'lat' has no rows, only 'late'"):
            harness.take_side_output("lat")
        assert harness.take_side_output(OutputTag("errors")) == []
        assert [record.value for record in harness.take_side_output("late")] == [1]
        assert harness.take_side_output("late") == []


def test_windows_know_their_side_outputs() -> None:
    stream = keyed.stream([row(k=1, t=0)], timestamp="t", on_bad_row=OutputTag("bad")).key_by("k")
    windowed = stream.window(windows.TumblingEventTimeWindows.of(1000))
    plain = windowed.aggregate(n=windows.Count())
    with pytest.raises(DefinitionError, match=r"has no side output 'late'; it has none: .*side_output_late_data"):
        plain.side_output("late")
    plain.side_output("bad")
    diverting = windowed.side_output_late_data(LATE).aggregate(n=windows.Count())
    diverting.side_output(LATE)
    with pytest.raises(DefinitionError, match="has no side output 'lat'; it has 'late'"):
        diverting.side_output("lat")


class SetsTimer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        timers = ctx.timer_service()
        timers.delete_event_time_timer(5)
        if value.name is None:
            timers.register_event_time_timer(value.at)
        else:
            timers.set_timer(value.name, value.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key()


@pytest.mark.parametrize("name", [None, "idle"])
def test_a_timer_that_would_wait_for_ever_is_refused(name: str | None) -> None:
    def run(at: int, **options: Any) -> list[Any]:
        rows = [row(k=1, t=0, at=at, name=name)]
        return keyed.stream(rows, **options).key_by("k").process(SetsTimer()).run().values

    with pytest.raises(DefinitionError, match=r"event-time timer at 1000 would wait for ever.*timestamp=.*element Row"):
        run(1000)
    assert run(keyed.MAX_TIMESTAMP) == [1]
    assert run(1000, timestamp="t") == [1]


@pytest.mark.parametrize(("time", "unit"), CASES["times and the units that they look like"])
def test_the_unit_of_a_time(time: int, unit: str | None) -> None:
    assert (f"{time} looks like {unit} since the epoch" if unit else "") in unit_warning(time)
    assert bool(unit_warning(time)) == bool(unit)


def test_times_that_cannot_be_meant_are_refused_with_their_unit(runtime) -> None:
    stream = runtime.stream([("a", 1_700_000_000_123_456, 1)], timestamp="t")
    with pytest.raises(
        keyed.errors.TimestampError, match=r"looks like microseconds .* with the value // 1000; .*on_bad_row"
    ):
        stream.key_by("k").process(Diverts(), COUNTED).run()


@long_on_spark
@pytest.mark.parametrize("path", ["auto", "row"])
def test_dropped_rows_are_told_once_and_timers_without_timestamps_refused(runtime, tmp_path, caplog, path) -> None:
    runtime.size = 1
    for time in (100, 3, 200, 4):
        runtime.add(tmp_path / "in", [("a", time, 1)])
    by_window = runtime.source(tmp_path / "in").key_by("k").window(windows.TumblingEventTimeWindows.of(10))
    counts = by_window.path(path).aggregate(n=windows.Count())
    texts = warnings(caplog, counts, checkpoint=tmp_path / "ck", **runtime.batches)
    (dropped,) = [text for text in texts if "rows as late" in text]
    assert "keyed.bounded_out_of_orderness" in dropped
    later = runtime.source(tmp_path / "in", timestamp=None).key_by("k").process(Later(), COUNTED)
    with pytest.raises(keyed.KeyedError, match="would wait for ever"):
        later.run(checkpoint=tmp_path / "ck2")


@pytest.mark.long
def test_what_a_started_query_was_not_asked_about_is_told_when_it_stops(spark, tmp_path, caplog) -> None:
    bad_rows = OutputTag("bad", SCHEMA)
    write_file(tmp_path / "in", 0, [("a", 5, 1), (None, 1, 1)])
    output = files_source(spark, tmp_path / "in", on_bad_row=bad_rows).key_by("k").process(Diverts(), COUNTED)
    with caplog.at_level(logging.WARNING, "keyed"):
        query: Any = keyed.start(
            output.side_output(OutputTag("lat")).to(tmp_path / "out"),
            output.side_output(bad_rows).to(tmp_path / "bad"),
            checkpoint=tmp_path / "ck",
        )
        query.query.processAllAvailable()
        query.stop()
    (side,) = told(caplog)
    assert "the side output 'lat' got no rows, and 'late'" in side


def orders_with_customers(customers: Any, idle_ms: int | None = None) -> Any:
    """Return 20 orders a minute apart, connected with a dimension."""
    orders = [{"o": number, "c": "x", "t": 1_000_000 + number * 60_000} for number in range(20)]
    delay = keyed.bounded_out_of_orderness(seconds=10)
    dimension = delay if idle_ms is None else delay.with_idleness(idle_ms)
    right = keyed.stream(customers, timestamp="t", watermark=dimension)
    return keyed.stream(orders, timestamp="t", watermark=delay).connect(right).key_by("c")


SILENT = [{"c": "x", "t": 0, "tier": "A"}]
JOINED = "o bigint, tier string"
CHOSEN = Select(left=["o"], right=["tier"])


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_silent_input_whose_others_wait_is_named_by_the_log_a_counter_and_explain(
    caplog: Any, capsys: Any, parallelism: int
) -> None:
    output = orders_with_customers(SILENT).process(AsOfJoin(CHOSEN), JOINED, name="j", parallelism=parallelism)
    output.explain()
    assert "    waits for: source 1, no idleness; source 2, no idleness\n" in capsys.readouterr().out
    (told,) = warnings(caplog, output, drain=False, rows_per_batch=2)
    assert told.startswith("operator 'j' waits for source 2, no idleness: it has held the watermark for 9 batches,")
    assert output.run(drain=False, rows_per_batch=2).metrics["j"]["batches_held"] == 9


def test_windows_behind_a_join_wait_for_the_silent_input_of_the_join(caplog: Any) -> None:
    joined = orders_with_customers(SILENT).process(TableJoin(CHOSEN), JOINED, name="j")
    hourly = joined.key_by("tier").window(windows.TumblingEventTimeWindows.of(60_000)).aggregate(n=windows.Count())
    (told,) = warnings(caplog, hourly, drain=False, rows_per_batch=2)
    assert "operator 'j' waits for source 2, no idleness" in told


def test_an_input_that_holds_nothing_for_long_is_not_named(caplog: Any) -> None:
    def told(customers: Any, idle_ms: int | None = None, **options: Any) -> list[str]:
        output = orders_with_customers(customers, idle_ms).process(AsOfJoin(CHOSEN), JOINED)
        return warnings(caplog, output, **{"drain": False, "rows_per_batch": 2, **options})

    level = [{"c": "x", "t": 1_000_000 + number * 60_000, "tier": "A"} for number in range(20)]
    assert told(level) == []
    assert told(SILENT, drain=True) == [], "at the end of the input nothing waits"
    assert told(SILENT, rows_per_batch=8) == [], "three batches are few"
    assert told(SILENT, idle_ms=3_600_000) == [], "this wait has a declared end"


def test_a_live_query_names_the_input_after_ten_seconds(caplog: Any) -> None:
    clock = iter(range(0, 10**9, 1_000))
    output = orders_with_customers(SILENT).process(AsOfJoin(CHOSEN), JOINED, name="j")
    seen: list[tuple[int, int]] = []

    def look(progress: Any) -> None:
        seen.append((progress.metrics["j"]["batches_held"], len(caplog.records)))

    warnings(caplog, output, rows_per_batch=1, processing_time=lambda: next(clock), on_progress=look)
    assert [batches for batches, records in seen if records] == [*range(11, 20), 0]
    assert {records for _, records in seen} == {0, 1}
