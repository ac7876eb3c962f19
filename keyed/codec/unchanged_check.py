"""A fast check, in C over many values, that decoding gives the same values back.

A value that is stored and read back equals what it was, but it may be of another class (an ``IntEnum`` for an ``int``,
an ``int`` for a ``float``), and some cannot be stored at all. If the classes of plain values rule this out, the values
need not be encoded to check it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from operator import itemgetter
from typing import Any, get_args, get_origin

UnchangedCheck = Callable[[Collection[Any]], bool]

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def unchanged_check_of(type_: Any) -> UnchangedCheck:
    """Return the check that values of a declared type come back from storage unchanged.

    It returns false for values that have to be checked one by one.
    """
    if type_ is object:
        return lambda values: _all_of(values, _PLAIN)
    if _is_plain(type_):
        return lambda values: _all_of(values, {type_})
    parts = get_args(type_)
    if type_ is list or (get_origin(type_) is list and _is_plain(parts[0])):
        classes = {*parts} or _PLAIN
        return lambda values: (
            {list}.issuperset(map(type, values)) and _all_of(list(chain.from_iterable(values)), classes)
        )
    if get_origin(type_) is tuple and parts and all(map(_is_plain, parts)):
        return _tuples(parts)
    return lambda values: not values


def _is_plain(type_: Any) -> bool:
    return isinstance(type_, type) and type_ in _PLAIN


def _tuples(parts: tuple[Any, ...]) -> UnchangedCheck:
    fields = [(itemgetter(i), {part}) for i, part in enumerate(parts)]

    def check(values: Collection[Any]) -> bool:
        if not ({tuple}.issuperset(map(type, values)) and {len(parts)}.issuperset(map(len, values))):
            return False
        return all(_all_of(list(map(field, values)), classes) for field, classes in fields)

    return check


def _all_of(values: Collection[Any], classes: Collection[type]) -> bool:
    types = set(map(type, values))
    if not types.issubset(classes):
        return False
    if str not in types:
        return True
    texts: Iterable[str] = values if len(types) == 1 else (value for value in values if value.__class__ is str)
    try:
        # Half a character, which no encoding has, cannot be stored.
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True
