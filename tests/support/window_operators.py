"""Window operators by themselves, without a stream."""

from typing import Any

from keyed.windows.definition import define
from keyed.windows.vectorized.batch_operator import WindowBatchOperator
from keyed.windows.window_operator import WindowOperator


def window_rows(**parts: Any) -> WindowOperator:
    """Return the operator that runs windows row by row, of the parts of a definition."""
    return WindowOperator(define(**parts))


def window_columns(**parts: Any) -> WindowBatchOperator:
    """Return the operator that runs windows over whole columns, of the parts of a definition."""
    return WindowBatchOperator(define(**parts))
