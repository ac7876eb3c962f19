"""Errors of a Spark query, turned into those that the worker raised.

A worker's exception reaches the driver as text: the Python traceback, inside the message of one or two JVM exceptions.
"""

from __future__ import annotations

import re

from keyed import errors
from keyed.errors import CorruptionError, KeyedError, QueryFailed

__all__ = ["translated"]

#: The last line of a Python traceback of ours: it starts a line and goes on until the JVM's words begin.
_RAISED = re.compile(
    r"^(?:[\w.]*\b)?keyed\.errors\.(?P<name>\w+): (?P<message>.*?)"
    r"(?=^\s*at |^\s*Driver stacktrace|^\s*SQLSTATE|^\s*=== |^\s*JVM stacktrace|^\s*$|^\s*Caused by|\Z)",
    re.MULTILINE | re.DOTALL,
)
_SHOWN = 2000
_TOO_LARGE = (
    "\nOne micro-batch has more than 2 GiB for one key group: take less input per batch (maxFilesPerTrigger, "
    "maxOffsetsPerTrigger), use more key groups, or set spark.sql.execution.arrow.maxBytesPerBatch to 64m"
)


def translated(error: BaseException, query: str) -> KeyedError:
    """The typed error for what a query failed with.

    Args:
        error: What Spark raised.
        query: What failed, for the message of an error that is not one of ours.

    Returns:
        The error that a worker raised, if it was one of ours; `QueryFailed` otherwise. The caller chains ``error``.
    """
    if isinstance(error, KeyedError):
        return error
    text = str(error)
    found = list(_RAISED.finditer(text))
    for match in reversed(found):
        cls = getattr(errors, match["name"], None)
        if isinstance(cls, type) and issubclass(cls, KeyedError):
            message = match["message"].strip()
            return CorruptionError(message) if cls is CorruptionError else cls(message)
    hint = _TOO_LARGE if "OversizedAllocationException" in text else ""
    return QueryFailed(f"{query} failed: {type(error).__name__}: {_essence(text)}{hint}")


def _essence(text: str) -> str:
    """The part of a long message that says something: the end of the Python traceback, or its beginning."""
    # What follows is the query's plan and the JVM's stack.
    text = re.split(r"^(?:=== Streaming Query ===|Driver stacktrace|JVM stacktrace)", text, flags=re.MULTILINE)[0]
    start = text.rfind("Traceback (most recent call last)")
    if start >= 0:
        text = text[start:]
    text = re.split(r"^\s*at ", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}\n...\n{text[-_SHOWN // 2 :]}"
