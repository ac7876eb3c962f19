"""Functions as sinks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import attrs

from keyed.base.schemas import Schema
from keyed.base.shown import named
from keyed.destinations.ownership import Owner
from keyed.destinations.sink import Sink, SinkBatch, SinkWriter


@attrs.frozen
class FunctionSink(Sink):
    """``function(batch, batch_id)``: a Spark ``DataFrame``, or a list of values in the local runtime.

    As with Spark's ``foreachBatch`` a batch may come again with the same id: replace the rows of that id. If the
    function has a parameter ``query_id``, it also gets the id of the query, which is kept with its checkpoint.
    """

    function: Callable[..., object] = attrs.field(repr=named)

    prints = True
    rereads = True

    @property
    def title(self) -> str:
        """See `Sink`."""
        return f"the function {getattr(self.function, '__qualname__', self.function)!s}"

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        del schema
        return FunctionWriter(self, owner)


class FunctionWriter(SinkWriter):
    """Calls the function. See `FunctionSink`."""

    def __init__(self, sink: FunctionSink, owner: Owner) -> None:
        self._function = sink.function
        self._more = {"query_id": owner.query} if takes_query(sink.function) else {}

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """See `SinkWriter`."""
        self._function(rows.rows if rows.frame is None else rows.frame, batch_id, **self._more)


def takes_query(function: Callable[..., object]) -> bool:
    """Return true if a function has a parameter for the query's id."""
    try:
        return "query_id" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def nowhere(batch: Any, batch_id: int) -> None:  # noqa: ARG001 - as sinks are called
    """Discard a batch."""
    write = getattr(batch, "write", None)
    if write is not None:
        # Spark runs a batch when it is written.
        write.format("noop").mode("overwrite").save()
