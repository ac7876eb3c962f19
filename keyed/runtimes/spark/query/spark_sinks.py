"""Writing a micro-batch's outputs on Spark: each under the batch's id, in place of what the same batch wrote before.

A folder on this machine gets flat files ``part-<batch id>-<n>.parquet``. Spark writes them into a staging folder beside
them, ``_staging-<batch id>``, which readers pass over; they are moved into place when all are written. Where the path
has a scheme, or Spark does not run on this machine, each batch has a folder ``batch=<batch id>`` that Spark overwrites.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from keyed.arrow.read import column_values
from keyed.errors import DefinitionError
from keyed.rows import row_class
from keyed.runtimes.spark.plan.build import Route
from keyed.sinks import CollectSink, FunctionSink, ParquetSink, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FolderSink", "Writer", "batch_folder", "collected", "local_folder"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@attrs.frozen
class FolderSink:
    """Parquet in a folder ``<path>/batch=<batch id>`` for each batch, wherever the path is."""

    path: str


@attrs.define(eq=False)
class Writer:
    """Writes the outputs of one query. `write` is what ``foreachBatch`` calls.

    Attributes:
        routes: How each output is taken out of the query's DataFrame.
        sinks: The sink of each.
        here: Whether paths without a scheme are folders of this machine.
        first_batch: What sinks get as the id of Spark's batch 0.
        before: Called with Spark's id of each batch before it runs.
        error: What the last write failed with.
        batches: Ids of the batches that were written, as sinks got them.
    """

    routes: Sequence[Route]
    sinks: Sequence[Sink | FolderSink]
    here: bool
    first_batch: int = 0
    before: Callable[[int], object] | None = None
    error: BaseException | None = None
    batches: set[int] = attrs.field(factory=set)

    def write(self, whole: DataFrame, batch_id: int) -> None:
        """Write one batch."""
        # Each action would run the stateful operators anew: a batch that is read more than once is kept.
        kept = len(self.sinks) > 1 or isinstance(self.sinks[0], FunctionSink)
        if kept:
            whole = whole.persist()
        try:
            if self.before is not None:
                self.before(batch_id)
            batch_id += self.first_batch
            for route, sink in zip(self.routes, self.sinks, strict=True):
                self._write(route.frame(whole), sink, batch_id)
        except BaseException as error:
            self.error = error
            raise
        finally:
            if kept:
                whole.unpersist()
        self.batches.add(batch_id)

    def _write(self, frame: DataFrame, sink: Sink | FolderSink, batch_id: int) -> None:
        if isinstance(sink, ParquetSink | FolderSink):
            folder = local_folder(sink.path) if self.here and isinstance(sink, ParquetSink) else None
            if folder is not None:
                _write_files(frame, folder, batch_id)
            else:
                frame.write.mode("overwrite").parquet(batch_folder(sink.path, batch_id))
        elif isinstance(sink, CollectSink):
            sink.batches[batch_id] = collected(frame)
        else:
            sink.function(frame, batch_id)


def batch_folder(path: str, batch_id: int) -> str:
    """The folder of one batch, where a sink has a folder for each."""
    return f"{path.rstrip('/')}/batch={batch_id:010d}"


def collected(frame: DataFrame) -> list[Any]:
    """The rows of a DataFrame as `keyed.rows.Row`, with aware UTC times, in the order of its partitions."""
    table = frame.toArrow()
    make = row_class(tuple(table.column_names))
    return list(map(make, zip(*[column_values(column) for column in table.columns], strict=True)))


def local_folder(path: str) -> Path | None:
    """The folder of this machine that a path names; ``None`` if it has another scheme than ``file``."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(path) else Path(path).absolute()


def _write_files(frame: DataFrame, folder: Path, batch_id: int) -> None:
    """Replace the files of one batch."""
    staging = folder / f"_staging-{batch_id:010d}"
    frame.write.mode("overwrite").parquet(staging.as_uri())
    if not staging.is_dir():
        raise DefinitionError(
            f"Parquet sink {str(folder)!r}: Spark wrote the folder elsewhere than on this machine; give the path with "
            "its scheme, such as hdfs://... or s3a://..."
        )
    written = [path for path in sorted(staging.glob("part-*.parquet")) if _has_rows(path)]
    for old in folder.glob(f"part-{batch_id:010d}-*.parquet"):
        old.unlink()
    if not written and not any(folder.glob("part-*.parquet")):
        # An output without rows is still a table with columns.
        written = sorted(staging.glob("part-*.parquet"))[:1]
    for number, path in enumerate(written):
        path.replace(folder / f"part-{batch_id:010d}-{number:04d}.parquet")
    shutil.rmtree(staging)


def _has_rows(path: Path) -> bool:
    import pyarrow.parquet as pq

    return bool(pq.ParquetFile(path).metadata.num_rows)
