"""Hypothesis strategies for the input of a keyed function: rows, disorder, batches, clocks, crashes.

Their examples shrink to few rows, few keys, small numbers and one batch. They need ``keyed-streams[testing]``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import re
import types
from collections.abc import Sequence
from decimal import Decimal
from heapq import merge
from types import NoneType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import attrs

from keyed.base.arguments import Duration, instant_of, milliseconds_of
from keyed.base.extras import extra
from keyed.base.schemas import OF_PYTHON, parse_ddl, schema_of, split_top_level
from keyed.errors import DefinitionError
from keyed.rows import fields_of
from keyed.testing.function_options import Record, SecondRecord
from keyed.testing.scripts import Crash, End, ProcessingTime, Rescale, Rows, Step, Watermark

with extra("testing", "keyed.testing.strategies"):
    from hypothesis import strategies as st
    from hypothesis.strategies import DrawFn, SearchStrategy

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 32}
#: A second, minute, hour and day.
_ROUND_TIMES = (1_000, 60_000, 3_600_000, 86_400_000)
#: Limit of most single moves of a clock.
_MOST_OFTEN = 10_000
_PARAMETERS = re.compile(r"(array|map|struct)<(.*)>$", re.DOTALL)


#: One example of three is a burst: with few exceptions the rows of its streams have one time. Texts, which are often
#: keys, repeat more. Numbers repeat less, because a sum of floating-point numbers depends on their order only if a key
#: has several that differ.
_bursts = st.shared(st.sampled_from([False, False, True]), key="keyed.testing.strategies")
_MORE = list(range(10))
_TEXTS = {True: [*["a"] * 8, "b", ""], False: ["a", "b", ""]}
_DOUBLES = {True: [0.0, 0.1, 0.2, 0.7, 1.1, 0.3, 0.6, 1.3], False: [0.0, 1.0, 0.1, 0.2, 0.7, 1.1]}

# The fold means nothing for these values, and state does not keep it.
_times = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1)).map(lambda time: time.replace(fold=0))  # noqa: DTZ001


def values(type_: str) -> SearchStrategy[Any]:
    """Return values of a column type, three of four from a few simple ones.

    Numbers of ``bigint`` stay within 32 bits; floating-point numbers are finite.

    Args:
        type_: A Spark type as text: ``"bigint"``, ``"array<string>"``.

    Raises:
        DefinitionError: It is unknown.
    """
    if type_ in _BITS:
        half = 2 ** (_BITS[type_] - 1)
        others = st.integers(0, 9) | st.integers(-half, half - 1)
        return _in_bursts({True: _MORE, False: [0, 1, 2]}, others)
    if nested := _PARAMETERS.match(type_):
        kind, inner = nested.groups()
        if kind == "struct":
            return _records({name: values(of) for name, of in parse_ddl(inner)})
        parts = [part.strip() for part in split_top_level(inner)]
        if kind == "map" and _PARAMETERS.match(parts[0]):
            raise DefinitionError(
                f"column type {type_!r}: a Python dictionary cannot have such keys; give the column a strategy"
            )
        drawn = [values(part) for part in parts]
        return st.lists(drawn[0], max_size=3) if kind == "array" else st.dictionaries(*drawn, max_size=3)
    if decimal := re.fullmatch(r"decimal(?:\((\d+),\s*(\d+)\))?", type_):
        precision, scale = (int(part) for part in decimal.groups(default="0"))
        limit = Decimal((0, (9,) * min(precision or 10, scale + 9), -scale))
        few = [Decimal(each).scaleb(-scale) for each in (0, 1)]
        return _repeating(few, st.decimals(limit.copy_negate(), limit, places=scale))
    days = [dt.date(1970, 1, 1), dt.date(1970, 1, 2)]
    times = [dt.datetime(1970, 1, 1), dt.datetime(1970, 1, 2)]  # noqa: DTZ001
    in_utc = [time.replace(tzinfo=dt.UTC) for time in times]
    simple: dict[str, SearchStrategy[Any]] = {
        "string": _in_bursts(_TEXTS, st.text(max_size=8)),
        "binary": _repeating([b"a", b"b", b""], st.binary(max_size=8)),
        "boolean": st.booleans(),
        "double": _in_bursts(_DOUBLES, st.floats(allow_nan=False, allow_infinity=False)),
        "float": _repeating([0.0, 1.0, 0.5, -1.5], st.floats(allow_nan=False, allow_infinity=False, width=32)),
        "date": _repeating(days, st.dates(dt.date(1970, 1, 1), dt.date(2100, 1, 1))),
        "timestamp": _repeating(in_utc, _times.map(lambda time: time.replace(tzinfo=dt.UTC))),
        "timestamp_ntz": _repeating(times, _times),
    }
    if type_ not in simple:
        raise DefinitionError(f"column type {type_!r} is not supported; give the column a strategy")
    return simple[type_]


def _repeating(few: list[Any], others: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Return values, three of four of which are drawn from a few, the simplest first."""
    return st.sampled_from([*few, *few[:1] * max(0, 5 - len(few)), None, *[None] * (len(few) // 6)]).flatmap(
        lambda value: others if value is None else st.just(value)
    )


def _in_bursts(few: dict[bool, list[Any]], others: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Return repeating values, of other few ones in a burst."""
    drawn = {is_burst: _repeating(values, others) for is_burst, values in few.items()}
    return _bursts.flatmap(drawn.__getitem__)


#: Types that would change the column's values.
_OF_PYTHON: dict[Any, SearchStrategy[Any]] = {
    UUID: _repeating([UUID(int=0), UUID(int=1)], st.uuids()),
    Decimal: values("decimal(10,2)"),
}


def _records(columns: dict[str, SearchStrategy[Any]]) -> SearchStrategy[dict[str, Any]]:
    """Return dictionaries with these columns in this order, which Hypothesis' own do not keep."""
    return st.tuples(*columns.values()).map(lambda record: dict(zip(columns, record, strict=True)))


def skewed(*keys: Any) -> SearchStrategy[Any]:
    """Return keys, the first drawn as often as all others together, the second as the rest, and so on."""
    weights = [2 ** min(len(keys) - 1 - place, 4) for place in range(len(keys))]
    return st.sampled_from([key for key, weight in zip(keys, weights, strict=True) for _ in range(weight)])


def rows(schema: Any, **columns: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Return rows of a schema: dictionaries for one in DDL, objects for an attrs class, a dataclass or a named tuple.

    Columns in DDL are never null; fields of a class are sometimes ``None`` if their type includes it. A few values
    are drawn often, so that keys repeat.

    Args:
        schema: ``"user string, amount bigint"``, a Spark ``StructType``, an attrs class, a dataclass or a named tuple.
        columns: Strategies for columns: ``user=skewed("ann", "bob")``, ``amount=st.none() | values("bigint")``.

    Raises:
        DefinitionError: A column is not in the schema, or there are no values for its type.
    """
    of_class = isinstance(schema, type)
    fields = _fields(schema) if of_class else {name: (name, type_) for name, type_ in schema_of(schema).columns}
    for name, strategy in columns.items():
        if name not in fields:
            raise DefinitionError(f"column {name!r} is not in the schema: {', '.join(fields)}")
        if not isinstance(strategy, SearchStrategy):
            raise DefinitionError(
                f"{name}={strategy!r} is not a strategy; give hypothesis.strategies.just(...) or skewed(...)"
            )
    chosen = {}
    for name, (argument, type_) in fields.items():
        if name in columns:
            chosen[argument] = columns[name]
        else:
            chosen[argument] = _objects(type_, f"{schema.__name__}.{name}") if of_class else values(type_)
    return st.builds(schema, **chosen) if of_class else _records(chosen)


def _fields(cls: type) -> dict[str, tuple[str, Any]]:
    """Return the fields of a class: names, with the names of the arguments and the types.

    Raises:
        DefinitionError: It is not an attrs class, dataclass or named tuple.
    """
    hints = get_type_hints(cls)
    if attrs.has(cls):
        return {
            field.name: (field.alias or field.name, hints.get(field.name)) for field in attrs.fields(cls) if field.init
        }
    if dataclasses.is_dataclass(cls):
        return {field.name: (field.name, hints[field.name]) for field in dataclasses.fields(cls) if field.init}
    if (names := fields_of(cls)) is not None:
        return {name: (name, hints.get(name)) for name in names}
    raise DefinitionError(f"rows of {cls.__name__}: give DDL as text, an attrs class, a dataclass or a named tuple")


def _objects(hint: Any, where: str) -> SearchStrategy[Any]:
    """Return values of a Python type.

    Raises:
        DefinitionError: The type is not supported.
    """
    if hint in _OF_PYTHON:
        return _OF_PYTHON[hint]
    if hint in OF_PYTHON:
        return values(OF_PYTHON[hint])
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([st.none() if each is NoneType else _objects(each, where) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (list, set, frozenset, tuple, dict):
        parts = [_objects(each, where) for each in arguments if each is not Ellipsis]
        if origin is dict:
            return st.dictionaries(*parts, max_size=3)
        if origin is tuple and Ellipsis not in arguments:
            return st.tuples(*parts)
        return st.lists(parts[0], max_size=3).map(origin)
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return st.sampled_from(hint)
        if attrs.has(hint) or dataclasses.is_dataclass(hint) or fields_of(hint) is not None:
            return rows(hint)
    raise DefinitionError(f"{where}: type {hint!r} is not supported; give rows a strategy for it")


@st.composite
def streams(
    draw: DrawFn,
    rows: SearchStrategy[Any],
    *,
    timestamp: str | None = None,
    gap: Duration = 1000,
    delay: Duration = 0,
    late: Duration = 0,
    silence: Duration = 0,
    silent: str | None = None,
    duplicates: bool = False,
    min_size: int = 0,
    max_size: int = 12,
) -> list[Record]:
    """Return a stream: rows with timestamps, in the order of their arrival.

    Several rows often have one timestamp.

    Args:
        draw: The draw.
        rows: The rows, of `rows` or of any other strategy.
        timestamp: Column for the timestamp: milliseconds, or a datetime if the column has that type.
        gap: Approximate event time between one row and the next.
        delay: Distance by which a row may be behind the highest timestamp before it, not late by
            `bounded_out_of_orderness` of the same delay.
        late: Further distance of some rows: late if their batch begins after the rows before them.
        silence: If given, all keys are sometimes silent for this long.
        silent: Column of a key: then single keys are silent, while rows of others come.
        duplicates: A row may come twice.
        min_size: Minimal number of rows, without duplicates.
        max_size: Maximal number of rows, without duplicates.
    """
    gap_ms, delay_ms, late_ms, silence_ms = (
        milliseconds_of(each, name)
        for each, name in ((gap, "gap"), (delay, "delay"), (late, "late"), (silence, "silence"))
    )
    # One choice is the time since the previous row, another the fate of the row; its first value leaves the row out. An
    # example therefore shrinks row by row while the other rows keep their times, and rows shrink towards time 0
    # together. A time follows the previous one, or one of the next multiples of the gap, where windows begin.
    jitters = sorted({0, 1, gap_ms // 7, gap_ms // 3, gap_ms // 2})
    nearby = [(0, 0)] * 12 + [(0, each) for each in (*jitters, gap_ms - 1, gap_ms, gap_ms + 1)]
    places = st.sampled_from(
        nearby + [(1, 0)] * 4 + [(1, each) for each in (-1, *jitters)] + [(slots, 0) for slots in range(2, 5)]
    )
    lags = [0, 0, 0]
    if delay_ms:
        lags += [1, delay_ms // 3, delay_ms // 2, delay_ms]
    if late_ms:
        lags += [delay_ms + 1, delay_ms + late_ms // 2, delay_ms + late_ms]
    fates: list[tuple[int, int]] = [(1, lag) for lag in lags] + ([(2, lag) for lag in lags[::3]] if duplicates else [])
    if not min_size:
        fates.insert(0, (0, 0))
    silences = st.sampled_from([0, 0, silence_ms]) if silence_ms else st.just(0)
    # Hypothesis alone draws few rows, and most faults need several rows of one key.
    burst = draw(_bursts)
    many = max(min_size, max_size * 2 // 3)
    least = many if burst else draw(st.sampled_from([min_size, many]))
    drawn = draw(st.lists(st.tuples(st.sampled_from(fates), places, silences, rows), min_size=least, max_size=max_size))
    timed = []
    now = 0
    for (times, lag), (slots, jitter), quiet, row in drawn:
        if burst and slots <= 1:
            slots, jitter = 0, 0
        start = (now // gap_ms + slots) * gap_ms if slots and gap_ms else now
        now = max(now, start + jitter) + (0 if silent else quiet)
        timed.append((now, times, lag, row, quiet))
    if silent:
        timed = _with_silences(timed, silent)
    elements = []
    # One choice shifts all rows so that the first is at 0. Moving only the first row would lose a fault that needs rows
    # some time apart.
    leads = draw(st.sampled_from([False, True, True, True]))
    first = 0 if leads else min((now for now, times, *_ in timed if times), default=0)
    for now, times, lag, row, _ in sorted(timed, key=lambda each: each[0]):
        time = max(now - first - lag, 0)
        record = Record(row if timestamp is None else _stamp(row, timestamp, time), time)
        elements += [record] * times
    return elements


def _with_silences(timed: list[Any], column: str) -> list[Any]:
    """Return timed rows in which a key is silent before one of its rows, and all its later rows are shifted."""
    later: dict[str, int] = {}
    silences = []
    for now, times, lag, row, quiet in sorted(timed, key=lambda each: each[0]):
        key = repr(_column(row, column))
        later[key] = later.get(key, 0) + quiet
        silences.append((now + later[key], times, lag, row, quiet))
    return silences


def _column(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, dict) else getattr(row, name)


def _stamp(row: Any, column: str, time: int) -> Any:
    """Return a row with its timestamp in a column."""
    old = _column(row, column)
    new = instant_of(time) if isinstance(old, dt.datetime) else time
    if isinstance(row, dict):
        return row | {column: new}
    return (attrs.evolve if attrs.has(type(row)) else dataclasses.replace)(row, **{column: new})


@st.composite
def batches(draw: DrawFn, stream: Sequence[Record]) -> list[Rows]:
    """Return a stream cut into micro-batches. One row per batch is the simplest example."""
    # Drawn once for all rows, so that rows can be left out of an example without moving the cuts.
    together = draw(st.booleans())
    parts: list[list[Record]] = []
    for record in stream:
        if parts and together and not draw(st.booleans()):
            parts[-1].append(record)
        else:
            parts.append([record])
    return [Rows(batch) for batch in parts]


@st.composite
def steps(
    draw: DrawFn,
    stream: Sequence[Record],
    *,
    watermarks: bool = False,
    clocks: bool = True,
    ticks: bool = False,
    crashes: bool = False,
    parallelisms: Sequence[int] = (),
    move: Duration = 10_000,
    most: int = 4,
) -> list[Step]:
    """Return steps for a function with a stream: its batches, and other steps between them.

    Args:
        draw: The draw.
        stream: The rows.
        watermarks: The watermark of each stream moves in its own steps; later rows may be late.
        clocks: The processing time moves.
        ticks: Some examples move it by a millisecond before each batch.
        crashes: The process dies between batches.
        parallelisms: Numbers of key groups to rescale to.
        move: Maximal single move of a clock.
        most: Maximal number of steps beside the batches.
    """
    done: list[Any] = list(draw(batches(stream)))
    kinds: list[SearchStrategy[Any]] = []
    if crashes:
        kinds.append(st.just(Crash()))
    if parallelisms:
        kinds.append(st.sampled_from(list(parallelisms)).map(Rescale))
    # Round times too, at which timers and times to live end.
    furthest = milliseconds_of(move, "move", least=1)
    round_times = [*(10**n for n in range(len(str(furthest)))), *(n for n in _ROUND_TIMES if n < furthest), furthest]
    if ticks and draw(st.sampled_from([False, False, True])):
        # Timers that rows of almost the same time register, and that one move makes due together.
        tick, jump = ((ProcessingTime, None, distance, False) for distance in (1, furthest))
        done = [*(each for batch in done for each in (tick, batch)), jump]
    moves = st.integers(1, min(furthest, _MOST_OFTEN)) | st.sampled_from(sorted(set(round_times)))
    if furthest > _MOST_OFTEN:
        # Often exactly the longest: a time to live that ends a millisecond late shows at no other move.
        moves |= st.integers(1, furthest) | st.just(furthest)
    if clocks:
        kinds.append(st.tuples(st.just(ProcessingTime), st.none(), moves, st.just(False)))
    if watermarks:
        sides: list[int | None] = [1, 2] if any(record.input == 2 for record in stream) else [None]
        # From the current value, or from the highest row before it.
        kinds.append(st.tuples(st.just(Watermark), st.sampled_from(sides), moves, st.sampled_from([True, False])))
    between = draw(st.lists(st.tuples(st.integers(0, len(done)), st.one_of(kinds)), max_size=most)) if kinds else []
    # Places are counted from the end, so that rows before them can be left out of an example.
    many = len(done)
    for place, step in sorted(between, key=lambda item: item[0]):
        done.insert(many - place, step)
    return _with_absolute_times(done)


def _with_absolute_times(done: Sequence[Any]) -> list[Step]:
    """Return steps with absolute times of the clocks, from relative moves."""
    clocks: dict[Any, int] = {}
    highest: dict[int | None, int] = {}
    steps: list[Step] = []
    for step in done:
        if isinstance(step, tuple):
            kind, side, move, after_rows = step
            start = max(clocks.get((kind, side), 0), highest.get(side, 0) if after_rows else 0)
            clocks[kind, side] = start + move
            steps.append(Watermark(start + move, side) if kind is Watermark else ProcessingTime(start + move))
        else:
            steps.append(step)
            for row in step.rows if isinstance(step, Rows) else ():
                for side in (None, row.input):
                    highest[side] = max(highest.get(side, 0), row.timestamp or 0)
    return steps


@st.composite
def two_streams(draw: DrawFn, left: SearchStrategy[Any], right: SearchStrategy[Any]) -> list[Record]:
    """Return the rows of two streams in one order of arrival; those of the second one are `keyed.testing.SecondRecord`.

    Args:
        draw: The draw.
        left: The first stream.
        right: The second one.
    """
    first, second = draw(left), [SecondRecord(*row) for row in draw(right)]
    timed = all(row.timestamp is not None for row in (*first, *second))
    if timed and not draw(st.booleans()):
        # The simplest example: both in order of event time. The order within each stream does not change.
        return list(merge(first, second, key=lambda row: row.timestamp))
    records = []
    while first and second:
        records.append((second if draw(st.booleans()) else first).pop(0))
    return [*records, *first, *second]


def register() -> None:
    """Register the strategies of rows and steps for ``st.from_type``."""
    times = st.integers(0, 10_000)
    st.register_type_strategy(Record, st.builds(Record, st.integers(0, 9), times))
    st.register_type_strategy(Watermark, st.builds(Watermark, times))
    st.register_type_strategy(ProcessingTime, st.builds(ProcessingTime, times))
    st.register_type_strategy(Rescale, st.builds(Rescale, st.integers(1, 4)))
    st.register_type_strategy(Crash, st.just(Crash()))
    st.register_type_strategy(End, st.just(End()))


register()
