"""Sinks: the destinations of outputs.

A sink gets each batch under its id; a batch that is run again replaces its earlier rows.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, assert_never

import attrs

from keyed.base.arguments import names, path_text, text, texts
from keyed.base.shown import Shown, named, shown
from keyed.errors import DefinitionError, QueryFailed
from keyed.topics import KafkaSink

SinkMode = Literal["error", "overwrite"]
TableMode = Literal["append", "upsert"]

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

    As with Spark's ``foreachBatch`` a batch may come again with the same id: replace the rows of that id. If the
    function has a parameter ``query_id``, it also gets the id of the query, which is kept with its checkpoint.
    """

    function: Callable[..., object] = attrs.field(repr=named)

    def call(self, batch: Any, batch_id: int, query_id: str) -> None:
        """Call the function."""
        if _takes_query(self.function):
            self.function(batch, batch_id, query_id=query_id)
        else:
            self.function(batch, batch_id)


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


def _key(columns: Any) -> tuple[str, ...]:
    return names(columns, "key")


def _storage_options(options: Any) -> dict[str, str]:
    return texts(options, "delta_sink: storage_options")


def _catalog_options(options: Any) -> dict[str, str]:
    return texts(options, "iceberg_sink: options")


def _delta_path(path: Any) -> str:
    return path_text(path, "delta_sink: path", "the folder or the URI of a table")


def _option_names(options: Mapping[str, str]) -> str:
    return "{" + ", ".join(options) + "}"


@attrs.frozen(kw_only=True, eq=False)
class TableSink(Shown):
    """A table of a lakehouse: the parameters that all formats have.

    Attributes:
        mode: ``"append"`` adds the rows; ``"upsert"`` replaces the rows with the same key.
        key: The columns of the key, for ``"upsert"``.
        deleted: The column that is true in a row that deletes its key, for ``"upsert"``. The table does not have it.
    """

    mode: TableMode = "append"
    key: tuple[str, ...] = attrs.field(default=(), converter=_key)
    deleted: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.mode not in ("append", "upsert"):
            raise DefinitionError(f"{self!r}: mode={shown(self.mode)} must be 'append' or 'upsert'")
        if (self.mode == "upsert") != bool(self.key) or (self.deleted is not None and self.mode != "upsert"):
            raise DefinitionError(
                f'{self!r}: mode="upsert" needs key=, the columns whose values name a row; "append" takes neither key= '
                "nor deleted="
            )
        if self.deleted is not None:
            text(self.deleted, f"{self!r}: deleted", "the name of a column")
        if self.deleted in self.key:
            raise DefinitionError(f"{self!r}: deleted= takes the name of a column that is not one of the key")

    @property
    def place(self) -> str:
        """The table, as users name it."""
        raise NotImplementedError(f"{type(self).__name__} does not define place")

    def _shown(self, function: str, table: str, **others: Any) -> str:
        """Return the call that made the sink."""
        given = {"mode": self.mode, "key": self.key, "deleted": self.deleted}
        usual = {"mode": "append", "key": (), "deleted": None}
        options = {name: shown(value) for name, value in given.items() if value != usual[name]}
        return f"{function}({', '.join([shown(table), *(f'{n}={v}' for n, v in {**others, **options}.items())])})"


@attrs.frozen(kw_only=True, eq=False)
class DeltaSink(TableSink):
    """A Delta table. See `delta_sink`.

    Attributes:
        path: The table's folder or URI.
        storage_options: Options of the store.
    """

    path: str = attrs.field(converter=_delta_path)
    storage_options: Mapping[str, str] = attrs.field(factory=dict, converter=_storage_options)

    def __repr__(self) -> str:
        options = {"storage_options": _option_names(self.storage_options)} if self.storage_options else {}
        return self._shown("delta_sink", self.path, **options)

    @property
    def place(self) -> str:
        """See `TableSink`."""
        return self.path


@attrs.frozen(kw_only=True, eq=False)
class IcebergSink(TableSink):
    """An Iceberg table. See `iceberg_sink`.

    Attributes:
        table: The table's name with its namespace.
        catalog: Name of the catalog.
        options: Properties of the catalog.
    """

    table: str
    catalog: str
    options: Mapping[str, str] = attrs.field(factory=dict, converter=_catalog_options)

    def __repr__(self) -> str:
        options = {"options": _option_names(self.options)} if self.options else {}
        return self._shown("iceberg_sink", self.table, catalog=shown(self.catalog), **options)

    def __attrs_post_init__(self) -> None:
        for name in ("table", "catalog"):
            text(getattr(self, name), f"iceberg_sink: {name}", f"the name of a {name}")
        if not all(self.table.split(".")) or "." not in self.table:
            raise DefinitionError(
                f"iceberg_sink: table={self.table!r}, catalog={self.catalog!r}: give the name of a table with its "
                "namespace, such as 'sales.counts', and the name of a catalog"
            )
        super().__attrs_post_init__()

    @property
    def place(self) -> str:
        """See `TableSink`."""
        return f"{self.catalog}.{self.table}"


Sink = ParquetSink | FunctionSink | CollectSink | KafkaSink | DeltaSink | IcebergSink
#: The arguments that `sink_of` accepts.
SinkLike = Sink | str | os.PathLike[str] | Callable[..., object]


def parquet_sink(path: str | os.PathLike[str], *, mode: SinkMode = "error") -> ParquetSink:
    """Write Parquet files into a folder, which belongs to one query.

    Args:
        path: The folder.
        mode: For a folder that another query has written: ``"error"`` refuses it, ``"overwrite"`` removes the Parquet
            files of that query when this one starts. A query that resumes from its checkpoint keeps its folder with
            either.
    """
    return ParquetSink(path_text(path, "parquet_sink: path", "the path of a folder"), mode)


def delta_sink(
    path: str | os.PathLike[str],
    *,
    mode: TableMode = "append",
    key: str | Sequence[str] = (),
    deleted: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DeltaSink:
    """Write the rows of an output to a Delta table, each exactly once.

    Each batch is one transaction of the table, which records the query's id and the batch's. A batch that comes again
    is not written twice. The local runtime needs ``keyed-streams[delta]``. Spark needs Delta Lake in the session, whose
    settings reach the store.

    Args:
        path: The table's folder or URI. If there is no table, one with the output's columns is created.
        mode: ``"append"`` adds the rows. ``"upsert"`` replaces the rows with the same key by the batch's last one.
        key: The columns of the key, for ``"upsert"``.
        deleted: A boolean column that is true in a row that deletes its key, for ``"upsert"``. The table does not have
            this column.
        storage_options: Options of the store beyond those in the environment, in the local runtime; their values are
            never shown.

    Raises:
        DefinitionError: Parameters are missing or exclude each other.
    """
    return DeltaSink(path=path, mode=mode, key=key, deleted=deleted, storage_options=storage_options)


def iceberg_sink(
    table: str,
    *,
    catalog: str = "default",
    mode: TableMode = "append",
    key: str | Sequence[str] = (),
    deleted: str | None = None,
    options: Mapping[str, str] | None = None,
) -> IcebergSink:
    """Write the rows of an output to an Iceberg table, each exactly once.

    The snapshot of each batch has the query's id and the batch's as properties. A batch that comes again is not written
    twice. The local runtime needs ``keyed-streams[iceberg]``. Spark needs a catalog of Iceberg in the session.

    Args:
        table: The table's name with its namespace, such as ``"sales.counts"``. If there is no table, one with the
            output's columns is created.
        catalog: Name of the catalog: of pyiceberg, and on Spark of the session.
        mode: See `delta_sink`.
        key: See `delta_sink`.
        deleted: See `delta_sink`.
        options: Properties of the catalog beyond those of pyiceberg's configuration, in the local runtime; their values
            are never shown.

    Raises:
        DefinitionError: Parameters are missing or exclude each other.
    """
    return IcebergSink(table=table, catalog=catalog, mode=mode, key=key, deleted=deleted, options=options)


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
    if function in (collect_sink, parquet_sink, delta_sink, iceberg_sink):
        raise DefinitionError(f"sink={function.__name__} is a function; call it: keyed.{function.__name__}(...)")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some builtins have no signature.
        return
    try:
        if _takes_query(function):
            signature.bind(None, 0, query_id="")
        else:
            signature.bind(None, 0)
    except TypeError as error:
        raise DefinitionError(
            f"sink={named(function)} is called with two arguments, function(batch, batch_id), and the query's id if it "
            f"has a parameter query_id: {error}"
        ) from None


def _takes_query(function: Callable[..., object]) -> bool:
    try:
        return "query_id" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


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
            if isinstance(sink, TableSink):
                raise DefinitionError(
                    f"two outputs go to the table {sink.place!r}, and the batches of one would be taken for those of "
                    "the other; give each output a table of its own"
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
    elif isinstance(sink, CollectSink | KafkaSink | TableSink):
        name = repr(sink)
    else:
        assert_never(sink)
    return QueryFailed(f"{name} cannot take batch {batch_id}: {type(error).__name__}: {error}")


def local_folder(path: str) -> Path | None:
    """Return the folder of this machine that a path names; ``None`` if it has another scheme than ``file``."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(path) else Path(path).absolute()


def _place(sink: ParquetSink | CollectSink | KafkaSink | DeltaSink | IcebergSink) -> Hashable:
    """Return the identity of a sink's destination."""
    if isinstance(sink, IcebergSink):
        return "iceberg", sink.catalog, sink.table
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
