"""The counters of a Spark query, from the marks of its key groups that Spark observes in each batch.

The observed metric ``keyed.<operator>`` has one field, ``marks``: the `GroupMark` of each key group of the operator and
of the operators chained before it, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

#: Prefix of the names of operators' observed metrics.
OBSERVED = "keyed."


def group_marks(progress: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the marks of each operator's key groups in a batch.

    Args:
        progress: The progress report of the batch.
    """
    observed = progress["observedMetrics"] if isinstance(progress, Mapping) else progress.observedMetrics
    by_operator: dict[str, list[dict[str, Any]]] = {}
    for name, row in observed.items():
        if name.startswith(OBSERVED):
            fields = row.asDict() if hasattr(row, "asDict") else dict(row)
            if fields.keys() == {"schema", "values"}:
                # Spark Connect returns the row in parts.
                names = [field["name"] for field in fields["schema"]["fields"]]
                fields = dict(zip(names, fields["values"], strict=True))
            for operator, marks in marks_of(fields.get("marks")).items():
                by_operator.setdefault(operator, []).extend(marks)
    return by_operator


def marks_of(observed: str | None) -> dict[str, list[dict[str, Any]]]:
    """Return observed marks by operator."""
    by_operator: dict[str, list[dict[str, Any]]] = {}
    for mark in json.loads(observed or "[]"):
        by_operator.setdefault(mark["operator"], []).append(mark)
    return by_operator


def spark_metrics(progress: Mapping[str, Any] | StreamingQueryProgress) -> dict[str, dict[str, int]]:
    """Return the counters of each operator of a Spark query that was started with plain ``writeStream``.

    Args:
        progress: ``query.lastProgress``, or the progress that a ``StreamingQueryListener`` gets.

    Returns:
        By operator: its counters, ``watermark`` and ``processing_time``.
    """
    return {name: summed(marks) for name, marks in group_marks(progress).items()}


def operator_commits(progress: Any) -> dict[str, int]:
    """Return the number of the commit that each operator's key groups made in a batch.

    Args:
        progress: The progress report of the batch.

    Returns:
        The numbers by operator; operators that did not run in the batch are left out.
    """
    return {name: min(mark["commit"] for mark in marks) for name, marks in group_marks(progress).items()}


def next_work(progress: Any, exported: Container[str]) -> int | None:
    """Return the processing time at which a query has work without rows.

    Args:
        progress: The progress report of its last batch.
        exported: The operators with a changelog, to which a later batch exports the changes of a batch.

    Returns:
        Milliseconds, ``None`` if there is no work.
    """
    times = []
    for operator, marks in group_marks(progress).items():
        for mark in marks:
            if mark["changed"] and operator in exported:
                times.append(mark["export_at"])
            if mark["due"] is not None:
                times.append(mark["due"])
    return min(times, default=None)


def export_operators(progress: Any, time: int) -> set[str]:
    """Return the operators whose key groups export earlier batches to their changelogs in the next batch.

    Args:
        progress: The progress report of the last batch.
        time: Processing time of the next one.
    """
    marks = group_marks(progress).items()
    return {operator for operator, each in marks if any(time >= mark["export_at"] for mark in each)}


def starts_run(progress: Any) -> bool:
    """Return true if a batch had the tick with which a run of its query starts."""
    return any(mark["starts_run"] for marks in group_marks(progress).values() for mark in marks)


def waiting_batches(progress: Any) -> dict[str, int]:
    """Return the number of batches that a changelog may lack, by operator.

    Args:
        progress: The progress report of the last one.
    """
    return {operator: 1 + max(mark["waiting"] for mark in marks) for operator, marks in group_marks(progress).items()}


def staged_commits(progress: Any) -> dict[str, dict[int, tuple[int, str]]]:
    """Return the commits of a batch that the key groups have staged.

    Args:
        progress: The progress report of the batch.

    Returns:
        Number of the commit and attempt, by operator and key group; nothing for an operator if one of its groups has
        staged nothing, or ran twice, so that the report does not show which attempt Spark has kept.
    """
    commits = {}
    for operator, marks in group_marks(progress).items():
        staged = {mark["group"]: (mark["commit"], mark["staged"]) for mark in marks if mark["staged"]}
        if len(staged) == len(marks):
            commits[operator] = staged
    return commits


def is_quiet(progress: Any, exported: Container[str]) -> bool:
    """Return true if the key groups changed nothing that has to be exported in a batch, and their input did not end.

    Args:
        progress: The progress report of the batch.
        exported: The operators with a changelog.
    """
    return not any(
        mark["changed"] or mark["watermark"] == MAX_TIMESTAMP
        for operator, marks in group_marks(progress).items()
        if operator in exported
        for mark in marks
    )


def summed(marks: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the marks of an operator's key groups as one."""
    total: dict[str, int] = {}
    watermark, processing_time = MAX_TIMESTAMP, MIN_TIMESTAMP
    for mark in marks:
        watermark = min(watermark, mark["watermark"])
        processing_time = max(processing_time, mark["clock"])
        for name, value in mark["metrics"].items():
            total[name] = total.get(name, 0) + value
    return total | {"watermark": watermark, "processing_time": processing_time}
