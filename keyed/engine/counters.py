"""The counters of a key group: committed with its state, so a rerun does not count twice."""

from __future__ import annotations

#: Counters that only grow; the operator's figure is the sum over its key groups. ``rows_bad`` counts the bad rows that
#: ``on_bad_row`` diverts. ``rows_late`` counts rows at or below the watermark at the start of their batch, which the
#: function still gets. ``rows_dropped`` counts rows that it dropped with ``ctx.drop()``, as windows do with late
#: elements without a side output.
COUNTERS = (
    "batches",
    "rows_in",
    "rows_out",
    "rows_late",
    "rows_side_output",
    "rows_bad",
    "rows_dropped",
    "timers_registered",
    "timers_fired",
    "entries_expired",
    "versions_dropped",
    "segments_replayed",
    "entries_replayed",
    "stores_rebuilt",
    "stores_opened",
    "records_restored",
    "records_exported",
    "busy_microseconds",
)
