"""Keys of one operator have one type: Python takes 1, 1.0 and True for the same dictionary key."""

from __future__ import annotations

from typing import Any

from keyed.codec.keys import encode_key
from keyed.errors import EncodingError, KeyTypeError, NullKeyError

__all__ = ["KeyTypes"]

_NAN = float("nan")


class KeyTypes:
    """Checks keys from sources whose columns have no types of their own."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._seen: Any = None
        #: The class of the last key that was checked, where a key of that class needs no look: it is not a tuple.
        self.last: Any = None
        self._floats = False

    def check(self, key: Any, element: Any) -> Any:
        """Give ``key`` back, if it is a key and of the type of those before it. All NaN are one object and so one key.

        Raises:
            NullKeyError: It is ``None``, or has a part that is.
            KeyTypeError: Its type, or a part's, differs from the first key's.
            EncodingError: It is the first key, and of a type that cannot be a key.
        """
        kind = self.kind(key)
        if kind is self._seen or kind == self._seen:
            return one_nan(key) if self._floats else key
        if key is None or (isinstance(key, tuple) and None in key):
            raise NullKeyError(
                f"operator {self._operator!r}: key {key!r} of element {element!r} is null; filter such rows, or give "
                "keyed.stream(..., on_bad_row=OutputTag(...))"
            )
        if self._seen is not None:
            raise KeyTypeError(
                f"operator {self._operator!r}: key {key!r} has type {kind!r}, the keys before it {self._seen!r}; "
                "convert keys to one type"
            )
        try:
            encode_key(key)
        except EncodingError as error:
            raise EncodingError(f"operator {self._operator!r}: key {key!r} of element {element!r}: {error}") from error
        self._seen = kind
        self._floats = "float" in repr(kind)
        self.last = None if isinstance(kind, tuple) or self._floats else kind
        return one_nan(key) if self._floats else key

    def kind(self, key: Any) -> Any:
        """The type of a key; for a tuple the types of its parts."""
        cls = key.__class__
        if isinstance(key, tuple):
            return tuple(self.kind(part) for part in key)
        return cls


def one_nan(key: Any) -> Any:
    """``key`` with each NaN replaced by the same object: a dictionary finds a NaN by its identity only."""
    if isinstance(key, tuple):
        return key if all(one_nan(part) is part for part in key) else tuple(map(one_nan, key))
    return _NAN if key.__class__ is float and key != key else key  # noqa: PLR0124 - true of NaN alone
