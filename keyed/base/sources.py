"""Sources of the local runtime with positions, and sources that wait.

Any iterable is a source. One that is read from its start again is compared with the checkpoint's digest of the consumed
rows; one that can resume from a position implements `seek` and `position`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable


class _Pause:
    """The type of `PAUSE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "keyed.PAUSE"


#: Yielded by a source in place of an element when it has none for now, or when enough time has passed: the batch ends
#: there. A batch without rows runs only if a processing-time timer is due. A query can stop at a pause.
PAUSE = _Pause()


class BadElement:
    """An element that its source could not read: a bad row.

    Attributes:
        row: The row for the side output of bad rows, with the reason.
        reason: The reason.
        place: Its place in the source, for messages.
    """

    __slots__ = ("place", "reason", "row")

    def __init__(self, row: Any, reason: str, place: str) -> None:
        self.row = row
        self.reason = reason
        self.place = place


class IngestionTime:
    """The type of `INGESTION_TIME`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "keyed.INGESTION_TIME"


#: Value of ``timestamp`` in `stream` that gives each row the time of its batch: Flink's third notion of time. It never
#: goes back, and a rerun of a batch has the time of its first attempt.
INGESTION_TIME = IngestionTime()


@runtime_checkable
class SeekableSource(Protocol):
    """An iterable that resumes from a position, which each batch keeps in checkpoints and changelogs.

    A method ``close()``, if there is one, is called when the query stops, perhaps from another thread; the iteration
    has to end soon after. A method ``batches()`` is iterated instead of elements: it yields Arrow tables, each a batch,
    and `PAUSE`. A method ``set_waits(first, more)`` is called before a batch with the seconds to wait for its first
    element before `PAUSE`, and then for others: a second if each batch makes a file or a version of a table, else 0.
    """

    def __iter__(self) -> Iterator[Any]:
        """Return the elements after the position of `seek`, or from the source's own start."""

    def position(self) -> Any:
        """Return the position after the last element of the iteration.

        Plain data of MessagePack, except None: lists instead of tuples, and text as keys of dictionaries.
        """

    def seek(self, position: Any) -> None:
        """Let the next iteration begin after a position of an earlier run.

        Raises:
            KeyedError: The position is not one of this source.
        """
