"""Windowed streams, returned by ``stream.key_by(...).window(assigner)``, which build the window operator."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack, overload

import attrs

from keyed import AggregateFunction, KeyedStream, Output, OutputTag
from keyed.errors import DefinitionError
from keyed.extending import OperatorOptions, Units, duration_of, schema_of, shows_options, shows_units
from keyed.job.execution_path import Path, check_path, choose_path
from keyed.windows.aggregates import Reduce
from keyed.windows.definition import AnyAssigner, ProcessWindowFunction, define, output_schema, row_timestamps
from keyed.windows.evictors import Evictor
from keyed.windows.paths import row_reason
from keyed.windows.triggers import Trigger
from keyed.windows.window import Duration
from keyed.windows.window_operator import WindowBatchOperator, WindowOperator

Order = Literal["event_time", "watermark", "arrival"]


class _NoOperation(DefinitionError, AttributeError):
    """An operation that a windowed stream does not have."""


class WindowOptions(OperatorOptions, total=False):
    """Keywords of the methods that build a window operator."""

    output: Any
    name: str | None
    order: Order


_NO_INITIAL_STATE = (
    "windows take no initial_state, because the form of their state and timers is internal; use restore_from= the "
    "changelog of a query, or read the elements of open windows again"
)
_OPTIONS = ("process", *WindowOptions.__annotations__)
_shows = shows_options(WindowOptions, order="event_time", store="memory")


@attrs.frozen(eq=False, repr=False)
class WindowedStream:
    """A keyed stream cut into windows, the result of ``stream.key_by(...).window(assigner)``.

    The first methods return a changed description; ``aggregate``, ``reduce`` and ``process`` return the output.

    Attributes:
        stream: The keyed stream.
        assigner: Its windows.
    """

    stream: KeyedStream
    assigner: AnyAssigner
    _trigger: Trigger | None = None
    _evictor: Evictor | None = None
    _lateness_ms: int = 0
    _late_tag: OutputTag | str | None = None
    _idle_ms: int | None = None
    _element_type: Any = object
    _path: Path = "auto"

    def __repr__(self) -> str:
        options = (
            f", {field.name.lstrip('_')}={getattr(self, field.name)!r}"
            for field in attrs.fields(type(self))[2:]
            if getattr(self, field.name) != field.default
        )
        return f"WindowedStream({self.stream!r}, {self.assigner!r}{''.join(options)})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name.startswith("_"):
                raise AttributeError(what)
            if name in ("count", "sum", "min", "max", "mean", "avg"):
                call = {"count": "Count()", "mean": "Mean('column')", "avg": "Mean('column')"}.get(name)
                remedy = f".aggregate({name}={call or name.capitalize() + chr(40) + repr('column') + chr(41)})"
                raise _NoOperation(f"{what}; give an aggregate of the package windows: {remedy}")
            raise _NoOperation(
                f"{what}; define the result of a window first: .aggregate(...), .reduce(...) or .process(...)"
            )

    def trigger(self, trigger: Trigger) -> WindowedStream:
        """Fire by ``trigger`` instead of the assigner's."""
        _no_class("trigger", trigger)
        return attrs.evolve(self, trigger=trigger)

    def evictor(self, evictor: Evictor) -> WindowedStream:
        """Remove elements with ``evictor`` when a window fires; the window then keeps all elements."""
        _no_class("evictor", evictor)
        return attrs.evolve(self, evictor=evictor)

    @shows_units
    def allowed_lateness(self, lateness: Duration | None = None, **units: Unpack[Units]) -> WindowedStream:
        """Keep windows for ``lateness`` (not negative) after their end, and fire again for each element in that time.

        Raises:
            DefinitionError: The duration is negative, or given twice.
        """
        return attrs.evolve(self, lateness_ms=duration_of(lateness, "allowed_lateness", **units))

    def side_output_late_data(self, tag: OutputTag | str) -> WindowedStream:
        """Emit elements that are late for all their windows to the side output ``tag``; by default they are dropped."""
        return attrs.evolve(self, late_tag=tag)

    @shows_units
    def close_when_idle(self, timeout: Duration | None = None, **units: Unpack[Units]) -> WindowedStream:
        """Close a window, as at its end, without elements for ``timeout`` (at least 1 ms) of processing time.

        For silent streams, whose watermark does not move. A later element opens the window again.

        Raises:
            DefinitionError: The duration is below 1 ms, or given twice.
        """
        return attrs.evolve(self, idle_ms=duration_of(timeout, "timeout", least=1, **units))

    def element_type(self, type: Any) -> WindowedStream:
        """Declare the type for the codec of kept elements, neither rows nor plain data."""
        return attrs.evolve(self, element_type=type)

    def path(self, path: Path) -> WindowedStream:
        """Choose whole columns (``"vectorized"``), rows (``"row"``), or columns if possible (``"auto"``).

        A checkpoint keeps its path and refuses another (`keyed.errors.StateSchemaChanged`).

        Raises:
            DefinitionError: ``path`` is none of the three.
        """
        check_path(path)
        return attrs.evolve(self, path=path)

    @_shows
    def reduce(
        self,
        reduce: Callable[[Any, Any], Any],
        process: ProcessWindowFunction | None = None,
        *,
        type: Any = None,
        **options: Unpack[WindowOptions],
    ) -> Output:
        """Combine the elements of each window into one of the same type.

        Args:
            reduce: ``(current, element) -> new``, associative.
            process: Gets the reduced element; without it that is the output.
            type: Type for the codec, if elements are neither rows nor plain data.
            options: ``output``, ``name``, ``order`` and others of `KeyedStream.process`.

        Raises:
            DefinitionError: Parts do not fit each other.
        """
        return self._build(Reduce(reduce, type), process, **options)

    @overload
    def aggregate(
        self,
        aggregate: AggregateFunction[Any, Any, Any] | Mapping[str, AggregateFunction[Any, Any, Any]],
        /,
        process: ProcessWindowFunction | None = None,
        **options: Unpack[WindowOptions],
    ) -> Output: ...
    @overload
    def aggregate(self, /, **columns: AggregateFunction[Any, Any, Any]) -> Output: ...
    def aggregate(self, aggregate: Any = None, process: Any = None, /, **named: Any) -> Output:
        """Aggregate the elements of each window.

        ``aggregate(Sum("amount"))`` emits the sum; ``aggregate(orders=Count(), revenue=Sum("amount"))`` rows of the
        key's columns, ``window_start``, ``window_end``, ``orders`` and ``revenue``. Types follow from the input's
        columns; the bounds are milliseconds, or timestamps if ``output`` declares them so. Options stand beside a
        dict: ``aggregate({"orders": Count()}, output=..., name=...)``. ``process`` gets the result (of named
        aggregates, a row) and yields the outputs.

        Raises:
            DefinitionError: Both or neither form is used, or parts do not fit each other.
            OutputDefinitionError: On Spark, the columns cannot be derived and are not given.
        """
        if "initial_state" in named and not hasattr(named["initial_state"], "create_accumulator"):
            raise DefinitionError(_NO_INITIAL_STATE)
        if aggregate is not None:
            wrong = [name for name in named if name not in _OPTIONS]
            if wrong:
                raise DefinitionError(
                    "aggregate takes one aggregate, or aggregates by name. The options beside a dict are "
                    f"{', '.join(_OPTIONS)}: {wrong[0]!r} is not an option; columns go into the dict: "
                    f"aggregate({{'orders': Count()}}, name='orders')"
                )
            if process is not None and "process" in named:
                raise DefinitionError("aggregate has two functions, its second argument and process=; give one of them")
            return self._build(aggregate, named.pop("process", process), **named)
        if not named or process is not None:
            raise DefinitionError(
                "aggregate takes one aggregate, or aggregates by name: aggregate(orders=Count(), revenue=Sum('amount'))"
            )
        for name, column in named.items():
            if name in _OPTIONS and not hasattr(column, "create_accumulator"):
                raise DefinitionError(
                    f"aggregate: {name}={column!r} would be a column, and it is not an aggregate; options go beside a "
                    f"dict: aggregate({{'orders': Count()}}, {name}=...)"
                )
        return self._build(named, None)

    @_shows
    def process(self, process: ProcessWindowFunction, **options: Unpack[WindowOptions]) -> Output:
        """Call a function with all elements of a window, which the window keeps. Options: see ``reduce``."""
        return self._build(None, process, **options)

    def _build(
        self,
        aggregate: Any,
        process: ProcessWindowFunction | None,
        *,
        output: Any = None,
        name: str | None = None,
        order: Order = "event_time",
        **options: Any,
    ) -> Output:
        """Return the output of the window operator over the stream."""
        if "initial_state" in options:
            raise DefinitionError(_NO_INITIAL_STATE)
        stream = self.stream
        definition = define(
            assigner=self.assigner,
            trigger=self._trigger,
            evictor=self._evictor,
            aggregate=aggregate,
            process=process,
            allowed_lateness_ms=self._lateness_ms,
            late_tag=self._late_tag,
            idle_timeout_ms=self._idle_ms,
            key_names=stream.key_columns or ("key",),
            element_type=self._element_type,
            columns=stream.columns,
            delay_ms=stream.watermark_delay_ms,
        )
        reason = row_reason(definition, stream.key_columns, order)
        reason = choose_path(self._path, reason, repr(self.assigner))
        schema = output_schema(definition, strict=stream.on_spark) if output is None else schema_of(output)
        run: type[WindowOperator | WindowBatchOperator] = WindowOperator
        if schema is not None and definition.names is not None and process is None:
            plain = stream.on_spark and schema.names == definition.row_names
            definition = attrs.evolve(definition, timestamps=row_timestamps(schema), plain_rows=plain)
            run = WindowOperator if reason is not None else WindowBatchOperator
        operator = run(attrs.evolve(definition, row_reason=reason))
        # The same name on both paths, so that a checkpoint identifies the operator.
        return stream.process(operator, schema, name=name or WindowOperator.__name__, order=order, **options)


def _no_class(parameter: str, value: object) -> None:
    if isinstance(value, type):
        call = f"{value.__name__}.of(...)" if hasattr(value, "of") else f"{value.__name__}()"
        raise DefinitionError(f"{parameter}({value.__name__}): give an object and not the class: {call}")
