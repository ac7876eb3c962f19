"""Messages for values that the codecs refuse, with the type, the rule and the remedy.

Codecs take data, not objects: stored values must be readable years later without the code that wrote them, and reading
must never run code from the bytes. Subclasses of the basic types (``numpy.float64``, ``pandas.Timestamp``,
``OrderedDict``) are refused, because they would silently become their base class.
"""

from __future__ import annotations

import enum
from typing import Any

from keyed.rows import fields_of, names_of_class

#: The remedy for rows that a stream refuses.
BAD_ROW_REMEDY = "filter such rows, or give keyed.stream(..., on_bad_row=OutputTag(...))"
_BASES = (int, float, str, bytes, tuple, list, dict, set, frozenset)


def type_name(type_: Any) -> str:
    """Return the name of a type as a user writes it: ``int``, ``numpy.int64``, ``list[int]``."""
    if not isinstance(type_, type) or hasattr(type_, "__args__"):
        return str(type_).replace("typing.", "")
    if type_.__module__ in {"builtins", "__main__"}:
        return type_.__qualname__
    return f"{type_.__module__}.{type_.__qualname__}"


def remedy(cls: type, *, role: str) -> str:
    """Return the remedy for a value of a class that no codec supports.

    Args:
        cls: The value's class.
        role: ``"key"`` or ``"value"``; declared classes with fields can be values.

    Returns:
        The end of a message, without a full stop.
    """
    module = cls.__module__.partition(".")[0]
    if cls.__name__ == "Timestamp" and module == "pandas":
        return "convert it with .to_pydatetime()"
    if module in {"numpy", "pyarrow", "pandas"}:
        return "convert it to a plain Python value first (numpy: .item(), pyarrow: .as_py(), pandas: .tolist())"
    if issubclass(cls, enum.Enum):
        return "use its .value" if role == "key" else "declare the enum as the state's type, or use its .value"
    if cls is bytearray or cls is memoryview:
        return "convert it with bytes(value)"
    if role == "key" and issubclass(cls, (list, set, frozenset, dict)):
        return "convert it to a tuple, for example tuple(value) or tuple(sorted(value))"
    for base in _BASES:
        if issubclass(cls, base) and fields_of(cls) is None:
            return f"convert it with {base.__name__}(value)"
    if role == "key":
        return "use a tuple of its fields"
    if names_of_class(cls):
        return f"declare the class as the type of the state, for example ValueState({cls.__name__})"
    return "store plain data: numbers, text, bytes, dates and times, or lists, tuples, dicts and sets of them"
