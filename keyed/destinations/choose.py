"""The sink for a user's argument."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keyed.base.arguments import named
from keyed.destinations.delta_table import delta_sink
from keyed.destinations.function import FunctionSink, collect_sink, takes_query
from keyed.destinations.iceberg_table import iceberg_sink
from keyed.destinations.parquet import parquet_sink
from keyed.destinations.sink import Sink, local_folder
from keyed.errors import DefinitionError

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
    if function in (collect_sink, parquet_sink, delta_sink, iceberg_sink):
        raise DefinitionError(f"sink={function.__name__} is a function; call it: keyed.{function.__name__}(...)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return
    try:
        signature.bind(None, 0, **({"query_id": ""} if takes_query(function) else {}))
    except TypeError as error:
        raise DefinitionError(
            f"sink={named(function)} is called with two arguments, function(batch, batch_id), and the query's id if it "
            f"has a parameter query_id: {error}"
        ) from None
