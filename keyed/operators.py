"""What the key groups of one operator share: all that the engine knows of the stream around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from keyed.changelog.model import Changelog
from keyed.errors import DefinitionError
from keyed.functions import Function
from keyed.outputs import Schema
from keyed.state import MapState
from keyed.watermarks import WatermarkStrategy

Order = Literal["event_time", "arrival"]
Store = Literal["memory", "rocksdb"]


def check_parallelism(parallelism: int) -> None:
    """Check a number of key groups.

    Raises:
        DefinitionError: It is out of its range.
    """
    if type(parallelism) is not int or not 1 <= parallelism <= 32768:
        raise DefinitionError(f"parallelism={parallelism!r} must be an int from 1 to 32768")


def check_order(order: str) -> None:
    """Check the order of rows within a batch.

    Raises:
        DefinitionError: There is no such order.
    """
    if order not in ("event_time", "arrival"):
        raise DefinitionError(f"order={order!r} must be 'event_time' or 'arrival'")


@attrs.frozen(eq=False)
class OperatorSpec:
    """All that the key groups of one operator share; shipped to the workers.

    Attributes:
        name: Name of the operator, unique in its query, matching ``[A-Za-z0-9_-]{1,128}``.
        function: The user's function, not opened.
        event_time: Whether rows have timestamps.
        delay_ms: Delay of the watermark behind the highest timestamp, the greatest where there are several sources;
            ``None`` where watermarks come from upstream operators alone or are set by hand.
        ingestion_delay_ms: The same delay, in every operator of the chain, where rows have the time of their batch;
            ``None`` where they do not.
        order: Order of rows within a batch.
        parallelism: Number of key groups.
        keys: Key columns, of the first side where there are two; empty where the key is a function of the element.
        keys2: Those of the second side.
        output: Columns of the main output, where they are declared.
        output_timestamps: Whether the timestamps of the main output are needed: by a stage after this one.
        changelog: Where committed changes are exported to.
        strategies: How the watermark follows each input; ``None`` for an output of another operator, and for a
            broadcast stream without timestamps.
        broadcast: Descriptors of the broadcast states.
        global_tables: Key columns of those of them that are global tables, by name: all are, or none is.
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
        """Whether the operator gives the rows their timestamps: the time of the batch."""
        return self.ingestion_delay_ms is not None and self.delay_ms is not None

    def time_reached(self, processing_time: int) -> int | None:
        """Return up to where event time has come at a processing time; ``None`` where the rows say."""
        return None if self.ingestion_delay_ms is None else processing_time - self.ingestion_delay_ms - 1
