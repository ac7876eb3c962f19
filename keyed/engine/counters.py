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
#: Current values; the operator's figure is the sum over its key groups. ``batches_held`` counts the consecutive batches
#: with rows in which one input held the watermark; only the first key group has it. ``rows_held`` counts the rows that
#: wait for the watermark, with ``order="watermark"``.
GAUGES = (
    "rows_held",
    "batches_held",
    "timers_pending",
    "live_entries",
    "live_bytes",
    "log_bytes",
    "log_rows",
    "store_copies",
)
#: A started query adds these to the figures of each operator: the numbers of `background.Status` of the query, of
#: its background export to changelogs on Spark, of its tables and of the export of metrics; and the failures of the
#: latter three.
STATUSES = (
    "query_status",
    "export_status",
    "export_failures",
    "tables_status",
    "tables_failures",
    "metrics_status",
    "metrics_failures",
)
