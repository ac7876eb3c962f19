"""The counters of a key group: committed with its state, so a replay does not count twice."""

from __future__ import annotations

#: Counters that only grow; the operator's figure is the sum over its key groups. ``rows_bad`` are the bad rows that
#: ``on_bad_row`` diverts; ``rows_late`` were at or below the watermark when their batch
#: began, and the function got them all the same; ``rows_dropped`` are those that it dropped with ``ctx.drop()``, as
#: windows do with late elements that no side output takes.
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
#: Present values; the operator's figure is the sum over its key groups.
GAUGES = ("timers_pending", "live_entries", "live_bytes", "log_bytes", "log_rows")
#: A query that was started adds these to the figures of each operator: numbers of `keyed.background.Status` of itself,
#: of the export to changelogs that runs beside it on Spark, and of its tables; how often the latter two have failed.
STATUSES = ("query_status", "export_status", "export_failures", "tables_status", "tables_failures")
