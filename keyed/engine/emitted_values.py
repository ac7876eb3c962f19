"""Outputs of functions: checks of returned values, and copies of emitted ones.

Outputs are copied at the moment of the emission, so that later changes by the function have no effect.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from keyed.base.arguments import mistaken, shown
from keyed.base.schemas import Schema
from keyed.codec.keys import STORED_AS_THEY_ARE
from keyed.codec.snapshots import UNCHANGING, snapshot
from keyed.errors import EncodingError, OutputDefinitionError


class OutputCopies:
    """Copies the values of one output.

    Args:
        schema: Its columns, if they are declared.

    Attributes:
        as_they_are: Classes whose values need no copy, so that a call can be skipped.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.as_they_are: set[type] = set(UNCHANGING)
        #: True if all columns have immutable types, so that rows that are tuples are immutable.
        self._is_flat = schema is not None and not any("<" in type_ or type_ == "binary" for _, type_ in schema.columns)
        if self._is_flat:
            self.as_they_are.add(tuple)

    def freeze(self, value: Any) -> Any:
        """Return ``value``, or a copy of it if it is mutable.

        Raises:
            EncodingError: It is mutable, and cannot be copied.
        """
        if value.__class__ in self.as_they_are or (self._is_flat and isinstance(value, tuple)):
            return value
        try:
            return snapshot(value)
        except EncodingError:
            wrong = mistaken(value)
            if wrong:
                raise EncodingError(f"an output cannot be copied: {wrong}") from None
            raise


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
