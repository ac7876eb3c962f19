"""Sinks of this process: functions, and a dictionary in memory; and the sink for a user's argument."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from keyed.base.arguments import named
from keyed.base.schemas import Schema
from keyed.destinations.parquet import parquet_sink
from keyed.destinations.sink import Owner, Sink, SinkBatch, SinkWriter, local_folder
from keyed.errors import DefinitionError


class CallingWriter(SinkWriter):
    """Calls a function with each batch and its id, also again.

    Args:
        call: The function.
    """

    def __init__(self, call: Callable[[SinkBatch, int], object]) -> None:
        self._call = call

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """See `SinkWriter`."""
        self._call(rows, batch_id)


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
        more = {"query_id": owner.query} if takes_query(self.function) else {}

        def call(rows: SinkBatch, batch_id: int) -> None:
            self.function(rows.rows if rows.frame is None else rows.frame, batch_id, **more)

        return CallingWriter(call)


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


@attrs.define(eq=False)
class CollectSink(Sink):
    """Keeps the values in memory, for tests and small results.

    Attributes:
        batches: Batch id → values of that batch.
    """

    batches: dict[int, list[Any]] = attrs.field(factory=dict, repr=lambda batches: f"<{len(batches)}>")

    @property
    def values(self) -> list[Any]:
        """All values in the order of their batches."""
        return [value for batch in sorted(self.batches) for value in self.batches[batch]]

    @property
    def collected(self) -> dict[int, list[Any]]:  # type: ignore[override]
        """See `Sink`."""
        return self.batches

    @property
    def title(self) -> str:
        """See `Sink`."""
        return "a collecting sink"

    @property
    def identity(self) -> int:
        """See `Sink`."""
        return id(self)

    @property
    def clash(self) -> str:
        """See `Sink`."""
        return super().clash.replace(self.title, "one collect_sink()")

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        return _CollectWriter(self.batches, owner.next_batch)


class _CollectWriter(SinkWriter):
    def __init__(self, batches: dict[int, list[Any]], next_batch: int) -> None:
        self._batches = batches
        self._next_batch = next_batch

    def claim(self, repeated: int | None = None) -> None:
        """Remove the later batches, which are those of another query. See `SinkWriter`."""
        for batch_id in [each for each in self._batches if each >= self._next_batch]:
            del self._batches[batch_id]

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """See `SinkWriter`."""
        self._batches[batch_id] = rows.rows


def collect_sink() -> CollectSink:
    """Keep the values in memory."""
    return CollectSink()


#: The arguments that `sink_of` accepts.
SinkLike = Sink | str | os.PathLike[str] | Callable[..., object]
#: Suffixes of files that are not folders of Parquet files.
_FILES = frozenset(
    {
        *(".arrow", ".avro", ".bz2", ".csv", ".db", ".duckdb", ".feather", ".gz", ".html", ".ipc", ".json", ".jsonl"),
        *(".log", ".ndjson", ".orc", ".pickle", ".pkl", ".sqlite", ".tsv", ".txt", ".xls", ".xlsx", ".xml", ".yaml"),
        *(".yml", ".zip"),
    }
)


def sink_of(sink: Any) -> Sink:
    """Return the sink for a user's argument: a sink, a path (Parquet) or a function ``(batch, batch_id)``.

    Raises:
        DefinitionError: Anything else.
    """
    if isinstance(sink, Sink):
        return sink
    if isinstance(sink, str | os.PathLike):
        into = parquet_sink(sink)
        folder = local_folder(into.path)
        if Path(into.path).suffix.lower() in _FILES and (folder is None or not folder.is_dir()):
            raise DefinitionError(
                f"sink={into.path!r} has the name of a file, and a path names a folder of Parquet files; give the path "
                f"of a folder, a function (batch, id) that writes the file, or keyed.parquet_sink({into.path!r}) for a "
                "folder of that name"
            )
        return into
    if callable(sink):
        _check_parameters(sink)
        return FunctionSink(sink)
    raise DefinitionError(f"sink={sink!r} is not a sink; give a path, keyed.collect_sink() or a function (batch, id)")


def _check_parameters(function: Callable[..., object]) -> None:
    """Check that a function can be called with a batch and its id.

    Raises:
        DefinitionError: It has other parameters.
    """
    name = named(function)
    if str(getattr(function, "__module__", "")).startswith("keyed.") and name.lower().endswith(("sink", "topic")):
        raise DefinitionError(f"sink={name} makes a sink, and is none; call it: {name}(...)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return
    try:
        signature.bind(None, 0, **({"query_id": ""} if takes_query(function) else {}))
    except TypeError as error:
        raise DefinitionError(
            f"sink={name} is called with two arguments, function(batch, batch_id), and the query's id if it "
            f"has a parameter query_id: {error}"
        ) from None
