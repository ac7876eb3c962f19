"""Takes outputs as they are when a function gives them, so that nothing that it does afterwards changes them."""

from __future__ import annotations

from typing import Any

from keyed.codec.snapshots import UNCHANGING, snapshot
from keyed.errors import EncodingError
from keyed.outputs import Schema
from keyed.shown import mistaken


class OutputCopies:
    """Takes the values of one output.

    Args:
        schema: Its columns, where they are declared.

    Attributes:
        as_they_are: Classes whose values are taken as they are, so that a call can be spared.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.as_they_are: set[type] = set(UNCHANGING)
        #: Whether nothing that a column takes can change: then a row cannot, if it is a tuple.
        self._is_flat = schema is not None and not any("<" in type_ or type_ == "binary" for _, type_ in schema.columns)
        if self._is_flat:
            self.as_they_are.add(tuple)

    def take(self, value: Any) -> Any:
        """Return ``value`` as it is now.

        Raises:
            EncodingError: It can change, and cannot be copied.
        """
        if value.__class__ in self.as_they_are or (self._is_flat and isinstance(value, tuple)):
            return value
        try:
            return snapshot(value)
        except EncodingError:
            wrong = mistaken(value)
            if wrong:
                raise EncodingError(f"an output cannot be taken: {wrong}") from None
            raise
