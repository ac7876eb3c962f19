"""Tells of many values at once, at the speed of C, that storing them would not change them.

A value that is stored and read back equals what it was, but it may be of another class (an ``IntEnum`` for an ``int``,
an ``int`` for a ``float``), and some cannot be stored at all. Where a look at the classes of plain values shows that
none of this is so, they need not be encoded to be sure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from operator import itemgetter
from typing import Any, get_args, get_origin

Glance = Callable[[Collection[Any]], bool]

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def glance_of(type_: Any) -> Glance:
    """Return what tells of values of a declared type that they come back from storage as they are.

    It says no of those that have to be looked at one by one.
    """
    if type_ is object:
        return lambda values: _are(values, _PLAIN)
    if _is_plain(type_):
        return lambda values: _are(values, {type_})
    parts = get_args(type_)
    if type_ is list or (get_origin(type_) is list and _is_plain(parts[0])):
        classes = {*parts} or _PLAIN
        return lambda values: {list}.issuperset(map(type, values)) and _are(list(chain.from_iterable(values)), classes)
    if get_origin(type_) is tuple and parts and all(map(_is_plain, parts)):
        return _tuples(parts)
    return lambda values: not values


def _is_plain(type_: Any) -> bool:
    return isinstance(type_, type) and type_ in _PLAIN


def _tuples(parts: tuple[Any, ...]) -> Glance:
    fields = [(itemgetter(i), {part}) for i, part in enumerate(parts)]

    def glance(values: Collection[Any]) -> bool:
        if not ({tuple}.issuperset(map(type, values)) and {len(parts)}.issuperset(map(len, values))):
            return False
        return all(_are(list(map(field, values)), classes) for field, classes in fields)

    return glance


def _are(values: Collection[Any], classes: Collection[type]) -> bool:
    found = set(map(type, values))
    if not found.issubset(classes):
        return False
    if str not in found:
        return True
    texts: Iterable[str] = values if len(found) == 1 else (value for value in values if value.__class__ is str)
    try:
        # Half a character, which no encoding has, cannot be stored.
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True
