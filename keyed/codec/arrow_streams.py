"""Tables as bytes: Arrow IPC streams, compressed. Needs pyarrow, which is loaded when a function is called."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Literal

from keyed.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa


def write_stream(
    table: pa.Table | pa.RecordBatch, *, head: bytes = b"", compression: Literal["zstd", "lz4"] = "zstd"
) -> bytes:
    """Return a table as an Arrow IPC stream of one batch, after ``head``."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    sink.write(head)
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write(table.combine_chunks() if isinstance(table, pa.Table) else table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_schema(text: str) -> pa.Schema:
    """Read a schema from the base64 of its bytes, as descriptions of tables have it."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(b64decode(text)))


def read_stream(data: bytes, where: str) -> pa.Table:
    """Read a table from the bytes of `write_stream`.

    Raises:
        CorruptionError: It is damaged.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(data), options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            table = reader.read_all()
        # Arrow trusts offsets and lengths: without full validation it would read anywhere in memory.
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError(f"rows of a table cannot be read: {error}", where=where) from error
    return table
