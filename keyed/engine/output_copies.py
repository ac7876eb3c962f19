"""Copies of outputs at the moment of the emission, so that later changes by the function have no effect."""

from __future__ import annotations

from typing import Any

from keyed.base.schemas import Schema
from keyed.base.shown import mistaken
from keyed.codec.snapshots import UNCHANGING, snapshot
from keyed.errors import EncodingError


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
