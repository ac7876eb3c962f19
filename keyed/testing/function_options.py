"""Options of a function under test, the operator that they describe, and rows of its input and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict

from keyed.changelog.model import Changelog
from keyed.engine.batch import BatchResult, Emitted, EmittedTables
from keyed.errors import DefinitionError
from keyed.job.context import OutputTag, check_descriptors
from keyed.job.functions import (
    Function,
    KeyedBroadcastProcessFunction,
    OperatorSpec,
    Order,
    Store,
    check_function,
    check_parallelism,
    takes_two,
)
from keyed.job.global_tables import GlobalTable
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy
from keyed.runtimes.local.local_rows import element_of, key_getter
from keyed.vectorized import VectorizedFunction


class Record(NamedTuple):
    """An output, or a row of the input, with its timestamp.

    Attributes:
        value: The emitted value, or the input.
        timestamp: Of an output, that of the element, of the event-time timer or of ``ctx.collect``, else ``None``.
    """

    value: Any
    timestamp: int | None

    @property
    def input(self) -> int:
        """The side of connected streams of the row: 1, and 2 for a `SecondRecord`."""
        return 1


class SecondRecord(Record):
    """A row of the second side of connected streams."""

    __slots__ = ()

    @property
    def input(self) -> int:
        """The side of the row: 2."""
        return 2


class PendingOutputs:
    """Outputs by tag; the main output has the tag ``None``.

    Attributes:
        side: The names of the side outputs that have had rows.
    """

    def __init__(self) -> None:
        self.side: set[str] = set()
        self._emitted: dict[str | None, list[Emitted | EmittedTables]] = {}

    def add(self, result: BatchResult) -> None:
        """Add the outputs of a key group in a micro-batch."""
        self.side |= result.side.keys()
        for tag, emitted in [(None, result.main), *result.side.items()]:
            self._emitted.setdefault(tag, []).append(emitted)

    def pending(self) -> dict[str | None, list[Record]]:
        """Return the outputs that were not taken, the main output first."""
        tags = sorted(self._emitted, key=lambda tag: tag or "")
        return {tag: records for tag in tags if (records := self._records(tag))}

    def take(self, tag: str | None) -> list[Record]:
        """Return and remove an output as rows."""
        records = self._records(tag)
        self._emitted.pop(tag, None)
        return records

    def take_tables(self, tag: str | None) -> list[Any]:
        """Return and remove an output as the tables that were emitted."""
        emitted = self._emitted.pop(tag, [])
        return [table for each in emitted if isinstance(each, EmittedTables) for table in each.tables]

    def _records(self, tag: str | None) -> list[Record]:
        emitted = self._emitted.get(tag, ())
        return [record for each in emitted for record in map(Record, each.values, each.timestamps())]

    def side_name(self, tag: OutputTag | str) -> str:
        """Return the name of a side output.

        Raises:
            DefinitionError: An unknown name, while other side outputs have rows; an `OutputTag` may be empty.
        """
        name = tag.name if isinstance(tag, OutputTag) else tag
        if tag == name and self.side and name not in self.side:
            others = ", ".join(map(repr, sorted(self.side)))
            raise DefinitionError(
                f"side output {name!r} has no rows, only {others}; give the OutputTag itself to take an output that "
                "may be empty"
            )
        return name


#: Name of the function's operator.
OPERATOR = "function"

Key = Callable[[Any], Any] | str | Sequence[str] | None


class FunctionOptions(TypedDict, total=False):
    """Keywords that the harness, the properties and replay share, as in `KeyedTestHarness`."""

    key: Key
    key2: Key
    broadcast: Sequence[MapState[Any, Any]]
    watermark: WatermarkStrategy | timedelta | None
    order: Order


class HarnessOptions(FunctionOptions, total=False):
    """Further keywords of `KeyedTestHarness`."""

    store: Store
    parallelism: int
    ingestion_time: bool


def operator_of(
    function: Function,
    *,
    key: Key = None,
    key2: Key = None,
    parallelism: int = 1,
    changelog: Changelog | None = None,
    watermark: WatermarkStrategy | None = None,
    broadcast: Sequence[MapState[Any, Any]] = (),
    ingestion_time: bool = False,
    global_tables: Sequence[GlobalTable] = (),
    order: Order = "event_time",
) -> OperatorSpec:
    """Return a function with its options as an operator. The options are those of `keyed.testing.KeyedTestHarness`.

    Raises:
        DefinitionError: The function or a parameter breaks a rule.
    """
    check_function(function)
    check_parallelism(parallelism)
    delay = 0 if ingestion_time else None
    delay = delay if watermark is None else watermark.delay_ms
    if isinstance(function, KeyedBroadcastProcessFunction):
        check_descriptors(tuple(broadcast))
    elif broadcast:
        raise DefinitionError(f"broadcast={broadcast!r}: {type(function).__name__} takes no broadcast elements")
    return OperatorSpec(
        OPERATOR,
        function,
        True,
        delay,
        # The harness sorts the rows of a batch itself.
        "watermark" if order == "watermark" else "arrival",
        parallelism,
        key_columns(function, key),
        changelog=changelog,
        strategies=(watermark, watermark) if watermark is not None and has_sides(function) else (),
        keys2=key_columns(function, key if key2 is None else key2),
        broadcast=(*broadcast, *(table.state for table in global_tables)),
        global_tables={table.state.name: table.key for table in global_tables},
        ingestion_delay_ms=delay if ingestion_time else None,
    )


def has_sides(function: Function) -> bool:
    """Return true if a function has two watermarks."""
    return takes_two(function) or isinstance(function, KeyedBroadcastProcessFunction)


def key_columns(function: Function, key: Any) -> tuple[str, ...]:
    """Return the key columns; empty if the key is a function of the element.

    Raises:
        DefinitionError: A vectorized function needs names.
    """
    if isinstance(function, VectorizedFunction) and (key is None or callable(key)):
        raise DefinitionError(f"key={key!r}: {type(function).__name__} needs names of key columns, as in 'user'")
    return () if key is None or callable(key) else (key,) if isinstance(key, str) else tuple(key)


def key_by(function: Function, key: Key) -> Callable[[Any], Any]:
    """Return a function from an element to its key, for ``key`` of a `KeyedTestHarness`."""
    return key if callable(key) else key_getter(key_columns(function, key)) if key else (lambda value: value)


def key_of_record(function: Function, options: Any, record: Record) -> str:
    """Return the text of the key of a row of either side, by `FunctionOptions`."""
    key = options.get("key" if record.input == 1 else "key2") or options.get("key")
    return repr(key_by(function, key)(element_of(record.value)))
