"""Functions of JSON texts, with the meaning of ksqlDB's, which read and write JSON with Jackson.

What follows the first value of a text is ignored. A number with a point or an exponent is a ``Decimal``, which keeps
its digits.
"""

from __future__ import annotations

import json
import re
import unicodedata
from base64 import b64encode
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from keyed.sql.conversions import java_double, text_of, time_text
from keyed.sql.sql_types import SqlType

_SPACE = re.compile(r"[ \t\r\n]*")
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_ESCAPES = {chr(code): f"\\u{code:04X}" for code in range(32)}
_ESCAPES |= {sign: "\\" + name for sign, name in zip('"\\\b\t\n\f\r', '"\\btnfr', strict=True)}
#: Jackson writes no decimal with more zeros.
_MOST_ZEROS = 9999
#: The value of a text without a value.
MISSING = object()


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant)


def parse_json(text: str) -> Any:
    """Return the first value of a text, `MISSING` if it is empty.

    Raises:
        ValueError: It does not begin with JSON.
    """
    start = _SPACE.match(text).end()  # type: ignore[union-attr]
    if start == len(text):
        return MISSING
    value, end = _DECODER.raw_decode(text, start)
    after = text[end : end + 1]
    if isinstance(value, bool | None):
        is_apart = not after.isalnum() and after not in ("_", "$")
    else:
        is_apart = isinstance(value, str | list | dict) or not after or after in " \t\r\n"
    if not is_apart:
        raise ValueError(f"{text!r} is no JSON")
    return value


def json_text(value: Any, *, is_plain: bool = False) -> str:
    """Return a value as JSON; without exponents if `is_plain`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value)
        case Decimal():
            return _decimal_text(value, is_plain=is_plain)
        case float():
            shown = java_double(value)
            return shown if shown[-1].isdigit() else f'"{shown}"'
        case list():
            return f"[{','.join(json_text(each, is_plain=is_plain) for each in value)}]"
        case dict():
            fields = (f"{quoted(name)}:{json_text(each, is_plain=is_plain)}" for name, each in value.items())
            return f"{{{','.join(fields)}}}"
    return str(value)


def quoted(text: str) -> str:
    """Return a text as JSON."""
    return '"' + _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text) + '"'


def _decimal_text(value: Decimal, *, is_plain: bool) -> str:
    # Java's decimals have no negative zero.
    value = value or value.copy_abs()
    if not is_plain:
        return str(value)
    if abs(value.as_tuple().exponent) > _MOST_ZEROS:  # type: ignore[arg-type]
        raise ValueError(f"{value} has too many zeros")
    return format(value, "f")


@lru_cache(maxsize=256)
def _path_tokens(path: str) -> tuple[str, ...]:
    """Return the names and indices of a path: ``$.name``, ``$[1]``, ``$["any name"]``."""
    if not path.startswith("$"):
        raise ValueError(f"{path!r} does not begin with $")
    tokens, place = [], 1
    while place < len(path):
        if (found := re.compile(r'\["((?:[^"\\]|\\["\\])*)"\]', re.DOTALL).match(path, place)) is not None:
            tokens.append(re.sub(r"\\(.)", r"\1", found[1]))
        elif (found := re.compile(r"\.([\w:@]+)|\[(\w+)\]").match(path, place)) is not None and _is_name(found[0]):
            tokens.append(found[1] or found[2])
        else:
            raise ValueError(f'{path!r} is no path at character {place + 1}; write other names as $["name"]')
        place = found.end()
    return tuple(tokens)


def _is_name(text: str) -> bool:
    return all(sign in "._:@[]" or unicodedata.category(sign)[0] == "L" or sign.isdecimal() for sign in text)


def extract(text: str, path: str) -> str | None:
    """Return the value at a path: a text as it is, anything else as JSON; ``None`` if it is not there."""
    tokens = _path_tokens(path)
    value = parse_json(text)
    for token in tokens:
        if isinstance(value, list):
            place = int(token) if re.fullmatch("[0-9]{1,10}", token) else len(value)
            value = value[place] if place < len(value) else MISSING
        else:
            value = value.get(token, MISSING) if isinstance(value, dict) else MISSING
        if value is MISSING:
            return None
    if value is MISSING:
        return ""
    return value if isinstance(value, str) else json_text(value)


def is_json(text: str | None) -> bool:
    """Return whether a text begins with JSON."""
    try:
        return text is not None and parse_json(text) is not MISSING
    except ValueError:
        return False


def concat(*texts: str) -> str | None:
    """Return one object of objects, or one array of arrays and other values; ``None`` for a text without a value."""
    values = [parse_json(text) for text in texts]
    if any(value is MISSING for value in values):
        return None
    joined = values[0]
    if all(isinstance(value, dict) for value in values):
        joined = {name: each for value in values for name, each in value.items()}
    elif len(values) > 1:
        joined = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return json_text(joined, is_plain=True)


def array_contains(text: str | None, value: Any) -> bool | None:
    """Return whether an array has a value of the same type before its end or its first error."""
    if text is None:
        return None
    start = re.compile(r"[ \t\r\n]*\[").match(text)
    place = -1 if start is None else start.end()
    while place >= 0:
        place = _SPACE.match(text, place).end()  # type: ignore[union-attr]
        try:
            each, place = _DECODER.raw_decode(text, place)
        except ValueError:
            return False
        each = float(each) if isinstance(each, Decimal) else each
        if type(each) is type(value) and each == value:
            return True
        after = re.compile(r"[ \t\r\n]*,").match(text, place)
        place = -1 if after is None else after.end()
    return False


def array_length(text: str) -> int | None:
    """Return the number of elements of an array; ``None`` for other JSON."""
    value = parse_json(text)
    return len(value) if isinstance(value, list) else None


def items(text: str) -> list[str] | None:
    """Return the elements of an array as JSON; ``None`` for other JSON."""
    value = parse_json(text)
    return [json_text(each) for each in value] if isinstance(value, list) else None


def keys(text: str) -> list[str] | None:
    """Return the names of the fields of an object; ``None`` for other JSON."""
    value = parse_json(text)
    return list(value) if isinstance(value, dict) else None


def records(text: str) -> dict[str, str] | None:
    """Return the fields of an object, texts as they are and others as JSON; ``None`` for other JSON."""
    value = parse_json(text)
    if not isinstance(value, dict):
        return None
    return {name: each if isinstance(each, str) else json_text(each) for name, each in value.items()}


def json_value(value: Any, type_: SqlType) -> Any:
    """Return a value as plain JSON, as the JSON format writes it."""
    if value is None:
        return None
    match type_.base:
        case "DECIMAL":
            return float(value)
        case "BYTES":
            return b64encode(value).decode()
        case "DATE" | "TIME" | "TIMESTAMP":
            return text_of(type_)(value)
        case "ARRAY":
            return [json_value(each, type_.element) for each in value]
        case "MAP":
            return {text_of(type_.parts[0])(key): json_value(each, type_.element) for key, each in value.items()}
        case "STRUCT":
            return {name: json_value(value.get(name), each) for name, each in type_.fields}
    return value


def to_json_string(type_: SqlType) -> Callable[[Any], str]:
    """Return the function that writes values of a type as JSON."""
    return lambda value: json_text(_prepared(value, type_), is_plain=True)


def _prepared(value: Any, type_: SqlType) -> Any:
    if value is None:
        return None
    match type_.base:
        case "BYTES":
            return b64encode(value).decode()
        case "TIME":
            # Java writes the seconds alone.
            return time_text(value // 1000 * 1000)
        case "DATE" | "TIMESTAMP":
            return text_of(type_)(value)
        case "ARRAY":
            return [_prepared(each, type_.element) for each in value]
        case "MAP":
            name_of = text_of(type_.parts[0])
            # A null key is an error.
            if None in value:
                raise ValueError("a map with a null key is no JSON")
            return dict(sorted((name_of(key), _prepared(each, type_.element)) for key, each in value.items()))
        case "STRUCT":
            return {name: _prepared(value.get(name), each) for name, each in sorted(type_.fields)}
    return value
