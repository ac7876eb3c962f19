"""Refused keys: keys of another type than the others.

1, 1.0 and True are equal in Python, so keys have one type, and are normalised on entry.
"""

from __future__ import annotations

from typing import Any

from keyed.base.shown import shown
from keyed.codec.keys import STORED_AS_THEY_ARE, encode_key, is_null, key_type, normalised, null_key
from keyed.errors import EncodingError, KeyTypeError


class KeyTypes:
    """Checks and normalises keys from sources without column types."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._seen: Any = None
        #: Type of the keys (`keyed.codec.keys.key_type`), empty before the first.
        self.name = ""

    def check(self, key: Any, element: Any) -> Any:
        """Return the key in its stored form (`keyed.codec.keys.normalised`), if it has the type of the earlier keys.

        Raises:
            NullKeyError: It is ``None``, or has a part that is ``None``.
            KeyTypeError: Its type, or a part's, differs from the first key's.
            EncodingError: Its type or value cannot be a key.
        """
        try:
            kind = self.kind(key)
        except RecursionError:
            raise EncodingError(f"operator {self._operator!r}: a key has tuples nested too deep; flatten it") from None
        if kind is self._seen or kind == self._seen:
            return key if kind in STORED_AS_THEY_ARE else self._stored(key, element)
        if is_null(key):
            # Keys of a source were checked before.
            raise null_key(self._operator, key, element, of_source=False)
        if self._seen is not None:
            raise KeyTypeError(
                f"operator {self._operator!r}: key {shown(key)} has type {kind!r}, the keys before it {self._seen!r}; "
                "convert keys to one type"
            )
        key = self._stored(key, element)
        self._seen, self.name = kind, key_type(key)
        return key

    def misfit(self, key: Any, committed: str) -> str | None:
        """Return the reason why a storable key does not have the type of the earlier keys; ``None`` if it has.

        Args:
            key: The key. The first key determines the type, if none is committed yet.
            committed: Type of the keys of the state; empty while it has none.
        """
        name = key_type(normalised(key))
        expected = self.name or committed
        if expected and name != expected:
            return f"key: it is of type {name}, the keys before it are of type {expected}"
        if not expected:
            self.check(key, None)
        return None

    def _stored(self, key: Any, element: Any) -> Any:
        try:
            if self._seen is None:
                encode_key(key)
            return normalised(key)
        except EncodingError as error:
            raise EncodingError(
                f"operator {self._operator!r}: key {shown(key)} of element {shown(element)}: {error}"
            ) from error

    def kind(self, key: Any) -> Any:
        """Return the type of a key; for a tuple the types of its parts."""
        return tuple(map(self.kind, key)) if isinstance(key, tuple) else key.__class__
