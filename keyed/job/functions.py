"""The functions that users subclass, over rows and over whole columns, the operators made of them, and their checks."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, get_args

import attrs

from keyed.base.arguments import Shown
from keyed.base.schemas import Schema, schema_of
from keyed.changelog.model import Changelog
from keyed.errors import DefinitionError, OutputDefinitionError, StateDefinitionError
from keyed.job.context import BroadcastContext, Context, OnTimerContext, OpenContext, OutputTag, TaskContext
from keyed.job.lost_changes import check_changes
from keyed.job.restoring import StateMigration
from keyed.job.state import KeyedState, MapState, State
from keyed.job.table_declaration import TableState
from keyed.job.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    import pyarrow as pa


#: The column that holds the event timestamp of a row: int64, milliseconds since the epoch.
TIMESTAMP_COLUMN = "__keyed_timestamp"


class BatchContext(Protocol):
    """Context of ``process_batch`` and ``on_watermark``: clocks, late rows and outputs."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns of ``key_by``."""

    @property
    def late(self) -> pa.BooleanArray:
        """Mask of the batch's late rows: at or below the watermark at its start.

        All false without timestamps; empty in ``on_watermark``.
        """

    def current_watermark(self) -> int:
        """Return the watermark: in ``process_batch`` that before the batch, in ``on_watermark`` the new one."""

    def current_processing_time(self) -> int:
        """Return the processing time of this micro-batch, milliseconds."""

    def previous_watermark(self) -> int:
        """Return the watermark before this micro-batch, also in ``on_watermark``."""

    def previous_processing_time(self) -> int:
        """Return the processing time of the micro-batch before; −2^63 in the first one."""

    def emit(self, table: pa.Table) -> None:
        """Emit rows to the main output: the declared columns, by name; others are dropped.

        `TIMESTAMP_COLUMN`, if there, has the timestamps for a keyed stage that follows.
        """

    def output(self, tag: OutputTag | str, table: pa.Table) -> None:
        """Emit rows to the side output ``tag``. The columns are as in `emit`."""

    def drop(self, rows: int) -> None:
        """Count rows as dropped, in the counter ``rows_dropped``."""


class StreamFunction(Shown):
    """Base of the functions over streams, by rows or by whole columns."""

    known_side_outputs: Collection[str] | None = None
    forwarded_fields: Mapping[str, str] = {}
    migration: StateMigration | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class VectorizedFunction(StreamFunction):
    """A function over a keyed stream that works on whole columns, for ``.process``.

    State is declared by class attributes, or set on the object in ``__init__``. Copies of the object are as those of a
    `keyed.KeyedProcessFunction`.

    Attributes:
        known_side_outputs: As `KeyedProcessFunction.known_side_outputs`.
        forwarded_fields: As `KeyedProcessFunction.forwarded_fields`.
        migration: As `KeyedProcessFunction.migration`; tables can be renamed and dropped.
    """

    def open(self, context: TaskContext) -> None:
        """Prepare for a key group's first batch (on Spark, each micro-batch). State cannot be used here."""

    def process_batch(self, table: pa.Table, ctx: BatchContext, /) -> None:
        """Process all rows of a micro-batch for the key group; outputs go to ``ctx.emit`` and ``ctx.output``.

        Args:
            table: The columns of the source, or of ``combine``, and `TIMESTAMP_COLUMN` if the stream has event time.
                By event time, stable by arrival; by arrival with ``order="arrival"``, or if ``combine`` left out the
                timestamps.
            ctx: Clocks, late rows and outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_batch")

    def on_watermark(self, watermark: int, ctx: BatchContext, /) -> None:
        """Act on an advance of watermark or clock, after a micro-batch's rows or without rows: emit what has expired.

        Args:
            watermark: The watermark after the batch; 2^63 − 1 at the end of input.
            ctx: Clocks and outputs.
        """

    def combine(self, table: pa.Table, /) -> pa.Table:
        """Aggregate rows partially before they are sent to their key groups. Optional; without state.

        Called any number of times, with any part of a batch, in arrival order. The watermark is measured before.

        Returns:
            A table with at least the key columns, for ``process_batch``.
        """
        return table

    def close(self) -> None:
        """Release what ``open`` took, after the last batch (on Spark, each micro-batch) or a failure."""


class VectorizedCoFunction(VectorizedFunction):
    """A `VectorizedFunction` over two connected streams, with ``process_batches`` and without ``combine``.

    Both sides' rows of a key are in one key group and share its tables. Keys of table states begin with the columns of
    the first side's ``key_by``; the second side's may have other names. The watermark is the lesser one.
    """

    def process_batches(self, first: pa.Table | None, second: pa.Table | None, ctx: BatchContext, /) -> None:
        """Process a micro-batch that has rows of either side for the key group.

        Args:
            first: As the table of `VectorizedFunction.process_batch`; `None` without rows.
            second: The same for the second side.
            ctx: Clocks and outputs; ``ctx.late`` is of the first side's rows, then of the second's.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_batches")


def combines(function: object) -> TypeGuard[VectorizedFunction]:
    """Return whether ``function`` is vectorized and defines ``combine``."""
    return isinstance(function, VectorizedFunction) and type(function).combine is not VectorizedFunction.combine


#: The methods that the engine calls, besides those that take elements, with the parameters of each.
_CALLS = {"on_timer": ("timestamp", "ctx"), "on_batch_end": ("ctx",), "open": ("context",), "close": ()}
_BATCH_CALLS = {"on_watermark": ("watermark", "ctx"), "combine": ("table",), "open": ("context",), "close": ()}
_TIMER_CALLS = {"register_event_time_timer", "register_processing_time_timer", "set_timer"}


class _RowFunction(StreamFunction):
    """Base of the functions over rows, with one input or two."""

    def open(self, context: OpenContext) -> None:
        """Prepare for a key group's first element (on Spark, of each micro-batch). State has no key here."""

    def for_stream(self, stream: Any, output: Any, order: str) -> Function:
        """Return the function that runs over a stream: this one, unless a library overrides it.

        Called once by ``process``, with the `keyed.KeyedStream` and the ``output`` and ``order`` of that call.
        """
        return self  # type: ignore[return-value]

    def on_timer(self, timestamp: int, ctx: OnTimerContext, /) -> Iterable[Any] | None:
        """Act on a timer that fires, and was removed before. Returns as ``process_element``.

        ``timestamp`` is the time for which it was set, milliseconds; ``ctx`` has its key, domain and name.
        """
        return None

    def on_batch_end(self, ctx: Context) -> Iterable[Any] | None:
        """Act at the end of a micro-batch, once per key that had elements in it. Returns as ``process_element``.

        The watermark has advanced and timers have fired. Outputs have no timestamp unless ``ctx.collect`` sets one.
        """
        return None

    def close(self) -> None:
        """Release what ``open`` took, after the last element (on Spark, of each micro-batch) or a failure."""


class KeyedProcessFunction(_RowFunction):
    """A function over a keyed stream, with state and timers per key (Flink's `KeyedProcessFunction`).

    State is declared by class attributes, or obtained in ``open``. A copy of the object serves each key group, on
    Spark a new one in each micro-batch: keep nothing on ``self`` but declared state and what ``open`` can create
    again.

    Attributes:
        known_side_outputs: Names of all its side outputs, so that others are refused; `None` allows any.
        forwarded_fields: Output columns that forward a key column, by the name of that column (equal names are assumed
            to): an operator keyed by them needs no shuffle (Flink's `ForwardedFields`).
        migration: A `StateMigration` of states that earlier classes stored.
    """

    def process_element(self, value: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process an element: a row with attribute access, or the source's own object in the local runtime.

        Returns:
            An iterable of main outputs (write a generator that yields them), or `None`. ``yield tag, value`` with an
                `OutputTag` goes to that side output, as ``ctx.output(tag, value)`` does.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_element")


class KeyedCoProcessFunction(_RowFunction):
    """A function over two connected streams (Flink's `KeyedCoProcessFunction`): see `keyed.Stream.connect`.

    Elements of both sides with one key share its state and timers. The watermark is the lesser one.
    """

    def process_element1(self, value: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process an element of the first stream, as `KeyedProcessFunction.process_element`."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_element1")

    def process_element2(self, value: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process an element of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_element2")


class KeyedBroadcastProcessFunction(_RowFunction):
    """A function over a keyed stream and a broadcast one (Flink's): see `keyed.Stream.broadcast`.

    Every key group gets every broadcast element, before everything else of its micro-batch, and has its own copy of
    the broadcast state; keyed elements and timers only read it.

    Attributes:
        known_side_outputs: As `KeyedProcessFunction.known_side_outputs`.
    """

    def process_element(self, value: Any, ctx: Context, /) -> Iterable[Any] | None:
        """Process a keyed element, as `KeyedProcessFunction.process_element`."""
        raise NotImplementedError(f"{type(self).__name__} does not define process_element")

    def process_broadcast_element(self, value: Any, ctx: BroadcastContext, /) -> Iterable[Any] | None:
        """Process an element of the broadcast stream, in each key group, with the same result in all of them.

        Writes to broadcast state may depend only on the element and on broadcast state: not on keyed state, a clock,
        random numbers or the key group. Outputs are emitted once per key group, as by Flink's tasks.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define process_broadcast_element")


RowFunction = KeyedProcessFunction | KeyedCoProcessFunction | KeyedBroadcastProcessFunction
Function = RowFunction | VectorizedFunction
_BASES = (KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastProcessFunction)


def declared_states(function: Function) -> dict[str, tuple[str, State]]:
    """Return the states declared on the function's class, in their order: state name → (attribute, declaration).

    Raises:
        StateDefinitionError: Two declarations share a name, or one is a class or not for this kind of function.
    """
    attributes: dict[str, State] = {}
    for cls in reversed(type(function).__mro__):
        for attribute, member in vars(cls).items():
            if attribute[:2] == "__":
                continue
            if isinstance(member, State):
                attributes[attribute] = member
            elif isinstance(state := typing.get_origin(member) or member, type) and issubclass(state, State):
                raise StateDefinitionError(
                    f"{cls.__name__}.{attribute} is the class {state.__name__} and declares no state; call it with the "
                    f"type: {attribute} = keyed.{state.__name__}(...)"
                )
            else:
                attributes.pop(attribute, None)
    # Operators that are configured per object (a window operator, say) declare state on the instance.
    attributes.update((a, m) for a, m in vars(function).items() if isinstance(m, State))
    states: dict[str, tuple[str, State]] = {}
    kind: type[State] = TableState if isinstance(function, VectorizedFunction) else KeyedState
    for attribute, state in attributes.items():
        if not isinstance(state, kind):
            raise StateDefinitionError(
                f"{type(function).__name__} declares {state.kind} state {attribute!r}: a VectorizedFunction has "
                "TableState, a function over rows all others"
            )
        if not state.name:
            state.set_name(attribute)
        if state.name in states:
            raise StateDefinitionError(
                f"{type(function).__name__} declares state {state.name!r} twice, as {states[state.name][0]!r} and "
                f"{attribute!r}; state names are unique in a function, so rename one"
            )
        states[state.name] = (attribute, state)
    return states


def element_methods(function: RowFunction) -> tuple[str, ...]:
    """Return the names of the methods that take elements with a key: one for each side of the stream."""
    is_connected = isinstance(function, KeyedCoProcessFunction)
    return ("process_element1", "process_element2") if is_connected else ("process_element",)


def input_methods(function: RowFunction) -> tuple[str, ...]:
    """Return the names of all methods that take elements."""
    takes_broadcast = isinstance(function, KeyedBroadcastProcessFunction)
    return (*element_methods(function), *(["process_broadcast_element"] if takes_broadcast else []))


def takes_two(function: Function) -> bool:
    """Return true if a function reads two connected streams."""
    return isinstance(function, KeyedCoProcessFunction | VectorizedCoFunction)


class Relay(VectorizedFunction):
    """Writes the rows of a stream without a key, as tables."""

    def process_batch(self, table: Any, ctx: Any, /) -> None:
        """Emit the rows."""
        ctx.emit(table)


class RowRelay(KeyedProcessFunction):
    """Writes the rows of a stream without a key, one by one: of elements that are in no table."""

    def process_element(self, value: Any, ctx: Context, /) -> Iterable[Any]:
        """Emit the row."""
        yield value


def check_function(function: Function) -> None:
    """Validate a function before its first row.

    Raises:
        DefinitionError: Its forwarded fields are not names, or its migration does not fit its states.
        StateDefinitionError: Duplicate state names.
        DefinitionError: Its code sets timers, but it does not define ``on_timer``.
    """
    if not isinstance(function, Function):
        hint = "; give an object, not the class" if isinstance(function, type) else ""
        if inspect.isroutine(function):
            hint = "; write a class Name(keyed.KeyedProcessFunction) with def process_element(self, value, ctx)"
        raise StateDefinitionError(
            f"{function!r} is not a KeyedProcessFunction, KeyedCoProcessFunction, KeyedBroadcastProcessFunction or "
            f"VectorizedFunction{hint}"
        )
    states = declared_states(function)
    fields = function.forwarded_fields
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for pair in fields.items() for name in pair):
        raise DefinitionError(
            f"{type(function).__name__}.forwarded_fields={fields!r}: give a column by the name of the key column "
            "that it holds"
        )
    migration = function.migration
    if migration is not None and not isinstance(migration, StateMigration):
        raise DefinitionError(f"{type(function).__name__}.migration={migration!r}: give a keyed.StateMigration(...)")
    if migration is not None and type(function).open in (_RowFunction.open, VectorizedFunction.open):
        migration.check_class(type(function).__name__, states)
    if isinstance(function, VectorizedFunction):
        method = "process_batches" if isinstance(function, VectorizedCoFunction) else "process_batch"
        if getattr(type(function), method) is getattr(VectorizedCoFunction, method):
            raise StateDefinitionError(f"{type(function).__name__} does not define {method}")
        of_two = isinstance(function, VectorizedCoFunction)
        _check_calls(function, {**_BATCH_CALLS, method: ("first", "second", "ctx") if of_two else ("table", "ctx")})
        if takes_two(function) and combines(function):
            raise StateDefinitionError(
                f"{type(function).__name__} defines combine, and a function of two streams has none"
            )
        return
    check_changes(function, dict(states.values()))
    cls = type(function)
    for name in input_methods(function):
        if getattr(cls, name) in (getattr(base, name, None) for base in _BASES):
            near = difflib.get_close_matches(name, _own(cls), n=1, cutoff=0.7)
            hint = f"; it has {near[0]}: rename it" if near else ""
            raise StateDefinitionError(f"{cls.__name__} does not define {name}{hint}")
    _check_calls(function, {**_CALLS, **dict.fromkeys(input_methods(function), ("value", "ctx"))})
    if cls.on_timer is not KeyedProcessFunction.on_timer:
        return
    for base in cls.__mro__:
        for name, member in vars(base).items():
            code = getattr(member, "__code__", None)
            if code is not None and base not in (*_BASES, _RowFunction, object):
                used = names_in(code) & _TIMER_CALLS
                if used:
                    raise no_on_timer(function, f"{name} calls {min(used)}")


def _own(cls: type) -> list[str]:
    """Return the public attributes of a class that the engine does not call."""
    called = {*_CALLS, "process_element", "process_element1", "process_element2", "process_broadcast_element"}
    return [name for name in vars(cls) if name[0] != "_" and name not in called]


def _check_calls(function: Function, calls: Mapping[str, tuple[str, ...]]) -> None:
    """Check that the methods that the engine calls accept its arguments.

    Args:
        function: The function.
        calls: The parameters of the methods by name.

    Raises:
        DefinitionError: One takes other parameters, is a coroutine, or has a misspelt name.
    """
    cls = type(function)
    for name, parameters in calls.items():
        method = getattr(function, name, None)
        own = [each for base in cls.__mro__ if base.__module__.partition(".")[0] != "keyed" for each in vars(base)]
        if name not in own:
            alike = [each for each in own if each.replace("_", "").lower() == name.replace("_", "")]
            if alike:
                raise DefinitionError(
                    f"{cls.__name__}.{alike[0]} would never be called; the method is {name}: rename it"
                )
            continue
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise DefinitionError(
                f"{cls.__name__}.{name} is a coroutine, and functions over streams are not: define it with def; "
                "keyed.AsyncLookup waits for other services"
            )
        try:
            inspect.signature(method).bind(*parameters)  # type: ignore[arg-type]
        except TypeError as error:
            raise DefinitionError(
                f"{cls.__name__}.{name} cannot be called with {', '.join(parameters)} ({error}); define it as "
                f"def {name}({', '.join(('self', *parameters))})"
            ) from error
        except ValueError:
            continue  # it has no signature


def no_on_timer(function: RowFunction, what: str) -> DefinitionError:
    """Return the error for a timer without a handler."""
    return DefinitionError(
        f"{type(function).__name__} sets timers ({what}) but does not define on_timer; define "
        "on_timer(self, timestamp, ctx)"
    )


def names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that a code object and those nested in it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


Order = Literal["event_time", "watermark", "arrival"]
ORDERS: tuple[Order, ...] = get_args(Order)
StoreKind = Literal["memory", "rocksdb", "lmdb"]
#: A kind of local store, or a function of a folder that opens one of another kind there, a `LocalStore`.
Store = StoreKind | Callable[[Path], Any]
STORES: tuple[StoreKind, ...] = get_args(StoreKind)


def check_parallelism(parallelism: int) -> None:
    """Check a number of key groups.

    Raises:
        DefinitionError: It is out of range.
    """
    if type(parallelism) is not int or not 1 <= parallelism <= 32768:
        raise DefinitionError(f"parallelism={parallelism!r} must be an int from 1 to 32768")


def check_order(order: str) -> None:
    """Check the order of rows within a batch.

    Raises:
        DefinitionError: The order is unknown.
    """
    if order not in ORDERS:
        raise DefinitionError(f"order={order!r} must be {', '.join(map(repr, ORDERS[:-1]))} or {ORDERS[-1]!r}")


def check_store(store: Any, parameter: str = "store") -> None:
    """Check the kind of a local store, or the function that opens one.

    Raises:
        DefinitionError: It is unknown, or a function that workers would not find by its name.
    """
    if isinstance(store, str) and store in STORES:
        return
    if not callable(store):
        raise DefinitionError(
            f"{parameter}={store!r} must be {', '.join(map(repr, STORES))}, or a function of a folder that opens a "
            "LocalStore"
        )
    name = getattr(store, "__qualname__", "")
    if not name or "<" in name:
        raise DefinitionError(
            f"{parameter}={store!r} must have a name, by which its stores are found again; define it as a function or "
            "class of a module"
        )


def store_name(store: Store) -> str:
    """Return the name of a kind of local store."""
    return store if isinstance(store, str) else f"{store.__module__}.{store.__qualname__}"


@attrs.frozen(eq=False)
class OperatorSpec:
    """The configuration that the key groups of one operator share; shipped to the workers.

    Attributes:
        name: Name of the operator, unique in its query, matching ``[A-Za-z0-9_-]{1,128}``.
        function: The user's function, not opened.
        event_time: Rows have timestamps.
        delay_ms: Delay of the watermark behind the highest timestamp, the greatest of several sources; ``None`` if
            watermarks come only from upstream operators or are set by hand.
        ingestion_delay_ms: The same delay, in every operator of the chain, if rows have the time of their batch;
            otherwise ``None``.
        order: Order of rows.
        parallelism: Number of key groups.
        keys: Key columns, of the first side if there are two; empty if the key is a function of the element.
        keys2: Those of the second side.
        output: Columns of the main output, where they are declared.
        output_timestamps: A later stage needs the timestamps of the main output.
        changelog: The changelog for committed changes.
        strategies: Watermark strategy of each input; ``None`` for an output of another operator, and for a
            broadcast stream without timestamps.
        broadcast: Descriptors of the broadcast states.
        global_tables: Key columns of the broadcast states that are global tables, by name: either all are, or none is.
    """

    name: str
    function: Function
    event_time: bool
    delay_ms: int | None
    order: Order
    parallelism: int
    keys: tuple[str, ...] = ()
    output: Schema | None = None
    output_timestamps: bool = True
    changelog: Changelog | None = None
    strategies: tuple[WatermarkStrategy | None, ...] = ()
    ingestion_delay_ms: int | None = None
    keys2: tuple[str, ...] = ()
    broadcast: tuple[MapState[Any, Any], ...] = ()
    global_tables: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)

    @property
    def ingests(self) -> bool:
        """True if the operator assigns timestamps to rows: the time of the batch."""
        return self.ingestion_delay_ms is not None and self.delay_ms is not None

    @property
    def by_time(self) -> bool:
        """True if the rows of a batch run by timestamp."""
        return self.order != "arrival"

    def time_reached(self, processing_time: int) -> int | None:
        """Return the event time at a processing time; ``None`` if rows determine it."""
        return None if self.ingestion_delay_ms is None else processing_time - self.ingestion_delay_ms - 1


_ITERABLES = (Collection, Generator, Iterable, Iterator, Sequence, list, set)
#: A method whose annotation is that it yields nothing, and one without such an annotation.
_NOTHING, _UNANNOTATED = object(), object()


def inferred_output(function: Function) -> Schema | None:
    """Return the columns that the annotations of ``process_element`` and ``on_timer`` name, if they name any.

    The annotation has to name an attrs class, a dataclass or a named tuple. Bare tuples, ``Any`` and unresolved names
    are ignored.

    Raises:
        OutputDefinitionError: The methods name different types.
    """
    if isinstance(function, VectorizedFunction):
        return None
    cls = type(function)
    yielded = _yielded_by(function)
    schemas = {name: _schema(hint) for name, hint in yielded.items() if hint is not _NOTHING}
    if not schemas or None in schemas.values():
        return None
    first = next(iter(schemas))
    for name, schema in schemas.items():
        if schema != schemas[first]:
            raise OutputDefinitionError(
                f"{cls.__name__}: {first} is annotated to yield {_name(yielded[first])} and {name} "
                f"{_name(yielded[name])}; an output has one type, so let them agree, or give output=... for both"
            )
    return schemas[first]


def inferred_result(function: Any, *, many: bool) -> Schema | None:
    """Return the columns that the annotation of a function's result names, if it names any.

    Args:
        function: A function, or an object with ``__call__``.
        many: True if the function returns or yields any number of rows.
    """
    method = function if hasattr(function, "__annotations__") else type(function).__call__
    hint = _yielded(method) if many else _return_type(method)
    return _schema(hint)


def unannotated(function: Function) -> str:
    """Return the remedy for an output without a type if only some of the methods are annotated."""
    if isinstance(function, VectorizedFunction):
        return ""
    yielded = _yielded_by(function)
    missing = [name for name, hint in yielded.items() if hint is _UNANNOTATED]
    if not missing or len(missing) == len(yielded):
        return ""
    name = type(function).__name__
    return f"; {' and '.join(f'{name}.{each}' for each in missing)} has no annotation of its outputs: -> Iterator[...]"


def _yielded_by(function: Any) -> dict[str, Any]:
    cls = type(function)
    methods = [*input_methods(function), *(["on_timer"] if cls.on_timer is not KeyedProcessFunction.on_timer else [])]
    return {name: _yielded(getattr(cls, name)) for name in methods}


def _yielded(method: Any) -> Any:
    """Return the type that a method yields by its annotation."""
    resolved = _return_type(method)
    if resolved is _UNANNOTATED or resolved is _NOTHING:
        return resolved
    arguments = typing.get_args(resolved)
    return arguments[0] if typing.get_origin(resolved) in _ITERABLES and arguments else _UNANNOTATED


def _return_type(method: Any) -> Any:
    """Return the type that a method returns by its annotation."""
    hint = getattr(method, "__annotations__", {}).get("return", _UNANNOTATED)
    if hint is _UNANNOTATED:
        return _UNANNOTATED
    holder = types.SimpleNamespace(__annotations__={"return": hint})
    try:
        resolved = typing.get_type_hints(holder, globalns=getattr(method, "__globals__", {}))["return"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return _UNANNOTATED
    if typing.get_origin(resolved) in (typing.Union, types.UnionType):
        rest = [part for part in typing.get_args(resolved) if part is not type(None)]
        resolved = rest[0] if len(rest) == 1 else Any
    return _NOTHING if resolved is type(None) else resolved


def _schema(yielded: Any) -> Schema | None:
    if not isinstance(yielded, type):
        return None
    try:
        return schema_of(yielded)
    except OutputDefinitionError:
        return None


def _name(yielded: Any) -> str:
    return getattr(yielded, "__name__", str(yielded))
