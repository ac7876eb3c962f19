"""The joins over whole columns against the row path: same rows, order of each key, late rows and freed state."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import OutputTag
from keyed.arrow.write import arrow_schema
from keyed.errors import DefinitionError
from keyed.joins import AsOfJoin, EnrichmentJoin, IntervalJoin, Select, TableJoin, WindowCoGroup, WindowJoin
from keyed.testing import Record, strategies
from tests.support.explained import computed

HOWS = ("inner", "left", "right", "full")
LATE, LATE2 = (
    OutputTag("late", "k string, t bigint, id bigint"),
    OutputTag("late2", "j string, t bigint, id bigint, k bigint"),
)
#: (key, time, disorder): rows arrive by time plus disorder, of which the delay of the watermark covers a part.
#: Rows as they arrive, some of them late.
ROWS = strategies.streams(
    strategies.rows("k string", k=strategies.skewed("a", "b", "c")), gap=2, delay=5, late=7, max_size=20
)
SIZES = st.integers(1, 25)
PARALLELISM = st.sampled_from([1, 3])
BOUNDS = st.tuples(st.integers(-8, 8), st.integers(-8, 8), st.booleans(), st.booleans())
TOLERANCES = st.none() | st.integers(0, 9)
LATES: dict[str, Any] = {"late_left": LATE, "late_right": LATE2}


#: An example runs whole jobs, on both paths: three examples where others try five.
some = settings(max_examples=settings().max_examples * 3 // 5)


def table(rows, key):
    """Return rows; those of the right side have a column with the name of the left side's key."""
    columns = [[row.value["k"] for row in rows], [row.timestamp for row in rows], [*range(len(rows))]]
    types = [pa.string(), pa.int64(), pa.int64()]
    made = pa.table([pa.array(c, type_) for c, type_ in zip(columns, types, strict=True)], names=[key, "t", "id"])
    return made if key == "k" else made.append_column("k", pa.array([-number for number in columns[2]], pa.int64()))


def ids(left, right):
    key = right.j if left is None else left.k
    return (key, None if left is None else left.id, None if right is None else right.id)


JOINS = (ids, *(Select(left=("k", "id"), right=(name,)) for name in ("id", "k")))
#: What most joins are tried with.
SIDES: Any = {"left": ROWS, "right": ROWS, "size": SIZES, "parallelism": PARALLELISM, "join": st.sampled_from(JOINS)}


def joined(function, left, right, size, parallelism=1, **options):
    """Return outputs by key in their order, what was late, and how much state and how many dropped rows there are."""
    delay = keyed.bounded_out_of_orderness(5)
    streams = [
        keyed.stream(table(rows, key), timestamp="t", watermark=delay) for rows, key in ((left, "k"), (right, "j"))
    ]
    columns = options.pop("output", "k string, left bigint, right bigint")
    out = (
        streams[0].connect(streams[1]).key_by("k", "j").process(function, columns, name="join", parallelism=parallelism)
    )
    main, late, late2 = (keyed.collect_sink() for _ in range(3))
    has = function.known_side_outputs
    sides = [out.side_output(tag).to(sink) for tag, sink in ((LATE, late), (LATE2, late2)) if tag.name in has]
    result = keyed.run(out.to(main), *sides, rows_per_batch=size, **options)
    by_key: dict[str, list[tuple[int, ...]]] = {}
    for key, *rest in main.values:
        by_key.setdefault(key, []).append(tuple(rest))
    metrics = result.metrics["join"]
    counters = {
        name: metrics[name] for name in ("rows_in", "rows_out", "rows_late", "rows_dropped", "rows_side_output")
    }
    return by_key, [sorted(map(tuple, sink.values)) for sink in (late, late2)], counters, metrics["live_entries"]


def in_any_order(by_key):
    return {key: sorted(values, key=str) for key, values in by_key.items()}


def check(make, left, right, size, parallelism, *, ordered=True):
    """Both paths agree in batches of a size, whatever the number of key groups on whole columns."""
    paths = [joined(make("row"), left, right, size), joined(make("vectorized"), left, right, size, parallelism)]
    for found in zip(*(path[1:3] for path in paths), strict=True):
        assert found[0] == found[1]
    rows, columns = (path[0] if ordered else in_any_order(path[0]) for path in paths)
    assert columns == rows
    return paths


@some
@given(**SIDES, bounds=BOUNDS, aside=st.booleans(), how=st.sampled_from(HOWS))
def test_interval_join(left, right, bounds, size, aside, how, parallelism, join):
    lower, upper = sorted(bounds[:2])
    if lower + bounds[2] > upper - bounds[3]:
        return

    def make(path):
        options = {"lower_exclusive": bounds[2], "upper_exclusive": bounds[3], **(LATES if aside else {})}
        return IntervalJoin(join, lower=lower, upper=upper, how=how, path=path, **options)

    paths = check(make, left, right, size, parallelism, ordered=how == "inner")
    assert paths[0][3] == paths[1][3] == 0


@some
@given(**SIDES, tolerance=TOLERANCES, how=st.sampled_from(HOWS[:2]), exact=st.booleans())
def test_as_of_join(left, right, tolerance, size, how, exact, parallelism, join):
    def make(path):
        return AsOfJoin(join, tolerance=tolerance, allow_exact_matches=exact, how=how, path=path, late_left=LATE)

    paths = check(make, left, right, size, parallelism)
    # The last right row of each key, at most, stays.
    assert paths[1][3] <= len({row.value["k"] for row in right})
    assert tolerance is None or paths[1][3] == 0


@some
@given(**SIDES, how=st.sampled_from(HOWS[:2]))
def test_table_join(left, right, size, how, parallelism, join):
    paths = check(lambda path: TableJoin(join, how=how, path=path), left, right, size, parallelism)
    assert paths[0][3] == paths[1][3] == len({row.value["k"] for row in right})


#: Writes of a table in the order of their times: a key, and whether it is deleted.
WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=12)


@some
@given(left=WRITES, right=WRITES, size=SIZES, how=st.sampled_from(HOWS), parallelism=PARALLELISM)
def test_two_tables(left, right, size, how, parallelism):
    tables: Any = []
    rows: Any = []
    for writes in (left, right):
        columns = [[key for key, _ in writes], [*range(len(writes))], [gone for _, gone in writes]]
        types = [pa.string(), pa.int64(), pa.bool_()]
        arrays = [pa.array(of, type_) for of, type_ in zip(columns, types, strict=True)]
        tables.append(pa.table(arrays, names=["k", "t", "gone"]))
        last = {key: (time, gone) for time, (key, gone) in enumerate(writes)}
        rows.append({key: time for key, (time, gone) in last.items() if not gone})
    keys = {"inner": rows[0].keys() & rows[1].keys(), "full": rows[0].keys() | rows[1].keys()}
    keys |= {"left": {*rows[0]}, "right": {*rows[1]}}
    expected = {(key, rows[0].get(key), rows[1].get(key)) for key in keys[how]}

    def by_function(left, right, change):
        return (left or right)["k"], left and left["t"], right and right["t"], change

    delay = keyed.bounded_out_of_orderness(5)
    path: Any
    select: Any
    for path, select in (
        ("row", by_function),
        *((each, Select(["t"], ["t"], either=["k"])) for each in ("row", "vectorized")),
    ):
        streams = [keyed.stream(each, timestamp="t", watermark=delay) for each in tables]
        join = TableJoin(select, how=how, deletes="gone", left_table=True, path=path)
        keyed_by = streams[0].connect(streams[1]).key_by("k")
        groups = parallelism if path == "vectorized" else 1
        made = keyed_by.process(join, "k string, l bigint, r double, change tinyint", parallelism=groups).run(
            rows_per_batch=size
        )
        held: set[tuple[Any, ...]] = set()
        for *row, change in made.values:
            (held.add if change > 0 else held.remove)(tuple(row))
            assert len({key for key, *_ in held}) == len(held)
        assert held == expected


@some
@given(**SIDES, window=st.tuples(st.integers(1, 12), st.integers(1, 12)), how=st.sampled_from(HOWS))
def test_window_join(left, right, window, size, how, parallelism, join):
    def make(path):
        return WindowJoin(join, size=window[0], slide=window[1], offset=-3, how=how, path=path, **LATES)

    # Without a left row, selected columns lack the key by which outputs are compared.
    ordered = join is ids or how in HOWS[:2]
    paths = check(make, left, right, size, parallelism, ordered=ordered)
    assert paths[0][3] == paths[1][3] == 0


@some
@given(left=ROWS, right=ROWS, size=SIZES)
def test_cogroup(left, right, size):
    def cogroup(start, end, lefts, rights):
        key = [row.k for row in lefts] + [row.j for row in rights]
        yield key[0], start, [row.id for row in lefts], [row.id for row in rights]

    found = []
    for path in ("row", "vectorized"):
        function = WindowCoGroup(cogroup, size=10, slide=4, path=path)
        found.append(joined(function, left, right, size, output="k string, s bigint, l array<bigint>, r array<bigint>"))
    assert found[0] == found[1]


def test_a_cogroup_that_gives_none_gives_no_output():
    for path in ("row", "vectorized"):
        function = WindowCoGroup(lambda start, end, lefts, rights: None, size=10, path=path)
        assert joined(function, [Record({"k": "a"}, 1)], [Record({"k": "a"}, 2)], 2, output="k string")[0] == {}


def streams(left="k string, t bigint"):
    """Connected streams of Arrow tables with these columns."""
    tables = [arrow_schema(keyed.extending.schema_of(ddl)).empty_table() for ddl in (left, "k string, t bigint")]
    first, second = (keyed.stream(each, timestamp="t") for each in tables)
    return first.connect(second).key_by("k")


def join(path="auto", **options):
    return IntervalJoin(ids, lower=0, upper=1, path=path, **options)


def test_the_path_is_chosen_by_what_is_known_and_told():
    ddl = "k string, t bigint"
    chosen = streams().process(join(), ddl)
    assert computed(chosen) == "whole columns"
    for stream, function, options, said in (
        (streams(), join("row"), {}, "of path='row'"),
        (streams(), join(), {"output": None}, "the columns of the output are not declared"),
        (streams(), join(), {"order": "arrival"}, "order='arrival'"),
        (streams("k string, t bigint, v array<int>"), join(), {}, "column 'v' of the left side is of type unknown"),
        (streams("k double, t bigint"), join(), {}, "column 'k' of the left side is of type double"),
        (streams("k int, t bigint"), join(), {}, "the keys of the two sides are of different types"),
        (streams("k string, t bigint, `join.x` int"), join(), {}, "column 'join.x' of the left side has a name"),
    ):
        out = stream.process(function, **{"output": ddl, **options})
        assert said in computed(out), computed(out)
        if said != "of path='row'":
            with pytest.raises(DefinitionError, match="cannot be computed over whole columns, because"):
                stream.process(join("vectorized"), **{"output": ddl, **options})
    with pytest.raises(DefinitionError, match="path='columnar' must be"):
        join("columnar")


@pytest.mark.parametrize("begun", ["row", "vectorized"])
def test_a_checkpoint_goes_on_with_the_path_that_it_was_begun_with(tmp_path, begun):
    other = "vectorized" if begun == "row" else "row"
    left, right = ([Record({"k": "a"}, t) for t in range(first, 40, 4)] for first in (0, 1))

    def run(path, number):
        function = IntervalJoin(ids, lower=0, upper=1, path=path)
        return joined(function, left[:number], right[:number], 3, checkpoint=tmp_path / "checkpoint", drain=number > 5)

    first = run(begun, 5)
    with pytest.raises(keyed.errors.StateSchemaChanged, match=f'joins with path="{begun}"'):
        run(other, 10)
    found = [*first[0]["a"], *run(begun, 10)[0]["a"]]
    assert found == [(number, number) for number in range(10)]


class Passed(keyed.KeyedProcessFunction):
    """Hands its rows on, with their times, and drops every seventh."""

    def process_element(self, value, ctx):
        if value.id % 7:
            yield tuple(value)


@some
@given(left=ROWS, right=ROWS, size=SIZES, sides=st.sampled_from([(True, False), (False, True), (True, True)]))
def test_sides_may_be_outputs_of_operators(sides, left, right, size):
    found = []
    for path in ("row", "vectorized"):
        made: list[Any] = []
        for rows, key, is_output in zip((left, right), "kj", sides, strict=True):
            each: Any = keyed.stream(table(rows, key), timestamp="t", watermark=keyed.bounded_out_of_orderness(5))
            if is_output:
                columns = ", ".join(
                    f"{name} {'string' if name == key else 'bigint'}" for name in table(rows, key).schema.names
                )
                each = each.key_by(key).process(Passed(), columns, name=f"passed_{key}")
            made.append(each.key_by(key))
        join = IntervalJoin(ids, lower=-3, upper=5, how="full", path=path)
        result = made[0].connect(made[1]).process(join, "k string, left bigint, right bigint", name="join")
        run = result.run(rows_per_batch=size)
        metrics = run.metrics["join"]
        found.append((sorted(map(tuple, run.values), key=str), metrics["rows_late"], metrics["rows_dropped"]))
        assert metrics["live_entries"] == 0
    assert found[0] == found[1]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_columns_of_a_data_frame_are_known(library):
    frame = pytest.importorskip(library).DataFrame({"k": ["a", "b", "b"], "t": [1, 2, 2], "v": [1.5, None, 2.5]})
    first, second = keyed.stream(frame, timestamp="t"), keyed.stream(frame, timestamp="t")
    out = (
        first.connect(second)
        .key_by("k")
        .process(
            IntervalJoin(lambda left, right: (left.k, left.v, right.v), lower=0, upper=0),
            "k string, l double, r double",
        )
    )
    assert computed(out) == "whole columns"
    assert sorted(map(tuple, out.run().values), key=str) == sorted(
        [("a", 1.5, 1.5), *(("b", left, right) for left in (None, 2.5) for right in (None, 2.5))], key=str
    )


def test_a_data_frame_that_is_no_table_is_refused_at_once():
    pandas = pytest.importorskip("pandas")
    for frame, said in (
        (pandas.DataFrame({"k": ["a", 1]}), "column k"),
        (pandas.DataFrame([[1, 2]], columns=["k", "k"]), "Duplicate column names"),
        (pandas.DataFrame({"k": [2**70]}), "too large"),
    ):
        with pytest.raises(
            DefinitionError, match=f"the pandas DataFrame has columns that Arrow does not support.*{said}"
        ):
            keyed.stream(frame)


def test_times_with_nanoseconds_are_cut_as_they_are_by_row():
    stamps = pa.array([1_000_000_001, 2_000_000_999], pa.timestamp("ns", tz="UTC"))
    rows = pa.table({"k": ["a", "a"], "t": stamps})
    found = []
    for path in ("row", "vectorized"):
        first, second = keyed.stream(rows, timestamp="t"), keyed.stream(rows, timestamp="t")
        join = IntervalJoin(lambda left, right: (left.t, right.t), lower=-500, upper=500, path=path)
        found.append(first.connect(second).key_by("k").process(join, "l timestamp, r timestamp").run().values)
    assert [*map(tuple, found[0])] == [*map(tuple, found[1])]
    assert [left.microsecond for left, _ in found[1]] == [0, 0]


@pytest.mark.parametrize("output", ["k string, a bigint, b bigint", "k string, a double, b int"])
@pytest.mark.parametrize("path", ["row", "vectorized"])
def test_selected_columns_have_the_types_of_the_output_and_null_without_a_partner(path, output):
    left, right = [Record({"k": "a"}, 1), Record({"k": "b"}, 2)], [Record({"k": "a"}, 2)]
    function = IntervalJoin(Select(("k", "id"), ("id",)), lower=0, upper=5, how="left", path=path)
    found, *_ = joined(function, left, right, 10, output=output)
    assert found == {"a": [(0, 0)], "b": [(1, None)]}
    none, *_ = joined(AsOfJoin(Select(("k", "id"), ("id",)), path=path), left, [], 10, output=output)
    assert none == {"a": [(0, None)], "b": [(1, None)]}


def test_selected_columns_are_copied_without_a_call_for_each_pair(monkeypatch):
    monkeypatch.setattr(Select, "__call__", None)
    rows = [Record({"k": "a"}, time) for time in range(5)]
    function = IntervalJoin(Select(("k", "id"), ("id",)), lower=0, upper=0, path="vectorized")
    assert joined(function, rows, rows, 2)[0] == {"a": [(n, n) for n in range(5)]}


def test_the_row_path_selects_from_dictionaries_and_objects():
    element = type("Element", (), {"id": 1})
    assert Select(("id",), ("id",))({"id": 2}, element()) == (2, 1)


@pytest.mark.parametrize("path", ["row", "vectorized"])
def test_a_column_of_either_side_is_that_of_the_left_row_or_else_of_the_right_one(path):
    rows = [pa.table({"j": [key], "t": [1], "id": [number]}) for number, key in enumerate("ab")]
    streams = [keyed.stream(each, timestamp="t") for each in rows]
    select = Select(left=["id"], right=["id"], either=["j"])
    join = IntervalJoin(select, lower=0, upper=0, how="full", path=path)
    out = streams[0].connect(streams[1]).key_by("j").process(join, "j string, l bigint, r bigint")
    assert sorted(map(tuple, out.run().values)) == [("a", 0, None), ("b", None, 1)]


@pytest.mark.parametrize("path", ["row", "vectorized"])
@pytest.mark.parametrize("times", [True, False])
def test_of_equal_times_and_without_times_rows_of_the_table_come_first(path, times):
    options: Any = {"timestamp": "t"} if times else {}
    rows = pa.table({"k": ["a"], "t": [5], "id": [1]})
    streams = [keyed.stream(rows, **options) for _ in range(2)]
    join = TableJoin(Select(("k", "id"), ("id",)), path=path)
    out = streams[0].connect(streams[1]).key_by("k").process(join, "k string, l bigint, r bigint")
    assert [tuple(row) for row in out.run().values] == [("a", 1, 1)]


def test_a_table_join_that_calls_a_function_or_expires_rows_runs_row_by_row():
    ddl = "k string, t bigint"
    for function, said in (
        (TableJoin(ids), "whole columns"),
        (TableJoin(ids, deletes=lambda row: row.t < 0), "deletes= is a function of the right element"),
        (TableJoin(ids, ttl=keyed.StateTtl(1)), "the rows of the table have a time to live"),
        (EnrichmentJoin(ids, timeout=1), "left elements wait for a right one"),
        (TableJoin(ids, left_table=True), "join= is a function of each change"),
        (TableJoin(Select(["k"]), left_table=True, deletes=bool), "deletes= is a function of an element"),
    ):
        assert said in computed(streams().process(function, ddl))


def test_columns_that_are_not_there_are_refused_before_the_first_row():
    for make, said in (
        (Select, "no column is selected"),
        (lambda: Select("k"), "'k' is not a list of names"),
        (lambda: Select(right=(1,)), "is not a list of names"),
    ):
        with pytest.raises(DefinitionError, match=said):
            make()
    for select, said in (
        (Select(("k",), ("z",)), "the right side has no column 'z'; it has k, t"),
        (Select(("k",)), "1 columns are selected, and the output has 2"),
    ):
        for function in (IntervalJoin(select, lower=0, upper=1), AsOfJoin(select), WindowJoin(select, size=5)):
            with pytest.raises(DefinitionError, match=said):
                streams().process(function, "k string, t bigint")
    tables = TableJoin(Select(["k"]), left_table=True, deletes="t")
    for output, said in (
        ("k string", "2 columns are selected, with that of the change, and the output has 1"),
        ("k string, change int", "deletes='t' must be a boolean column of both sides"),
    ):
        with pytest.raises(DefinitionError, match=said):
            streams().process(tables, output)
