"""Sinks: the destinations of outputs.

A sink gets each batch under its id; a batch that is run again replaces its earlier rows.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Literal, assert_never

import attrs

from keyed.errors import DefinitionError, QueryFailed
from keyed.shown import Shown, named
from keyed.topics import KafkaSink

SinkMode = Literal["error", "overwrite"]

#: Suffixes of files that are not folders of Parquet files.
_FILES = frozenset(
    {
        *(".arrow", ".avro", ".bz2", ".csv", ".db", ".duckdb", ".feather", ".gz", ".html", ".ipc", ".json", ".jsonl"),
        *(".log", ".ndjson", ".orc", ".pickle", ".pkl", ".sqlite", ".tsv", ".txt", ".xls", ".xlsx", ".xml", ".yaml"),
        *(".yml", ".zip"),
    }
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@attrs.frozen
class ParquetSink:
    """Parquet files ``<path>/part-<batch id>-<n>.parquet``; a repeated batch replaces its own files.

    Attributes:
        path: The folder, or its URI.
        mode: For a folder that another query has written: ``"error"`` refuses it, ``"overwrite"`` replaces its files.
    """

    path: str
    mode: SinkMode = "error"

    def __attrs_post_init__(self) -> None:
        if not self.path or "\0" in self.path:
            raise DefinitionError(f"Parquet sink {self.path!r}: give the path of a folder")
        if self.mode not in ("error", "overwrite"):
            raise DefinitionError(f"mode={self.mode!r} of the Parquet sink must be 'error' or 'overwrite'")


@attrs.frozen
class FunctionSink:
    """``function(batch, batch_id)``: a Spark ``DataFrame``, or a list of values in the local runtime.

    As with Spark's ``foreachBatch`` a batch may come again with the same id: replace the rows of that id.
    """

    function: Callable[[Any, int], object] = attrs.field(repr=named)


@attrs.define(eq=False)
class CollectSink(Shown):
    """Keeps the values in memory, for tests and small results.

    Attributes:
        batches: Batch id → values of that batch.
    """

    batches: dict[int, list[Any]] = attrs.field(factory=dict, repr=lambda batches: f"<{len(batches)}>")

    @property
    def values(self) -> list[Any]:
        """All values in the order of their batches."""
        return [value for batch in sorted(self.batches) for value in self.batches[batch]]


Sink = ParquetSink | FunctionSink | CollectSink | KafkaSink
#: The arguments that `sink_of` accepts.
SinkLike = Sink | str | os.PathLike[str] | Callable[[Any, int], object]


def parquet_sink(path: str | os.PathLike[str], *, mode: SinkMode = "error") -> ParquetSink:
    """Write Parquet files into a folder, which belongs to one query.

    Args:
        path: The folder.
        mode: For a folder that another query has written: ``"error"`` refuses it, ``"overwrite"`` removes the Parquet
            files of that query when this one starts. A query that resumes from its checkpoint keeps its folder with
            either.
    """
    return ParquetSink(os.fspath(path), mode)


def collect_sink() -> CollectSink:
    """Keep the values in memory."""
    return CollectSink()


def nowhere(batch: Any, batch_id: int) -> None:  # noqa: ARG001 - as sinks are called
    """Discard a batch."""
    write = getattr(batch, "write", None)
    if write is not None:
        # Spark runs a batch when it is written.
        write.format("noop").mode("overwrite").save()


def sink_of(sink: Any) -> Sink:
    """Return the sink for a user's argument: a sink, a path (Parquet) or a function ``(batch, batch_id)``.

    Raises:
        DefinitionError: Anything else.
    """
    if isinstance(sink, Sink):
        return sink
    if isinstance(sink, str | os.PathLike):
        made = parquet_sink(sink)
        folder = local_folder(made.path)
        if Path(made.path).suffix.lower() in _FILES and (folder is None or not folder.is_dir()):
            raise DefinitionError(
                f"sink={made.path!r} has the name of a file, and a path names a folder of Parquet files; give the path "
                f"of a folder, a function (batch, id) that writes the file, or keyed.parquet_sink({made.path!r}) for a "
                "folder of that name"
            )
        return made
    if callable(sink):
        _check_parameters(sink)
        return FunctionSink(sink)
    raise DefinitionError(f"sink={sink!r} is not a sink; give a path, keyed.collect_sink() or a function (batch, id)")


def _check_parameters(function: Callable[..., object]) -> None:
    """Check that a function can be called with a batch and its id.

    Raises:
        DefinitionError: It has other parameters.
    """
    if function is collect_sink or function is parquet_sink:
        raise DefinitionError(f"sink={function.__name__} is a function; call it: keyed.{function.__name__}(...)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return
    try:
        signature.bind(None, 0)
    except TypeError as error:
        raise DefinitionError(
            f"sink={named(function)} is called with two arguments, function(batch, batch_id): {error}"
        ) from None


def check_distinct(sinks: Iterable[Sink]) -> None:
    """Check that no two outputs of a query have the same sink, where the second would replace the first.

    Raises:
        DefinitionError: Two have: the same folder under any names, or the same collecting sink.
    """
    seen = set()
    for sink in sinks:
        if isinstance(sink, FunctionSink):
            continue
        place = _place(sink)
        if place in seen:
            if isinstance(sink, KafkaSink):
                raise DefinitionError(
                    f"two outputs have the transactional_id {sink.transactional_id!r}, and the batches of one would be "
                    "taken for those of the other; give each KafkaSink a transactional_id= of its own"
                )
            named = "one collect_sink()" if isinstance(sink, CollectSink) else f"the folder {sink.path!r}"
            raise DefinitionError(
                f"two outputs go to {named}, and the second would replace the first; give each output a sink of its own"
            )
        seen.add(place)


def failed(sink: Sink, batch_id: int, error: Exception) -> QueryFailed:
    """Return the error for an exception of a sink; raise it from that exception."""
    if isinstance(sink, FunctionSink):
        name = f"the function {getattr(sink.function, '__qualname__', sink.function)!s}"
    elif isinstance(sink, ParquetSink):
        name = f"the Parquet sink {sink.path!r}"
    elif isinstance(sink, CollectSink | KafkaSink):
        name = repr(sink)
    else:
        assert_never(sink)
    return QueryFailed(f"{name} cannot take batch {batch_id}: {type(error).__name__}: {error}")


def local_folder(path: str) -> Path | None:
    """Return the folder of this machine that a path names; ``None`` if it has another scheme than ``file``."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(path) else Path(path).absolute()


def _place(sink: ParquetSink | CollectSink | KafkaSink) -> Hashable:
    """Return the identity of a sink's destination."""
    if isinstance(sink, CollectSink):
        return id(sink)
    if isinstance(sink, KafkaSink):
        return sink.bootstrap, sink.transactional_id
    folder = local_folder(sink.path)
    if folder is None:
        scheme, _, rest = sink.path.partition(":")
        return scheme.lower(), re.sub("/+", "/", rest).rstrip("/")
    folder = folder.resolve()
    # Other names may lead to one folder without a link: where case does not matter, or over a mount.
    return folder.stat()[1:3] if folder.exists() else folder
