"""Checks that a function's result consists of outputs, and is not one output that would be iterated over."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from keyed.base.shown import shown
from keyed.codec.keys import STORED_AS_THEY_ARE
from keyed.errors import OutputDefinitionError

#: Iterable classes whose values are one output, which should have been yielded.
_NO_OUTPUTS = frozenset({str, bytes, dict})
#: Classes whose values in a returned tuple are parts of one output, and not outputs.
_PLAIN = STORED_AS_THEY_ARE | {float, datetime, Decimal}


def check_return_value(result: Any) -> None:
    """Check that a function returned outputs, not one output that would be iterated over.

    Raises:
        OutputDefinitionError: It is a tuple, row, text or dictionary.
    """
    cls = result.__class__
    # A tuple of rows is a sequence of outputs; a tuple with plain values is one row.
    if cls in _NO_OUTPUTS or (isinstance(result, tuple) and not _PLAIN.isdisjoint(map(type, result))):
        raise OutputDefinitionError(
            f"{shown(result)} of type {type(result).__name__} was returned, which would count as several outputs; "
            "yield it, or return a list of outputs"
        )
