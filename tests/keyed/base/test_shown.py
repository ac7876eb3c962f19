"""Reprs are short and say what a thing is; typical mistakes get our errors."""

import traceback
from typing import Any, cast

import pyarrow as pa
import pytest

import keyed
from keyed import windows as w
from keyed.base.arguments import type_of
from keyed.errors import DefinitionError, StateDefinitionError
from keyed.testing import KeyedTestHarness


class Outages(keyed.KeyedProcessFunction):
    readings = keyed.ValueState(int, default=0)
    recent = keyed.ListState(list[float], ttl=keyed.StateTtl(seconds=1))
    by_name = keyed.MapState(str, int, name="names")
    most = keyed.ReducingState(max, int)

    def process_element(self, value, ctx):
        yield value.k, repr(self.readings)


class Columns(keyed.vectorized.VectorizedFunction):
    counts = keyed.vectorized.TableState("k string, n bigint", key="k")

    def process_batch(self, table, ctx): ...


ROWS = [{"k": "secret", "t": n} for n in range(1_000)]
STREAM = keyed.stream(ROWS, timestamp="t")
KEYED = STREAM.key_by("k")
OUTPUT = KEYED.process(Outages(), "k string, shown string")
SINK = keyed.collect_sink()
RESULT = OUTPUT.run(SINK)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (STREAM, "Stream(list, timestamp='t')"),
        (KEYED, "KeyedStream(list, timestamp='t' → key_by('k'))"),
        (OUTPUT, "Output(list, timestamp='t' → key_by('k') → Outages: `k` string, `shown` string)"),
        (OUTPUT.side_output("late"), "Output(list, timestamp='t' → key_by('k') → Outages, side output 'late')"),
        (keyed.stream(ROWS).key_by(len), "KeyedStream(list → key_by(len))"),
        (Outages(), "Outages()"),
        (Outages.readings, "ValueState(int, name='readings')"),
        (Outages.recent, "ListState(list[float], name='recent', ttl=1000 ms)"),
        (Outages.by_name, "MapState(str, int, name='names')"),
        (Outages.most, "ReducingState(max, int, name='most')"),
        (Columns(), "Columns()"),
        (Columns.counts, "TableState('k, n', ('k',), name='counts')"),
        (OUTPUT.to(SINK), f"BoundOutput({OUTPUT!r} to CollectSink(batches=<2>))"),
        (OUTPUT.to(print).sink, "FunctionSink(function=print)"),
    ],
)
def test_what_is_described_is_shown_without_data_and_addresses(thing, said):
    assert repr(thing) == said
    if not isinstance(thing, keyed.destinations.function.FunctionSink):
        assert thing._repr_html_().startswith("<code>")


def test_html_is_escaped():
    assert KEYED.process(Outages(), name="a")._repr_html_() == (
        "<code>Output(list, timestamp=&#x27;t&#x27; → key_by(&#x27;k&#x27;) → a)</code>"
    )


def test_results_queries_and_harnesses_are_shown():
    assert repr(RESULT) == "RunResult(values=<1000>, batches=2, metrics=<'Outages': 1000 in, 1000 out>, restored=None)"
    assert RESULT._repr_html_().startswith("<code>RunResult(values=&lt;1000")
    # The state of a call is shown as its declaration.
    assert RESULT.values[0].shown == "ValueState(int, name='readings') of the current key"
    query = OUTPUT.start(keyed.collect_sink())
    query.await_termination()
    assert repr(query) == "Query('Outages', batch 1, closed)"
    with KeyedTestHarness(Outages(), key=len) as harness:
        assert repr(harness) == "KeyedTestHarness(Outages(), watermark none, processing time 0)"


class Waits(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value["t"] + 100)
        yield value["t"]

    def on_timer(self, timestamp, ctx):
        yield timestamp


def test_results_name_late_rows_and_timers_that_wait():
    rows = keyed.stream([{"k": "a", "t": time} for time in (20, 0, 5)], timestamp="t")
    result = rows.key_by("k").process(Waits(), name="waits").run(rows_per_batch=1, drain=False)
    assert "metrics=<'waits': 3 in, 3 out, 2 late, 3 timers pending>" in repr(result)


class Contexts(keyed.KeyedProcessFunction):
    def open(self, context):
        self.seen = [repr(context)]

    def process_element(self, value, ctx):
        ctx.timer_service().set_timer(("idle", 1), 7)
        self.seen += [repr(ctx), repr(ctx.timer_service())]

    def on_timer(self, timestamp, ctx):
        yield [*self.seen, repr(ctx)]


class BatchContexts(keyed.vectorized.VectorizedFunction):
    def process_batch(self, table, ctx):
        ctx.output("shown", pa.table({"context": [repr(ctx)]}))


def test_contexts_are_shown():
    with KeyedTestHarness(Contexts(), key="k") as harness:
        harness.process({"k": "a"}, timestamp=3)
        harness.advance_watermark(9)
        assert harness.take_output()[0].value == [
            "OpenContext(operator 'function', key group 0 of 1)",
            "Context(key='a', timestamp=3)",
            f"TimerService(key='a', watermark={-(2**63)}, processing_time=0)",
            "Context(key='a', timestamp=7, event_time timer ('idle', 1))",
        ]
    with KeyedTestHarness(BatchContexts(), key="k") as harness:
        harness.process_batch(pa.table({"k": ["a"]}))
        assert repr(harness.take_side_output("shown")).count(f"BatchContext(watermark={-(2**63)}, processing_time=0)")


class LastOfWindow(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        yield repr(context), repr(self)


def test_windows_are_shown():
    hour = w.TumblingEventTimeWindows.of(3_600_000)
    said = KEYED.window(hour).process(LastOfWindow()).run().values
    assert said == [("WindowContext(TimeWindow(start=0, end=3600000))", "LastOfWindow()")]
    late = KEYED.window(w.EventTimeSessionWindows.with_gap(5)).allowed_lateness(3)
    assert repr(late) == f"WindowedStream({KEYED!r}, EventTimeSessionWindows(gap=5), lateness_ms=3)"
    assert late._repr_html_().startswith("<code>WindowedStream(")
    assert repr(w.aggregate_of(int, max, max)) == "Functions()"
    windowed = KEYED.window(w.EventTimeSessionWindows.with_gap(5))
    assert "secret" not in repr(windowed)
    assert " at 0x" not in repr(windowed)
    output = windowed.aggregate(n=w.Count())
    assert repr(*output.operators.values()) == "WindowOperator(EventTimeSessionWindows(gap=5))"


@pytest.mark.parametrize(
    ("call", "options", "said"),
    [
        (
            keyed.ValueState,
            {"tttl": 5},
            "ValueState: 'tttl' is not an option (did you mean 'ttl'?); the options are type,",
        ),
        (
            keyed.MapState,
            {"nam": "a"},
            "MapState: 'nam' is not an option (did you mean 'name'?); the options are key, va",
        ),
        (
            keyed.VersionedState,
            {"history": 5, "ttl": 5},
            "VersionedState: 'ttl' is not an option; the options are type, history",
        ),
        (
            KEYED.window(w.TumblingEventTimeWindows.of(5)).process,
            {"outputs": 5},
            "WindowedStream.process: 'outputs' is ",
        ),
    ],
)
def test_a_misspelt_keyword_is_told_by_what_was_called_and_a_name_like_it(call, options, said):
    with pytest.raises(TypeError) as refused:
        call(**options)
    assert str(refused.value).startswith(said)


class Forgetful(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service.register_event_time_timer(5)

    def on_timer(self, timestamp, ctx): ...


def test_forgotten_parentheses_are_named():
    said = pytest.raises(keyed.errors.UserFunctionError, match=r"call it: timer_service\(\)\.register_event_time_timer")
    with KeyedTestHarness(Forgetful(), key=len) as harness, said:
        harness.process("a")


@pytest.mark.parametrize(
    "declare",
    [
        lambda: keyed.ValueState("int"),
        lambda: keyed.ListState("str"),
        lambda: keyed.MapState(str, "int"),
        lambda: keyed.ReducingState(max, "int"),
    ],
)
def test_the_name_of_a_type_is_no_type(declare):
    with pytest.raises(StateDefinitionError, match="is text, not a type; give the type itself"):
        declare()


@pytest.mark.parametrize("aggregate", [w.Sum("k"), w.Mean("k"), w.Variance("k")])
def test_numbers_are_not_made_of_text(aggregate):
    import pyarrow as pa

    table = keyed.stream(pa.Table.from_pylist(ROWS[:3]), timestamp="t").key_by("t")
    with pytest.raises(DefinitionError, match=r"\('k'\): column 'k' is of type string, and \w+ needs numbers"):
        table.window(w.TumblingEventTimeWindows.of(5)).aggregate(n=aggregate)


def test_a_sum_of_text_is_refused_where_types_are_not_known():
    rows = keyed.stream(ROWS[:3], timestamp="t").key_by("k").window(w.TumblingEventTimeWindows.of(5))
    with pytest.raises(keyed.KeyedError, match=r"Sum\('k'\) needs numbers, and the values are text"):
        rows.aggregate(n=w.Sum("k")).run()


def test_a_bad_row_with_a_column_name_that_cannot_be_encoded_is_logged_escaped(caplog):
    caplog.set_level("WARNING", logger="keyed")
    bad = keyed.OutputTag("bad")
    rows = keyed.stream([{"k": None, "\ud800": 1}], on_bad_row=bad).key_by("k")
    assert rows.process(Outages(), output="k string").side_output(bad).run().metrics["Outages"]["rows_bad"] == 1
    assert r"\ud800=1" in caplog.text
    assert caplog.text.encode()


def test_a_type_has_its_article():
    for value, text in ((1, "an int"), ("", "a str"), (b"", "a bytes"), ((), "a tuple"), (object(), "an object")):
        assert type_of(value) == text
    with pytest.raises(DefinitionError, match="watermark=3 is an int; give"):
        keyed.stream([{"k": 1}], timestamp="k", watermark=cast("Any", 3))


def test_the_traceback_of_a_misspelt_method_names_the_public_class():
    with pytest.raises(DefinitionError) as caught:
        cast("Any", keyed.stream([{"k": 1}])).flatmap(len)
    last = traceback.format_exception_only(caught.value)[0]
    assert last.startswith("keyed.errors.DefinitionError: 'Stream'"), last
    assert isinstance(caught.value, AttributeError)
    assert caught.value.code == DefinitionError.code
