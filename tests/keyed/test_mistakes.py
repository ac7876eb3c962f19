"""Mistakes of newcomers: accepted where the meaning is clear, elsewhere refused with the rule and the remedy."""

import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pyarrow as pa
import pytest

import keyed
from keyed import KeyedProcessFunction, ListState, ReducingState, ValueState, windows
from keyed import windows as w
from keyed.errors import DefinitionError, KeyedError, OutputDefinitionError, UserFunctionError
from keyed.testing import KeyedTestHarness
from keyed.vectorized import VectorizedFunction

MINUTE = dt.timedelta(minutes=1)
# Type checkers find these by themselves.
FIVE: Any = 5
MISSPELT: Any = {"timestamps": "at"}
TEXT: Any = "5"
W: Any = w


class Sale(NamedTuple):
    item: str
    at: int
    price: int


SALES = [Sale("a", 1, 10), Sale("b", 2, 20), Sale("a", 3, 30)]


class Passes(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def sales(**options: Any) -> Any:
    return keyed.stream(SALES, timestamp="at", **options)


def by_item() -> Any:
    return sales().key_by("item")


# Definitions


HOPPING: Any = w.HoppingEventTimeWindows
TUMBLING: Any = w.TumblingEventTimeWindows
SESSIONS: Any = w.EventTimeSessionWindows
COUNT: Any = w.CountWindows


class UncalledState(KeyedProcessFunction):
    count = ValueState

    def process_element(self, value, ctx):
        yield value


class UncalledStateOfAType(UncalledState):
    count: Any = ValueState[int]


def made(text: Any) -> Any:
    """Give what type checkers refuse."""
    return text


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (
            lambda: keyed.stream({"a": 1}),
            r"source is a dict, which iterates its keys; give rows.*\.values\(\) or \.items",
        ),
        (lambda: keyed.stream("text"), r"source of type str is not a stream; give .* an iterable of elements"),
        (lambda: keyed.stream("in/words.csv"), r"elements, as from pyarrow\.csv\.read_csv\('in/words.csv'\)"),
        (lambda: keyed.stream(Path("words.parquet")), r"elements, as from pyarrow\.parquet\.read_table\('words"),
        (lambda: keyed.stream(Path("words")), r"source of type PosixPath is not a stream"),
        (lambda: keyed.stream(None), r"source of type NoneType is not a stream"),
        (lambda: keyed.stream(5), r"source of type int is not a stream"),
        (lambda: keyed.stream(Sale), r"source of type type is not a stream"),
        (lambda: keyed.stream(lambda: SALES), r"source of type function is not a stream; .*; call it"),
        (lambda: sales().key_by(lambda a, b: a), r"key_by\(<lambda>\): .*'b'.*lambda value: value\.name"),
        (lambda: by_item().window(made("5 minutes")), r"keyed\.windows, such as Tumbling.*\.of\(timedelta"),
        (lambda: by_item().process(made(len)), r"; write a class Name\(keyed\.KeyedProcessFunction\) with def"),
        (lambda: by_item().union(sales()), r"it comes before the key: stream\.union"),
        (lambda: by_item().aggregate(n=1), r"cut windows first: .*\.window\(\.\.\.\)\.aggregate"),
        (lambda: sales().assign_timestamps_and_watermarks(1), r"keyed\.stream\(source, timestamp='column', watermark="),
        (lambda: by_item().process(Passes()).print(), r"output\.run\(\)\.values"),
        (lambda: by_item().process(Passes()).to_pandas(), r"output\.run\(\)\.values.*\.to_pandas"),
        (lambda: by_item().process(Passes()).sink_to("f"), r"output\.run\('folder'\)"),
        (lambda: by_item().process(Passes()).get_side_output("f"), r"the method is side_output\(tag\)"),
        (lambda: by_item().process(UncalledState()), r"UncalledState\.count is the class ValueState .*call it"),
        (lambda: by_item().process(UncalledStateOfAType()), r"count = keyed\.ValueState\(\.\.\.\)"),
        (lambda: ReducingState(made(int)), r"int is a type; the function comes first: ReducingState\(function, int\)"),
        (
            lambda: by_item().window(w.TumblingEventTimeWindows.of(5)).trigger(made(w.CountTrigger)),
            r"trigger\(CountTrigger\): give an object and not the class: CountTrigger\.of\(\.\.\.\)",
        ),
        (
            lambda: by_item().window(w.TumblingEventTimeWindows.of(5)).evictor(made(w.CountEvictor)),
            r"evictor\(CountEvictor\): give an object and not the class",
        ),
        (lambda: W.TumblingEventTimeWindows(1000), r"TumblingEventTimeWindows\(1000\): .*TumblingEventTimeWindows\.of"),
        (lambda: W.TumblingProcessingTimeWindows(size=1), r"TumblingProcessingTimeWindows\(size=1\): .*\.of\(size\)"),
        (lambda: W.HoppingEventTimeWindows(1000, 500), r"HoppingEventTimeWindows\(1000, 500\).*\.of\(size, slide\)"),
        (lambda: W.EventTimeSessionWindows(MINUTE), r"EventTimeSessionWindows\(datetime\.timedelta.*\.with_gap\(gap\)"),
        (lambda: W.ProcessingTimeSessionWindows(5), r"ProcessingTimeSessionWindows\(5\): .*\.with_gap\(gap\)"),
        (lambda: w.CountWindows(FIVE), r"CountWindows\(5\): .*CountWindows\.of\(size\)"),
        (lambda: w.GlobalWindows(FIVE), r"GlobalWindows\(5\): .*GlobalWindows\.create\(\)"),
        (lambda: W.CalendarWindows("month"), r"CalendarWindows\('month'\): .*months\(zone\)"),
        (lambda: HOPPING.of(minutes=5, seconds=1), r"of\(size, slide, offset=.*: timedelta\(minutes=5, seconds=1\)"),
        (
            lambda: HOPPING.of(1000),
            r"^HoppingEventTimeWindows\.of\(1000\): missing .*: 'slide'; .*Windows\.of\(size, slide, offset=\.\.\.\)",
        ),
        (TUMBLING.of, r"^size needs a duration above 0: give milliseconds, a timedelta or seconds="),
        (lambda: TUMBLING.of(1000, 0, 5), r"of\(1000, 0, 5\): too many positional arguments; the call is"),
        (SESSIONS.with_gap, r"^gap needs a duration above 0: give milliseconds, a timedelta or seconds="),
        (SESSIONS.with_dynamic_gap, r"the call is EventTimeSessionWindows\.with_dynamic_gap\(gap_of\)"),
        (COUNT.of, r"^CountWindows\.of\(\): .*'size'; the call is CountWindows\.of\(size, slide=\.\.\.\)"),
        (
            lambda: sales().window(w.TumblingEventTimeWindows.of(5)),
            r"key the stream first: stream\.key_by\('column'\)\.wi",
        ),
        (lambda: sales().process(Passes()), r"key the stream first: stream\.key_by\('column'\)\.process"),
        (lambda: sales().connect(sales()).process(Passes()), r"first\.connect\(second\)\.key_by\('column'\)\.process"),
        (lambda: sales().reduce(print), r"change and filter rows before keyed\.stream"),
        (lambda: by_item().filter(print), r"it comes before the key: stream\.filter"),
        (lambda: sales().run(), r"an output runs: stream\.key_by\('column'\)\.process\(function\)\.run"),
        (lambda: by_item().run(), r"an output runs: "),
        (lambda: sales().groupBy("item"), r"the method is key_by"),
        (lambda: by_item().windows(5), r"did you mean 'window'\?"),
        (lambda: by_item().window(w.TumblingEventTimeWindows), r"give an object and not the class"),
        (lambda: by_item().window(w.TumblingEventTimeWindows.of(5)).count(), r"aggregate\(count=Count\(\)\)"),
        (
            lambda: by_item().window(w.TumblingEventTimeWindows.of(5)).run(),
            r"define the result of a window first: \.aggregate",
        ),
        (lambda: sales().key_by(0), r"key_by\(0\): give one or more column names"),
        (lambda: sales().key_by([]), r"key_by\(\): give one or more column names"),
        (lambda: sales().key_by(["item", "item"]), r"key_by\('item', 'item'\) names a column twice"),
        (lambda: sales(watermark="5 seconds"), r"watermark='5 seconds' is a str; give keyed\.bounded_out_of_orderness"),
        (lambda: ValueState(int, ttl=TEXT), r"ttl='5' is a str; give a keyed\.StateTtl or a timedelta"),
        (lambda: ValueState(0), r"0 is a value, not a type; .*ValueState\(int, default=0\)"),
    ],
)
def test_a_call_that_a_newcomer_types_is_refused_before_the_run(use, said):
    with pytest.raises(DefinitionError, match=said):
        use()


class Misnames(KeyedProcessFunction):
    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        yield self.cuont.value()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rows", "function", "said"),
    [
        (
            SALES,
            lambda self, value, ctx: [value["item"]],
            r"fields of Sale are item, at, price, and are read as .*: value\.item",
        ),
        (SALES, lambda self, value, _: [value.itme], r"the fields of Sale are item, at, price; did you mean 'item'\?"),
        ([{"item": 1}], lambda self, value, _: [value.itme], r"the fields of Row are item; did you mean 'item'\?"),
        (SALES, Misnames.process_element, r"no attribute 'cuont'; did you mean 'count'\?"),
    ],
)
def test_a_name_that_is_not_there_gets_those_that_are(rows, function, said):
    job = type("Job", (Misnames,), {"process_element": function})()
    with pytest.raises(UserFunctionError, match=said):
        keyed.stream(rows).key_by("item").process(job).run()


def test_what_a_stream_does_not_have_is_an_attribute_error_too():
    for thing in (sales(), by_item(), by_item().window(w.TumblingEventTimeWindows.of(5))):
        assert not hasattr(thing, "select")
        assert not hasattr(thing, "_private")


@pytest.mark.parametrize("as_rows", [lambda table: table, lambda table: table.to_batches()[0]])
def test_a_column_that_is_there_twice_is_refused_by_its_name(as_rows):
    table = pa.table([pa.array(["k"]), pa.array([1]), pa.array([2])], names=["k", "n", "n"])
    with pytest.raises(DefinitionError, match=r"column 'n' 2 times.*rename"):
        keyed.stream(as_rows(table))


# Methods


def function_with(**members: Any) -> Any:
    return type("Job", (Passes,), members)()


async def waits(self: Any, value: Any, ctx: Any) -> Any:
    return [value]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            function_with(process_element=lambda self, v: [v]),
            r"Job\.process_element .*def process_element\(self, value, ctx\)",
        ),
        (
            function_with(process_element=lambda v, ctx: [v]),
            r"Job\.process_element .*def process_element\(self, value, ctx\)",
        ),
        (function_with(on_timer=lambda self, ctx: []), r"Job\.on_timer .*def on_timer\(self, timestamp, ctx\)"),
        (function_with(on_batch_end=lambda self: []), r"Job\.on_batch_end .*def on_batch_end\(self, ctx\)"),
        (function_with(open=lambda self: None), r"Job\.open .*def open\(self, context\)"),
        (function_with(close=lambda self, ctx: None), r"Job\.close .*def close\(self\)"),
        (function_with(process_element=waits), r"Job\.process_element is a coroutine.*AsyncLookup"),
        (function_with(onTimer=lambda self, timestamp, ctx: []), r"Job\.onTimer would never be called.*on_timer"),
        (
            type("Job", (KeyedProcessFunction,), {"process_elements": lambda self, value, ctx: []})(),
            r"does not define process_element; it has process_elements: rename it",
        ),
        (
            type("Job", (keyed.KeyedCoProcessFunction,), {"process_element1": lambda self, value, ctx: []})(),
            r"does not define process_element2(?!;)",
        ),
        (
            type("Job", (keyed.vectorized.VectorizedFunction,), {"process_batch": lambda self, table: []})(),
            r"Job\.process_batch .*def process_batch\(self, table, ctx\)",
        ),
    ],
)
def test_a_method_that_cannot_be_called_is_refused_before_the_first_row(function, said):
    stream = sales()
    if isinstance(function, keyed.KeyedCoProcessFunction):
        stream = stream.connect(sales())
    with pytest.raises(DefinitionError, match=said):
        stream.key_by("item").process(function)


def test_methods_may_have_more_parameters_with_defaults():
    function = function_with(process_element=lambda self, value, ctx, *, factor=2: [value.price * factor])
    assert by_item().process(function).run().values == [20, 40, 60]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: by_item().process(Passes(), paralelism=2), r"'paralelism'.*did you mean 'parallelism'\?"),
        (lambda: keyed.stream(SALES, **MISSPELT), r"'timestamps'.*did you mean 'timestamp'\?"),
    ],
)
def test_a_misspelt_keyword_gets_the_name_that_is_like_it(call, said):
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda ctx: ctx.key, r"did you mean get_current_key\(\)\?"),
        (lambda ctx: ctx.register_event_time_timer(1), r"ctx\.timer_service\(\)\.register_event_time_timer"),
        (lambda ctx: ctx.timer_service().watermark(), r"did you mean current_watermark\(\)\?"),
        (lambda ctx: ctx.timer_service().current_watermark, r"current_watermark is a method that was not called"),
    ],
)
def test_what_the_context_does_not_have_is_named_with_what_it_has(use, said):
    function = function_with(process_element=lambda self, value, ctx: [use(ctx)])
    with pytest.raises(KeyedError, match=said):
        by_item().process(function).run()


class Base(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Sale]:
        yield value

    def on_timer(self, timestamp: int, ctx: keyed.OnTimerContext) -> Iterator[Sale]:
        yield from ()


class NoAnnotation(Base):
    def process_element(self, value, ctx):
        yield 1


def test_a_method_without_annotation_beside_others_is_named(tmp_path):
    with pytest.raises(OutputDefinitionError, match=r"NoAnnotation\.process_element has no annotation of its outputs"):
        by_item().process(NoAnnotation()).run(tmp_path / "out")


# What is accepted


@pytest.mark.parametrize("keys", [["item", "price"], ("item", "price")])
def test_key_by_takes_a_list_of_columns(keys):
    assert sales().key_by(keys).key_columns == ("item", "price")
    assert by_item().process(Passes()).key_by(keys).key_columns == ("item", "price")
    assert sales().connect(sales()).key_by(keys).key_columns == ("item", "price")


def test_a_watermark_may_be_its_delay():
    delay = dt.timedelta(milliseconds=5)
    assert sales(watermark=delay).key_by("item").watermark_delay_ms == 5
    with KeyedTestHarness(Passes(), key="item", watermark=delay) as harness:
        harness.process(SALES[0], 10)
        assert harness.current_watermark == 4


def test_a_time_to_live_may_be_its_duration():
    assert ListState(int, ttl=MINUTE).ttl == keyed.StateTtl(minutes=1)
    assert keyed.vectorized.TableState("k string, n bigint", key="k", ttl=MINUTE).ttl == keyed.StateTtl(minutes=1)
    with pytest.raises(DefinitionError, match=r"above 0|between 1"):
        ValueState(int, ttl=dt.timedelta(0))


@attrs.frozen
class Cheap:
    item: str
    price: int


@pytest.mark.parametrize(
    ("make", "output", "columns"),
    [
        (lambda value: value, None, {"item": ["a", "b", "a"], "at": [1, 2, 3], "price": [10, 20, 30]}),
        (lambda value: (value.item, value.price), "i string, p int", {"i": ["a", "b", "a"], "p": [10, 20, 30]}),
        (lambda value: Cheap(value.item, value.price), None, {"item": ["a", "b", "a"], "price": [10, 20, 30]}),
        (lambda value: {"p": value.price}, None, {"p": [10, 20, 30]}),
        (lambda value: value.price, None, {"value": [10, 20, 30]}),
        (lambda value: (value.item, value.at), None, None),
        (lambda value: dt.date(2020, 1, 1) if value.at == 1 else dt.datetime(2020, 1, 1, 9), None, None),
        (lambda value: dt.timedelta(1) if value.at == 1 else value.at, None, None),
        (lambda value: "x" if value.at == 1 else b"y", None, None),
    ],
)
def test_a_result_is_iterated_and_becomes_a_table(make, output, columns):
    function = function_with(process_element=lambda self, value, ctx: [make(value)])
    result = by_item().process(function, output).run()
    assert list(result) == result.values == [make(value) for value in SALES]
    if columns is None:
        with pytest.raises(OutputDefinitionError, match="no common Arrow type"):
            result.to_arrow()
        return
    assert result.to_arrow().to_pydict() == columns
    assert result.to_pandas().to_dict("list") == columns
    if output:
        assert result.to_arrow().schema.field("p").type == pa.int32()


def test_an_empty_result_has_the_declared_columns():
    nothing = function_with(process_element=lambda self, value, ctx: [])
    declared = by_item().process(nothing, "a string").run()
    assert declared.to_arrow().schema == pa.schema([("a", pa.string())])
    assert by_item().process(nothing).run().to_arrow().num_columns == 0


def test_values_of_different_columns_are_no_table():
    function = function_with(process_element=lambda self, value, ctx: [value, 1])
    with pytest.raises(OutputDefinitionError, match="have different columns; declare the output's type"):
        by_item().process(function).run().to_arrow()


@pytest.mark.parametrize(
    ("name", "door"),
    [
        ("DefinitionError", "keyed.errors"),
        ("open_tables", "keyed.tables"),
        ("verify", "keyed.recovery"),
        ("flush", "keyed.recovery"),
        ("TableState", "keyed.vectorized"),
        ("KeyedTestHarness", "keyed.testing"),
        ("TumblingEventTimeWindows", "keyed.windows"),
        ("StreamExecutionEnvironment", "keyed.pyflink"),
    ],
)
def test_a_public_name_of_another_package_is_refused_with_its_import(name, door):
    remedy = rf"module 'keyed' has no attribute '{name}'; .*: from {door} import {name}$"
    with pytest.raises(AttributeError, match=remedy):
        getattr(keyed, name)
    with pytest.raises(ImportError, match=remedy):
        exec(f"from keyed import {name}")
    assert not hasattr(keyed, name)


def test_a_module_that_is_not_loaded_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "keyed.pytest_plugin", raising=False)
    monkeypatch.delattr(keyed, "pytest_plugin", raising=False)
    exec("from keyed import pytest_plugin")
    assert "keyed.pytest_plugin" in sys.modules


def test_a_misspelt_public_name_gets_the_one_like_it():
    with pytest.raises(AttributeError, match=r"did you mean 'ValueState'\? from keyed import ValueState$"):
        keyed.ValueStat  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean 'open_tables'\? from keyed\.tables import open_tables$"):
        keyed.open_table  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'entirely_other'$"):
        keyed.entirely_other  # noqa: B018


def test_an_assigner_names_the_class_method_that_it_has():
    sessions: Any = w.EventTimeSessionWindows
    with pytest.raises(AttributeError, match=r"EventTimeSessionWindows has no 'of'; .*\.with_gap\(gap\)"):
        sessions.of(5)
    with pytest.raises(AttributeError, match=r"TumblingEventTimeWindows has no 'with_gap'; .*\.of\(size\)"):
        TUMBLING.with_gap(5)
    calendar: Any = windows.CalendarWindows
    with pytest.raises(AttributeError, match=r"CalendarWindows has no 'of'; .*\.days\(zone\), weeks\(zone\) or months"):
        calendar.of("day")
    assert not hasattr(sessions, "of")


def test_a_result_is_a_sequence_of_its_values():
    result = by_item().process(Passes()).run()
    assert (len(result), result[0], result[-1], result[1:]) == (3, SALES[0], SALES[2], SALES[1:])
    with pytest.raises(IndexError):
        result[3]
    nothing = keyed.stream([], timestamp="at").key_by("item").process(Passes()).run()
    assert len(nothing) == 0
    assert nothing, "a run that gave nothing has a result"


# Keys from columns, and states


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([[1], [1]]), r"operator 'out': key column 'k' has type list<item: int64>, which cannot be a key"),
        (pa.array([{"a": 1}] * 2), r"operator 'out': key column 'k' has type struct<a: int64>, which cannot be a key"),
        (pa.array([b"0" * 16] * 2, pa.uuid()), r"has type extension<arrow.uuid>, by which Arrow cannot group"),
        (pa.array([1, 2], pa.timestamp("ns", "UTC")), r"operator 'out': key column 'k' has times with nanoseconds"),
        (pa.array([1, 2], pa.duration("ns")), r"operator 'out': key column 'k' has times with nanoseconds"),
        (pa.array([1, 2], pa.timestamp("us")), r"operator 'out': key column 'k' has times without a time zone.*tz_loc"),
    ],
)
def test_columns_whose_values_cannot_be_keys_are_named(values, message, vectorized):
    table = pa.table({"k": values, "v": [1, None]})
    direct, by_rows = keyed.stream(table), keyed.stream(table, timestamp=lambda row: 0)
    for stream in (direct, by_rows, direct.map_batches(lambda rows: rows)):
        function = CountsRows() if vectorized else Passes()
        with pytest.raises(keyed.errors.EncodingError, match=message):
            stream.key_by("k").process(function, "n bigint" if vectorized else None, name="out").run()


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([{"k": 1}, {"k": 1, "b": 2}], OutputDefinitionError, r"Row\(k=1\) and Row\(k=1, b=2\) have different columns"),
        (
            [{"k": dt.datetime(2020, 1, 1, tzinfo=zone)} for zone in (dt.UTC, None)],
            OutputDefinitionError,
            "and without a",
        ),
        (
            [{"k": {"a": 1}}],
            keyed.errors.EncodingError,
            "key column 'k' has type struct<a: int64>, which cannot be a key",
        ),
    ],
)
def test_rows_that_are_no_table_are_refused_and_change_no_value(rows, error, message):
    with pytest.raises(error, match=message):
        keyed.stream(rows).map_batches(lambda table: table).key_by("k").process(KeyOfRow()).run()


def test_times_of_nanoseconds_that_are_whole_microseconds_are_keys():
    for type_, cls in (pa.timestamp("ns", "UTC"), dt.datetime), (pa.duration("ns"), dt.timedelta):
        times = pa.array([1000, 2000, 1000], type_)
        keys = keyed.stream(pa.table({"k": times})).key_by("k").process(KeyOfRow(), parallelism=2).run().values
        assert len(set(keys)) == 2
        assert set(map(type, keys)) == {cls}


class KeyOfRow(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.get_current_key()


class CountsRows(VectorizedFunction):
    def process_batch(self, table, ctx):
        ctx.emit(pa.table({"n": [table.num_rows]}))


class MakesState(KeyedProcessFunction):
    def __init__(self, *, opens):
        self._opens = opens

    def open(self, ctx):
        if self._opens:
            self.n = ValueState(int)

    def process_element(self, value, ctx):
        (self.n if self._opens else ListState(int)).clear()


@pytest.mark.parametrize(("opens", "kind"), [(True, "value"), (False, "list")])
def test_a_state_that_is_made_while_the_function_runs_is_not_declared(opens, kind):
    with pytest.raises(keyed.errors.StateAccessError, match=f"a {kind} state was used that is not declared; assign it"):
        by_item().process(MakesState(opens=opens)).run()
