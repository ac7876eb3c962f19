"""The sink that keeps values in memory."""

from __future__ import annotations

from typing import Any

import attrs

from keyed.base.schemas import Schema
from keyed.destinations.ownership import Owner
from keyed.destinations.sink import Sink, SinkBatch, SinkWriter


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
        del owner, schema
        return CollectWriter(self)


class CollectWriter(SinkWriter):
    """Keeps the values. See `CollectSink`."""

    def __init__(self, sink: CollectSink) -> None:
        self._batches = sink.batches

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """See `SinkWriter`."""
        self._batches[batch_id] = rows.rows


def collect_sink() -> CollectSink:
    """Keep the values in memory."""
    return CollectSink()
