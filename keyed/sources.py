"""Sources of the local runtime that know their position, and sources that wait.

Any iterable is a source. One that is read from its start again is checked by what a checkpoint remembers of the rows
that it has consumed; one that can go on from a position says so by `seek` and `position`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable


class _Pause:
    """The type of `PAUSE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "keyed.PAUSE"


#: What a source yields in place of an element when it has none for now, or when enough time has passed: the batch ends
#: there. Without rows one is run only if a processing-time timer is due. Between two of them a query does not stop.
PAUSE = _Pause()


class IngestionTime:
    """The type of `INGESTION_TIME`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "keyed.INGESTION_TIME"


#: What `stream` takes as ``timestamp``, so that each row has the time of its batch: Flink's third notion of time. It
#: never goes back, and a batch that is run again has the time of its first attempt.
INGESTION_TIME = IngestionTime()


@runtime_checkable
class SeekableSource(Protocol):
    """A source that goes on from a position of its own, and need not be read from its start (as Kafka's consumers).

    A checkpoint keeps `position` with each batch, and so do changelogs. If the source has a method ``close()``, it is
    called when the query stops, from another thread perhaps, and the iteration is to end soon after.
    """

    def __iter__(self) -> Iterator[Any]:
        """Return the elements from where `seek` was called for, or from where the source starts by itself."""

    def position(self) -> Any:
        """Return where the source stands after the element that the iteration gave last.

        Returns:
            Plain data: None excepted, what MessagePack has, so lists for tuples and names as keys of dictionaries.
        """

    def seek(self, position: Any) -> None:
        """Let the iteration that comes begin after the element of a position that `position` gave, in an earlier run.

        Raises:
            KeyedError: The position is not one of this source.
        """
