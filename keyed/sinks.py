"""Where outputs go.

A sink gets each batch under its id; a batch that is run again replaces what it wrote before.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs

from keyed.errors import DefinitionError

__all__ = ["CollectSink", "FunctionSink", "ParquetSink", "Sink", "SinkLike", "collect_sink", "parquet_sink", "sink_of"]


@attrs.frozen
class ParquetSink:
    """Parquet files ``<path>/part-<batch id>-<n>.parquet``; a repeated batch replaces its own files."""

    path: str


@attrs.frozen
class FunctionSink:
    """``function(batch, batch_id)``: a Spark ``DataFrame``, or a list of values in the local runtime.

    As with Spark's ``foreachBatch`` a batch may come again with the same id: write to a place named by it.
    """

    function: Callable[[Any, int], object]


@attrs.define(eq=False)
class CollectSink:
    """Keeps the values in memory, for tests and small results.

    Attributes:
        batches: Batch id → values of that batch.
    """

    batches: dict[int, list[Any]] = attrs.field(factory=dict)

    @property
    def values(self) -> list[Any]:
        """All values in the order of their batches."""
        return [value for batch in sorted(self.batches) for value in self.batches[batch]]


Sink = ParquetSink | FunctionSink | CollectSink
#: What is taken for a sink: see `sink_of`.
SinkLike = Sink | str | os.PathLike[str] | Callable[[Any, int], object]


def parquet_sink(path: str | os.PathLike[str]) -> ParquetSink:
    """Write Parquet files into the folder ``path``."""
    return ParquetSink(os.fspath(path))


def collect_sink() -> CollectSink:
    """Keep the values in memory."""
    return CollectSink()


def sink_of(sink: Any) -> Sink:
    """A sink out of what a user gives: a sink, a path (Parquet) or a function ``(batch, batch_id)``.

    Raises:
        DefinitionError: Anything else.
    """
    if isinstance(sink, ParquetSink | FunctionSink | CollectSink):
        return sink
    if isinstance(sink, str | os.PathLike):
        return parquet_sink(sink)
    if callable(sink):
        return FunctionSink(sink)
    raise DefinitionError(f"sink={sink!r} is not a sink; give a path, keyed.collect_sink() or a function (batch, id)")
