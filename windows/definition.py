"""The definition of a window operator, validated before the first row, its kinds of assigners, the layout of its state.

Windows have three layouts. The layout follows from the definition alone, so that a restart has the same one (a
checkpoint with another layout is refused by the check of its states):

``panes``     Tumbling and hopping windows with the default trigger, aggregated. All open slices of a key are one value
              of state; hopping windows share their slices (a slice is as long as the slide).
``sessions``  Session windows with the default trigger, aggregated. All open sessions of a key are one value of state.
``general``   Everything else, as in Flink: the contents of each window under its namespace.

`Definition.layout_reason` is the reason for the general layout. Window functions are Flink's
``ProcessWindowFunction``; method names are PyFlink's.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import attrs

from keyed import (
    MAX_TIMESTAMP,
    AggregatingState,
    ListState,
    MapState,
    OpenContext,
    OutputTag,
    ReducingState,
    ValueState,
    VersionedState,
)
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.extending import Schema, milliseconds_of
from keyed.windows.aggregates import Aggregate, AnyAggregate, Functions
from keyed.windows.evictors import Evictor
from keyed.windows.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger
from keyed.windows.window import GlobalWindow, TimeWindow, merge_time_windows, time_window, window_start


class AnyAssigner:
    """An assigner as operators use it. The public base is `keyed.windows.WindowAssigner`.

    Attributes:
        event_time: True for windows in event time, false for processing time.
        window_type: Class of the windows: a named tuple with ``max_timestamp()``.
    """

    event_time: ClassVar[bool] = True
    window_type: Callable[..., Any] = TimeWindow

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        """Return the windows of an element, from these arguments alone; called once per element.

        Args:
            element: The element.
            timestamp: In milliseconds; never `None` if ``event_time`` is true.
            processing_time: The batch's, milliseconds.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define assign_windows")

    def default_trigger(self) -> Trigger:
        """Return the default trigger."""
        return EventTimeTrigger() if self.event_time else ProcessingTimeTrigger()

    def default_evictor(self) -> Evictor | None:
        """Return the default evictor."""
        return None


class HoppingWindows(AnyAssigner):
    """Windows of one size that start every ``slide``: the base of tumbling and hopping windows of both clocks.

    Attributes:
        size_ms: Length of a window.
        slide_ms: Distance between the starts of two windows. Tumbling if it equals the size; if it is larger, elements
            between windows belong to none.
        offset_ms: Windows start at this time modulo the slide.
    """

    def __init__(self, size_ms: int, slide_ms: int, offset_ms: int) -> None:
        self.size_ms = size_ms
        self.slide_ms = slide_ms
        self.offset_ms = offset_ms

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        if not self.event_time:
            timestamp = processing_time
        assert timestamp is not None
        start = window_start(timestamp, self.offset_ms, self.slide_ms)
        size, slide = self.size_ms, self.slide_ms
        if size == slide:
            return (time_window(start, start + size),)
        return [time_window(first, first + size) for first in range(start, timestamp - size, -slide)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self.size_ms} ms, slide={self.slide_ms} ms, offset={self.offset_ms} ms)"


class SessionWindows(AnyAssigner):
    """Windows that end after a gap without elements: the base of the session windows of both clocks.

    Attributes:
        gap_of: The gap after an element, in milliseconds, or one gap for all elements.
    """

    def __init__(self, gap_of: int | Callable[[Any], int]) -> None:
        self.gap_of = gap_of

    def gap_ms(self, element: Any) -> int:
        """Return the gap after ``element``.

        Raises:
            DefinitionError: The user's function returned no duration of at least 1 ms.
        """
        gap = self.gap_of
        return gap if isinstance(gap, int) else milliseconds_of(gap(element), "session gap", least=1)

    def assign_windows(self, element: Any, timestamp: int | None, processing_time: int) -> Sequence[Any]:
        if not self.event_time:
            timestamp = processing_time
        assert timestamp is not None
        return (time_window(timestamp, timestamp + self.gap_ms(element)),)

    def merge_windows(self, windows: Iterable[Any]) -> Iterable[tuple[Any, list[Any]]]:
        return merge_time_windows(windows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(gap={self.gap_of!r})"


class ProcessWindowContext(Protocol):
    """Context of a window function: window, clocks, state and side outputs."""

    def window(self) -> Any:
        """Return the window: a `TimeWindow`, a `GlobalWindow` or the assigner's own kind."""

    def current_watermark(self) -> int:
        """Return the watermark, milliseconds."""

    def current_processing_time(self) -> int:
        """Return the processing time, milliseconds."""

    def window_state(self, descriptor: Any) -> Any:
        """Return the state declared as ``descriptor``, for this key and window. Clear it in ``clear``.

        Raises:
            StateAccessError: The windows merge, so there is no state per window.
        """

    def global_state(self, descriptor: Any) -> Any:
        """Return the state declared as ``descriptor``, for this key and all its windows."""

    def output(self, tag: OutputTag | str, value: Any) -> None:
        """Emit ``value`` to the side output ``tag``."""


class ProcessWindowFunction:
    """A function over the elements of a window; state is declared as in `KeyedProcessFunction`.

    A declaration serves ``context.window_state`` and ``context.global_state``, which share no values.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def open(self, context: OpenContext) -> None:
        """Prepare; called once per task before its first window."""

    def process(self, key: Any, context: ProcessWindowContext, elements: Sequence[Any], /) -> Iterable[Any] | None:
        """Process the elements of a window; called whenever it fires.

        Args:
            key: The key.
            context: Window, clocks, state and side outputs.
            elements: In order of arrival, at least one; with an aggregate, only its result.

        Returns:
            An iterable of outputs (write a generator), or `None`. They get the window's last timestamp.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process")

    def clear(self, context: ProcessWindowContext) -> None:
        """Clear ``context.window_state``; called when the window is cleaned up."""

    def close(self) -> None:
        """Release what `open` took; called once per task after its last window."""


_STATES = (ValueState, ListState, MapState, ReducingState, AggregatingState, VersionedState)
#: With more open slices per key than this, one value per key costs more to write than separate windows.
MOST_SLICES = 64


@attrs.frozen(eq=False, kw_only=True)
class Definition:
    """A validated window operator. See `define` for the fields.

    Attributes:
        names: The columns of named aggregates.
        plain_rows: Rows are plain tuples in the order of the columns, which cost less than named ones.
        row_reason: The reason why they are computed row by row, if whole columns were considered.
        layout_reason: The reason why they have to be kept one by one; ``None`` without one.
    """

    assigner: AnyAssigner
    trigger: Trigger
    evictor: Evictor | None
    aggregates: tuple[AnyAggregate, ...]
    names: tuple[str, ...] | None
    process: ProcessWindowFunction | None
    allowed_lateness_ms: int
    late_tag: OutputTag | str | None
    idle_timeout_ms: int | None
    key_names: tuple[str, ...]
    timestamps: bool
    element_type: Any
    columns: Mapping[str, str | None] | None
    delay_ms: int
    row_reason: str | None = None
    plain_rows: bool = False
    layout_reason: str | None = attrs.field(init=False)

    @property
    def known_side_outputs(self) -> tuple[str, ...] | None:
        """The side output of late rows; ``None`` if a window function may have others."""
        if self.process is not None:
            return None
        tag = self.late_tag
        return () if tag is None else (tag.name if isinstance(tag, OutputTag) else tag,)

    @property
    def custom_reason(self) -> str | None:
        """The first option of the windows that is not the default, apart from the aggregates; ``None`` if all are."""
        default = EventTimeTrigger if self.assigner.event_time else ProcessingTimeTrigger
        if type(self.trigger) is not default:
            return f"the trigger {self.trigger!r} is not the default one"
        if self.evictor is not None:
            return "an evictor needs all elements"
        return None if self.idle_timeout_ms is None else "windows close when they are idle"

    @layout_reason.default
    def _general_reason(self) -> str | None:
        assigner, aggregates, process = self.assigner, self.aggregates, self.process
        if self.custom_reason is not None:
            return self.custom_reason
        if not aggregates:
            return "the window function needs all elements"
        if any(aggregate.accumulator_type is not None for aggregate in aggregates):
            return "an aggregate declares the type of its accumulator"
        if process is not None and (declared_states(process) or type(process).clear is not ProcessWindowFunction.clear):
            return "the window function has state or clear()"
        if isinstance(assigner, HoppingWindows) and type(assigner).assign_windows is HoppingWindows.assign_windows:
            slice_ms = hopping_slice(assigner)
            slices = (assigner.size_ms + self.lateness_ms) // slice_ms
            if slices + (self.delay_ms // slice_ms if assigner.event_time else 0) > MOST_SLICES:
                return f"a key may have more than {MOST_SLICES} open slices"
            if slices > 1 and assigner.slide_ms < assigner.size_ms and not all(a.commutative for a in aggregates):
                return "the order of elements matters to an aggregate, and hopping windows would share slices"
            return None
        if isinstance(assigner, SessionWindows) and type(assigner).merge_windows is SessionWindows.merge_windows:
            if type(assigner).assign_windows is not SessionWindows.assign_windows:
                return "the assigner is custom"
            gap_ms = assigner.gap_of if isinstance(assigner.gap_of, int) else 1
            if assigner.event_time and (self.lateness_ms + self.delay_ms) // gap_ms > MOST_SLICES:
                return f"a key may have more than {MOST_SLICES} open sessions"
            return None
        return "the assigner is neither tumbling, hopping nor sessions"

    @property
    def layout(self) -> str:
        """``panes``, ``sessions`` or ``general``."""
        if self.layout_reason is not None:
            return "general"
        return "sessions" if isinstance(self.assigner, SessionWindows) else "panes"

    @property
    def row_names(self) -> tuple[str, ...]:
        """Column names of the rows of named aggregates."""
        bounds = () if self.assigner.window_type is GlobalWindow else ("window_start", "window_end")
        return (*self.key_names, *bounds, *(self.names or ()))

    @property
    def named(self) -> dict[str, AnyAggregate]:
        """The aggregates by name; empty if they have no names."""
        return dict(zip(self.names or (), self.aggregates, strict=True)) if self.names else {}

    @property
    def known_columns(self) -> dict[str, str]:
        """Types of the input's columns, as far as they are known."""
        return {name: type_ for name, type_ in (self.columns or {}).items() if type_ is not None}

    @property
    def lateness_ms(self) -> int:
        """Allowed lateness; there is none in processing time."""
        return self.allowed_lateness_ms if self.assigner.event_time else 0

    def cleanup_time(self, window: Any) -> int:
        """Return the time at which a window's state is removed; the end of time means never."""
        last: int = window.max_timestamp()
        return min(last + self.lateness_ms, MAX_TIMESTAMP)


def define(
    *,
    assigner: AnyAssigner,
    trigger: Trigger | None = None,
    evictor: Evictor | None = None,
    aggregate: Any = None,
    process: ProcessWindowFunction | None = None,
    allowed_lateness_ms: Any = 0,
    late_tag: OutputTag | str | None = None,
    idle_timeout_ms: Any = None,
    key_names: tuple[str, ...] = ("key",),
    timestamps: bool = False,
    element_type: Any = object,
    columns: Mapping[str, str | None] | None = None,
    delay_ms: int = 0,
) -> Definition:
    """Validate a definition.

    Args:
        assigner: Assigns windows to elements.
        trigger: By default the assigner's.
        evictor: Removes elements before or after the window function.
        aggregate: One aggregate, whose result is the output, or a dict by column name, for rows of key, window and
            results.
        process: A function over the elements, or over the aggregate's result.
        allowed_lateness_ms: As of `WindowedStream.allowed_lateness`.
        late_tag: Side output for late elements; without it they are dropped.
        idle_timeout_ms: As of `WindowedStream.close_when_idle`; a later element opens the window again.
        key_names: Names of the key's columns.
        timestamps: ``window_start`` and ``window_end`` are aware datetimes, not milliseconds.
        element_type: As of `WindowedStream.element_type`.
        columns: Types of the input's columns, where they are known.
        delay_ms: Delay of the watermark behind the highest timestamp; 0 if another operator sets it. If it and the
            lateness allow more than 64 open slices or sessions of a key, windows are kept one by one.

    Raises:
        DefinitionError: A part is of the wrong type, or parts do not fit each other.
    """
    if trigger is not None:
        _expect("trigger", trigger, Trigger, "a trigger such as CountTrigger.of(3)")
    if evictor is not None:
        _expect("evictor", evictor, Evictor, "an evictor such as CountEvictor.of(3)")
    if process is not None:
        _expect("process", process, ProcessWindowFunction, "an object of a class that extends it")
        if type(process).process is ProcessWindowFunction.process:
            raise DefinitionError(f"{type(process).__name__} does not define process(key, context, elements)")
    if late_tag is not None and not isinstance(late_tag, OutputTag | str):
        raise DefinitionError(f"late_tag={late_tag!r} is not an OutputTag")
    aggregates, names = _aggregates(aggregate)
    if not aggregates and process is None:
        raise DefinitionError("a window operator needs aggregate=..., process=... or both")
    effective = trigger if trigger is not None else assigner.default_trigger()
    if hasattr(assigner, "merge_windows") and not effective.can_merge():
        raise DefinitionError(
            f"windows of {assigner!r} merge, which {effective!r} does not support; use another trigger"
        )
    definition = Definition(
        assigner=assigner,
        trigger=effective,
        evictor=evictor if evictor is not None else assigner.default_evictor(),
        aggregates=aggregates,
        names=names,
        process=process,
        allowed_lateness_ms=allowed_lateness_ms,
        late_tag=late_tag,
        idle_timeout_ms=idle_timeout_ms,
        key_names=key_names,
        timestamps=timestamps,
        element_type=element_type,
        columns=columns,
        delay_ms=delay_ms,
    )
    results = definition.row_names
    if names is not None and process is None and len(set(results)) < len(results):
        twice = next(name for name in results if results.count(name) > 1)
        raise DefinitionError(f"results have the columns {', '.join(results)}: {twice!r} occurs twice; rename one")
    return definition


def output_schema(definition: Definition, *, strict: bool) -> Schema | None:
    """Return the columns of the rows of named aggregates; ``None`` if they are not known.

    Args:
        definition: The operator.
        strict: Raise if they are not known.

    Raises:
        OutputDefinitionError: The input lacks a column, or a type does not follow from the input.
    """
    columns: Mapping[str, Any] | None = definition.columns
    if definition.names is None or definition.process is not None or columns is None:
        return None
    types: dict[str, str | None] = {name: columns.get(name) for name in definition.key_names}
    if definition.assigner.window_type is not GlobalWindow:
        types |= dict.fromkeys(("window_start", "window_end"), "timestamp" if definition.timestamps else "bigint")
    types |= {name: aggregate.output_type(columns) for name, aggregate in definition.named.items()}
    return derived_schema(types, strict=strict)


def derived_schema(types: Mapping[str, str | None], *, strict: bool) -> Schema | None:
    """Return the columns of an output; ``None`` if the type of one does not follow from the input.

    Raises:
        OutputDefinitionError: One does not follow, and ``strict`` is true.
    """
    known = {name: type_ for name, type_ in types.items() if type_ is not None}
    unknown = [name for name in types if name not in known]
    if unknown and strict:
        raise OutputDefinitionError(
            f"the type of output column {unknown[0]!r} does not follow from the input; give it as type=... to the "
            "aggregate, or all columns as output=..."
        )
    return None if unknown else Schema(tuple(known.items()))


def row_timestamps(output: Schema) -> bool:
    """Return whether the output's window bounds are timestamps.

    Raises:
        DefinitionError: ``window_start`` and ``window_end`` are of different kinds.
    """
    kinds = {type_.startswith("timestamp") for name, type_ in output.columns if name in ("window_start", "window_end")}
    if len(kinds) > 1:
        raise DefinitionError("window_start and window_end must both be timestamp or both bigint")
    return kinds == {True}


def hopping_slice(assigner: HoppingWindows) -> int:
    """Return the length of the slices that hopping windows share: windows start and end only between slices."""
    size, slide = assigner.size_ms, assigner.slide_ms
    return slide if slide >= size else math.gcd(size, slide)


def declared_states(owner: Any) -> dict[str, Any]:
    """Return the states that a trigger or window function declares on its class or object, by name.

    Raises:
        DefinitionError: Two share a name.
    """
    members: dict[str, Any] = {}
    for part in (*(vars(cls) for cls in reversed(type(owner).__mro__)), vars(owner)):
        members |= part
    states: dict[str, Any] = {}
    for attribute, state in members.items():
        if isinstance(state, _STATES):
            name = state.name or attribute
            if name in states and states[name] is not state:
                raise DefinitionError(f"{type(owner).__name__} declares two states named {name!r}; rename one")
            states[name] = state
    return states


def _nested_triggers(trigger: Trigger) -> list[Trigger]:
    """Return a trigger and its nested triggers, outermost first."""
    triggers = [trigger]
    for member in vars(trigger).values():
        if isinstance(member, Trigger):
            triggers += _nested_triggers(member)
    return triggers


def trigger_states(trigger: Trigger) -> dict[str, Any]:
    """Return the states of a trigger and of its nested triggers, by a name that is unique among them."""
    states: dict[str, Any] = {}
    for depth, part in enumerate(_nested_triggers(trigger)):
        for name, state in declared_states(part).items():
            states[f"trigger_{name}" if not depth else f"trigger{depth}_{name}"] = state
    return states


def _aggregates(aggregate: Any) -> tuple[tuple[AnyAggregate, ...], tuple[str, ...] | None]:
    """Return the aggregates, and their column names if they are named.

    Raises:
        DefinitionError: One is not an aggregate.
    """
    if aggregate is None:
        return (), None
    if isinstance(aggregate, Mapping):
        named = named_aggregates(aggregate)
        return tuple(named.values()), tuple(named)
    return (_aggregate("aggregate", aggregate),), None


def named_aggregates(aggregates: Any) -> dict[str, AnyAggregate]:
    """Return the aggregates of a dict of them.

    Raises:
        DefinitionError: It is not a dict, or a value is not an aggregate.
    """
    if not isinstance(aggregates, Mapping) or not aggregates:
        raise DefinitionError(f"aggregate={aggregates!r} names no aggregate; give a dict {{name: aggregate}}")
    return {name: _aggregate(name, aggregate) for name, aggregate in aggregates.items()}


def _aggregate(name: str, aggregate: Any) -> AnyAggregate:
    if isinstance(aggregate, Aggregate):
        return aggregate
    methods = ("create_accumulator", "add", "merge", "get_result")
    if isinstance(aggregate, type):
        raise DefinitionError(f"{name}={aggregate!r} is a class; give an object of it")
    missing = [method for method in methods if not callable(getattr(aggregate, method, None))]
    if missing:
        raise DefinitionError(f"{name}={aggregate!r} is not an aggregate: it lacks {', '.join(missing)}")
    functions = (getattr(aggregate, method) for method in methods)
    return Functions(*functions, accumulator_type=getattr(aggregate, "accumulator_type", None))


def _expect(name: str, value: Any, cls: type, remedy: str) -> None:
    if not isinstance(value, cls):
        hint = ", not the class" if isinstance(value, type) else ""
        raise DefinitionError(f"{name}={value!r} is not a {cls.__name__}; give {remedy}{hint}")
