"""The function that Spark calls with each batch, and the connection for these calls.

A query's thread in the JVM opens a connection for its calls, which a thread of this program serves. py4j closes it on
neither side when the query ends: each query would leak a thread and a descriptor here, and a descriptor in the JVM.
py4j also holds the function until the JVM has collected its proxy, which it never does while the function holds
DataFrames of the query.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Callback:
    """A function for ``foreachBatch`` of a query in this program's own JVM.

    Args:
        function: Called with the DataFrame and the id of each batch, in a thread of the query.
    """

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function: Callable[[DataFrame, int], None] | None = function
        #: The JVM's py4j client for this program, and the query's connection in it.
        self._connection: tuple[Any, Any] | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Call the function."""
        if self._connection is None:
            self._connection = _connection_of(frame)
        assert self._function is not None
        self._function(frame, batch_id)

    def close(self) -> None:
        """Release the connection and the function, once the query has ended. Closing again does nothing."""
        self._function = None
        connection, self._connection = self._connection, None
        if connection is not None:
            client, its_end = connection
            # A JVM that has ended has closed it.
            with suppress(Exception):
                client.connectionStopped(its_end)
                # The thread of this program ends when it reads the end of the stream.
                its_end.shutdown()


def _connection_of(frame: DataFrame) -> tuple[Any, Any] | None:
    """Return the JVM's client of this program and its connection of this thread; ``None`` if not accessible."""
    from py4j.clientserver import ClientServer
    from py4j.java_gateway import JavaObject
    from py4j.protocol import Py4JError

    gateway = frame.sparkSession.sparkContext._gateway  # noqa: SLF001 - pyspark has no other way to py4j
    # Without pinned threads (PYSPARK_PIN_THREAD) calls share connections, and py4j closes idle ones.
    if not isinstance(gateway, ClientServer):
        return None
    try:
        client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()  # noqa: SLF001 - as above
        return client, client.getPerThreadConnection()
    except Py4JError:
        # Managed Spark may allow only some methods.
        return None
