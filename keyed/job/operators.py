"""The specification of an operator that all of its key groups share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from keyed.base.schemas import Schema
from keyed.changelog.model import Changelog
from keyed.errors import DefinitionError
from keyed.job.functions import Function
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy

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
