"""A window operator as one table: a row for each key and window, with the aggregates' results, on every path.

The stored form of a path is described as data beside its state. This *description* is exported with the state to
changelogs and checkpoints (`keyed.extending.inner_state`), and `WindowTable` reads the state by it:

===============  =====================================================================================================
``layout``       stored form
===============  =====================================================================================================
``slices``       per key one list: start of a slice, accumulators, start of the next slice, ...
``sessions``     per key one list: start, end, time of its timer, accumulators, start of the next session, ...
``windows``      under each window as namespace its accumulators
``elements``     under each window as namespace its elements
``slice_rows``   rows of a table: key, start of a slice, parts of accumulators
``session_rows`` rows of a table: key, start, end, parts of accumulators
===============  =====================================================================================================

Results come from the built-in aggregates, which the description names. An aggregate of another class is kept with its
result (`keyed.windows.cells.Published`), because a description is data and runs no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

from keyed import MAX_TIMESTAMP
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.extending import snapshot
from keyed.windows import aggregates, collecting, sketches
from keyed.windows.aggregates import Aggregate, AnyAggregate, ColumnAggregate
from keyed.windows.cells import is_own, stored_aggregate
from keyed.windows.definition import Definition, HoppingWindows, hopping_slice, named_aggregates

#: The aggregates that a description names.
_BUILT_IN: dict[str, type[ColumnAggregate]] = {
    cls.__name__: cls
    for module in (aggregates, collecting, sketches)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, ColumnAggregate) and cls is not ColumnAggregate
}
#: The parameters of aggregates other than the column.
_OPTIONS = ("k", "by", "by_time", "sample", "precision", "capacity", "type")
_ELEMENTS = "elements"
#: Stands in descriptions for the names of aggregates of one's own.
_OWN = "own"
_TIMES = ("window_start", "window_end")

Clocks = tuple[int, int]
"""The watermark and the processing time of a batch."""
Stored = tuple[Any, Any, bytes]
"""A stored value of a key: its namespace, the entry of the state, and the value."""


def describe(definition: Definition, layout: str, **more: Any) -> dict[str, Any]:
    """Return the description of an operator's table.

    Args:
        definition: The operator.
        layout: The stored form: see the module.
        more: Further parameters of the layout.
    """
    assigner, known = definition.assigner, definition.known_columns
    described: dict[str, Any] = {
        "view": "windows",
        "layout": layout,
        "bounds": [f"window_{field}" for field in getattr(assigner.window_type, "_fields", ("bounds",))],
        "event_time": assigner.event_time,
        "keys": [known.get(name) for name in definition.key_names],
        "results": [
            [name, _type_of(aggregate, known), _described(aggregate)] for name, aggregate in _named(definition).items()
        ]
        or [[_ELEMENTS, None, None]],
        **more,
    }
    if isinstance(assigner, HoppingWindows) and type(assigner).assign_windows is HoppingWindows.assign_windows:
        described |= {
            "size": assigner.size_ms,
            "slide": assigner.slide_ms,
            "offset": assigner.offset_ms,
            "step": hopping_slice(assigner),
            "lateness": definition.lateness_ms,
        }
    return described


def _named(definition: Definition) -> dict[str, AnyAggregate]:
    """Return the aggregates by column; a single unnamed aggregate has the column ``result``."""
    return definition.named or dict(zip(("result",), definition.aggregates, strict=False))


def _type_of(aggregate: AnyAggregate, columns: Mapping[str, str]) -> str | None:
    try:
        return aggregate.output_type(columns)
    except OutputDefinitionError:
        return None


def _described(aggregate: AnyAggregate) -> dict[str, Any]:
    """Return an aggregate as data; without a name its accumulator is its result."""
    name = type(aggregate).__name__
    if _BUILT_IN.get(name) is not type(aggregate):
        return {"name": _OWN if is_own(aggregate) else ""}
    assert isinstance(aggregate, ColumnAggregate)
    options = {option: getattr(aggregate, option) for option in _OPTIONS if hasattr(aggregate, option)}
    by = options.get("by")
    if "by" in options:
        # Merging depends only on whether it is the value itself.
        same = by is aggregate.column or by == aggregate.column
        options["by"] = by if isinstance(by, str) else None if same else "by"
    options = {option: value for option, value in options.items() if value is not None}
    column = aggregate.column
    return {"name": name, "options": options} | ({} if callable(column) else {"column": column})


class _OwnResult(AnyAggregate):
    """An aggregate whose class the reader does not have, with a result beside its accumulator."""

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[1]


def _aggregate(described: Any) -> AnyAggregate | None:
    """Return the described aggregate; ``None`` if there is no description."""
    cls = _BUILT_IN.get(described["name"]) if described else None
    if cls is None:
        return None if not described else _OwnResult() if described["name"] == _OWN else Aggregate()
    options = dict(described["options"])
    if issubclass(cls, collecting.ArgMax | collecting.TopK):
        options.setdefault("by", described.get("column"))
    # Results do not need the function of the element that replaces a column.
    return cls(column=described.get("column"), **options)


class WindowTable:
    """Builds the rows of the windows of a key from its stored state.

    Args:
        described: The description.
        decode: Decodes a stored value.
        encode: Encodes a list of plain data; `decode_list` is its inverse.
        decode_list: Decodes such a list.
        function: The operator, its aggregates by column, or its only aggregate, if the reader has them.

    Attributes:
        bounds: Names of the columns of a window.
        are_times: For each of these columns, whether it is a time.
        columns: Name and column type of each result; ``None`` if that is not known.
        key_types: Column types of the key, likewise.
        is_apart: True if each stored value has rows of its own.
    """

    def __init__(
        self,
        described: Mapping[str, Any],
        decode: Callable[[bytes], Any],
        encode: Callable[[Any], bytes],
        decode_list: Callable[[bytes], Any],
        function: Any = None,
    ) -> None:
        self._layout: str = described["layout"]
        self._decode, self._encode, self._decode_list = decode, encode, decode_list
        self.bounds: list[str] = described["bounds"]
        self.are_times = [bound in _TIMES for bound in self.bounds]
        self.columns: list[tuple[str, str | None]] = [(name, type_) for name, type_, _ in described["results"]]
        self.key_types: list[str | None] = described["keys"]
        self._names = [name for name, _ in self.columns]
        self._width = len(self._names)
        self._is_single: bool = described.get("single", False)
        self._is_timed: bool = described.get("timed", False)
        self._event_time: bool = described["event_time"]
        self._size: int | None = described.get("size")
        self._slide: int = described.get("slide", 0)
        self._offset: int = described.get("offset", 0)
        self._step: int = described.get("step", 0)
        self._lateness: int = described.get("lateness", 0)
        self._is_sliced = self._layout in ("slices", "slice_rows")
        self._hops = self._is_sliced and self._step < (self._size or 0)
        self.is_apart = not self._hops and self._layout != "elements"
        self._aggregates = _aggregates(described, self._names, function)
        self._reads = all(aggregate and "column" in aggregate for _, _, aggregate in described["results"]) or function

    # Rows -------------------------------------------------------------------------------------------------------------

    def rows(self, stored: Iterable[Stored], clocks: Clocks) -> dict[tuple[Any, ...], bytes]:
        """Return the values of a key's windows.

        Args:
            stored: The stored values of the key, in their order.
            clocks: The clocks after the last batch.
        """
        match self._layout:
            case "windows":
                return {namespace: value for namespace, _, value in stored}
            case "elements":
                held: dict[tuple[Any, ...], list[bytes]] = {}
                for namespace, _, value in stored:
                    held.setdefault(namespace, []).append(value)
                return {window: self._encode(values) for window, values in held.items()}
            case "sessions":
                return {(start, end): self._encode(cells) for (start, end, _), cells in self._packed(stored, 3)}
            case "session_rows":
                return {
                    (sub[0], row["window.end"]): self._encode(self._cells(row))
                    for _, sub, value in stored
                    for row in (self._decode(value),)
                }
            case "slices":
                slices = [(start, cells) for (start,), cells in self._packed(stored, 1)]
            case _:
                slices = [(sub[0], self._cells(self._decode(value))) for _, sub, value in stored]
        return {window: self._encode(cells) for window, cells in self._windows(slices, clocks)}

    def _packed(self, stored: Iterable[Stored], bounds: int) -> Iterator[tuple[list[int], list[Any]]]:
        """Yield the bounds and accumulators that one list holds."""
        stride = bounds + self._width
        for _, _, value in stored:
            items = self._decode(value)
            for at in range(0, len(items), stride):
                yield items[at : at + bounds], items[at + bounds : at + stride]

    def _windows(
        self, slices: list[tuple[int, list[Any]]], clocks: Clocks
    ) -> Iterator[tuple[tuple[int, int], list[Any]]]:
        """Yield the windows of slices that the clock has not removed."""
        size, slide = self._size or 0, self._slide
        held: dict[int, list[list[Any]]] = {}
        for start, cells in sorted(slices, key=itemgetter(0)):
            last = start - (start - self._offset) % slide if self._hops else start
            earliest = start + self._step - size
            first = earliest + (self._offset - earliest) % slide if self._hops else start
            for window in range(first, last + 1, slide):
                held.setdefault(window, []).append(cells)
        for window in sorted(held):
            removed = self.removed_at((window, window + size))
            if removed is None or removed > clocks[not self._event_time]:
                yield (window, window + size), self._merged(held[window])

    def _merged(self, slices: list[list[Any]]) -> list[Any]:
        if len(slices) == 1:
            return slices[0]
        merged: list[Any] = snapshot(slices[0])
        for cells in slices[1:]:
            for at, aggregate in enumerate(self._aggregates):
                if aggregate is None or isinstance(aggregate, _OwnResult):
                    raise DefinitionError(
                        f"the column {self._names[at]!r} is an aggregate of your own class, and only that class can "
                        "merge its slices: give the tables the operator, types=output.operators[name]"
                    )
                merged[at] = aggregate.merge(merged[at], cells[at])
        return merged

    def _cells(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the accumulators whose parts are in a row of a table."""
        cells = []
        for name, aggregate in zip(self._names, self._aggregates, strict=True):
            assert isinstance(aggregate, ColumnAggregate), f"{aggregate!r} has no columns"
            cells.append(aggregate._of_parts(partial(_part, row, name)))  # noqa: SLF001 - its package
        return cells

    def results(self, value: bytes) -> dict[str, Any]:
        """Return the results by column from a row's value.

        Raises:
            DefinitionError: The row holds elements, because of an evictor, and the aggregates use a function of the
                element that the reader does not have.
        """
        if self._layout == "elements":
            elements = [self._decode(element) for element in self._decode_list(value)]
            if self._names == [_ELEMENTS]:
                return {_ELEMENTS: [element[0] for element in elements] if self._is_timed else elements}
            cells = self._added(elements)
        elif self._layout == "windows":
            cells = self._decode(value)
            cells = [cells] if self._is_single else cells
        else:
            cells = self._decode_list(value)
        return {
            name: cell if aggregate is None else aggregate.get_result(cell)
            for name, aggregate, cell in zip(self._names, self._aggregates, cells, strict=True)
        }

    def _added(self, elements: list[Any]) -> list[Any]:
        """Return the accumulators of elements with their timestamps."""
        if not self._reads:
            raise DefinitionError(
                f"the columns {', '.join(self._names)} are aggregates of a function of the element, which is not "
                "stored: give the tables the operator, types=output.operators[name]"
            )
        cells = []
        for aggregate in self._aggregates:
            assert aggregate is not None
            cell = aggregate.create_accumulator()
            for element, timestamp in elements:
                cell = aggregate.add_at(element, timestamp, cell) if aggregate.timed else aggregate.add(element, cell)
            cells.append(cell)
        return cells

    # Places and times -------------------------------------------------------------------------------------------------

    def window_of(self, entry: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the window of a tuple, with its end added if windows have one size."""
        return (entry[0], entry[0] + self._size) if self._size is not None and len(entry) == 1 else entry

    def places(self, window: tuple[Any, ...]) -> list[tuple[Any, Any]] | None:
        """Return the namespaces and entries that may hold a window; ``None`` if they are not known."""
        match self._layout:
            case "slices" | "sessions":
                return [(None, None)]
            case "slice_rows":
                return [(None, (start,)) for start in range(window[0], window[0] + (self._size or 0), self._step)]
            case "session_rows":
                return [(None, (window[0],))]
            case "windows":
                return [(window, None)] if len(window) == len(self.bounds) else None
        return None

    def range_of(self, first: int, end: int) -> tuple[bool, int, int] | None:
        """Return the range of starts of namespaces (true) or entries (false) that hold the windows of a range.

        ``None`` if all of a key has to be read.
        """
        match self._layout:
            case "slice_rows":
                return False, first, end + ((self._size or 0) - self._step if self._hops else 0)
            case "session_rows":
                return False, first, end
            case "windows" | "elements" if self.bounds[:1] == [_TIMES[0]]:
                return True, first, end
        return None

    def removed_at(self, window: tuple[int, ...]) -> int | None:
        """Return the time at which the clock removes a window, if the stored state alone does not show it."""
        if not self._is_sliced:
            return None
        return min(window[0] + (self._size or 0) - 1 + self._lateness, MAX_TIMESTAMP)

    def clock_of(self, clocks: Clocks) -> int:
        """Return the clock of the windows."""
        return clocks[not self._event_time]

    def removes(self, before: Clocks, after: Clocks) -> bool:
        """Return true if windows may be removed between two times without a change of the stored state."""
        if not self._hops:
            return False
        last = self._offset + (self._size or 0) - 1 + self._lateness
        counts = [(self.clock_of(clocks) - last) // self._slide for clocks in (before, after)]
        return counts[0] < counts[1]


def _aggregates(described: Mapping[str, Any], names: list[str], function: Any) -> list[AnyAggregate | None]:
    """Return the aggregates: those that the reader gives, otherwise the described ones.

    Raises:
        DefinitionError: The given aggregates are not those of the table.
    """
    aggregates = [_aggregate(aggregate) for _, _, aggregate in described["results"]]
    if function is None:
        return aggregates
    definition = getattr(function, "definition", None)
    if isinstance(definition, Definition):
        definitions = _named(definition)
    else:
        definitions = named_aggregates(function if isinstance(function, Mapping) else {names[0]: function})
    unknown = [name for name in definitions if name not in names]
    if unknown:
        raise DefinitionError(f"types: there is no aggregate {unknown[0]!r}; the columns are: {', '.join(names)}")
    return [
        stored_aggregate(definitions[name]) if name in definitions else aggregate
        for name, aggregate in zip(names, aggregates, strict=True)
    ]


def _part(row: Mapping[str, Any], name: str, part: str) -> Any:
    return row.get(f"{name}.{part}")
