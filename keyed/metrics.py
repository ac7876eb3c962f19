"""Exports of a query's metrics: to Prometheus, over a port or a file, and to OpenTelemetry.

`keyed.run` and `keyed.start` take one of them as ``metrics=``. An export that fails is logged and counted
(``metrics_status`` and ``metrics_failures`` of `keyed.Query.metrics`); it never ends the query.
"""

from keyed.job.options import OpenTelemetry, Prometheus, export

__all__ = ["OpenTelemetry", "Prometheus", "export"]
