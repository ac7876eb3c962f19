"""The scalar functions, with ksqlDB's names and meaning.

Each has one or more forms: the types of its arguments, the type of its result, and a Python function. A function of a
form that is strict is null if an argument is null.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import random
import re
import struct as binary
import time
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any, TypeAlias

import attrs

from keyed.sql.conversions import WIDE, is_implicit, timestamp_text, wrapped
from keyed.sql.java_formats import format_moment, parse_moment
from keyed.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INTEGER,
    NULL,
    STRING,
    TIME,
    TIMES,
    TIMESTAMP,
    SqlType,
    array,
    common_type,
    decimal,
    map_of,
    struct,
)

#: A type, or the name of a family of types: ``number``, ``integer``, ``decimal``, ``array``, ``map``, ``struct``,
#: ``any``, ``common`` (all such arguments have one common type), ``unit``.
Pattern: TypeAlias = SqlType | str
Result: TypeAlias = SqlType | Callable[[Sequence[SqlType]], SqlType | None]
_DAY_MS = 86_400_000


@attrs.frozen
class Form:
    """A form of a function."""

    takes: tuple[Pattern, ...]
    result: Result
    call: Callable[..., Any]
    is_strict: bool
    is_variadic: bool


@attrs.frozen
class Function:
    """A function with its forms."""

    name: str
    forms: list[Form]

    @property
    def shown(self) -> str:
        """Its forms, for messages."""
        return " or ".join(
            "(" + ", ".join(str(each) for each in form.takes) + (", ..." if form.is_variadic else "") + ")"
            for form in self.forms
        )


FUNCTIONS: dict[str, Function] = {}


def _function(
    name: str,
    takes: Sequence[Pattern],
    result: Result,
    call: Callable[..., Any],
    *,
    strict: bool = True,
    many: bool = False,
) -> None:
    for each in name.split():
        FUNCTIONS.setdefault(each, Function(each, [])).forms.append(Form(tuple(takes), result, call, strict, many))


def _fits(pattern: Pattern, type_: SqlType, *, exact: bool) -> bool:
    if isinstance(pattern, SqlType):
        return type_ in (pattern, NULL) or (not exact and is_implicit(type_, pattern))
    if type_ == NULL:
        return True
    match pattern:
        case "any" | "common":
            return True
        case "number":
            return type_.is_number
        case "integer":
            return type_ in (INTEGER, BIGINT)
        case "strings":
            return type_ == array(STRING)
        case "unit":
            return type_ == STRING
    return type_.base == pattern.upper()


def resolve(name: str, types: Sequence[SqlType]) -> tuple[SqlType, Sequence[SqlType], Callable[..., Any], bool] | None:
    """Return result type, types of the arguments, the function and whether it is strict; ``None`` if no form fits."""
    for exact in (True, False):
        for form in FUNCTIONS[name].forms:
            takes: tuple[Pattern, ...] = form.takes
            if form.is_variadic:
                if len(types) < len(takes):
                    continue
                takes = (*takes, *[takes[-1]] * (len(types) - len(takes)))
            if len(takes) != len(types):
                continue
            if not all(_fits(pattern, type_, exact=exact) for pattern, type_ in zip(takes, types, strict=True)):
                continue
            common: SqlType | None = NULL
            for pattern, type_ in zip(takes, types, strict=True):
                if pattern == "common" and common is not None:
                    common = common_type(common, type_)
            if common is None:
                continue
            targets = [
                pattern
                if isinstance(pattern, SqlType) and type_ != NULL
                else common
                if pattern == "common" and type_ != NULL
                else type_
                for pattern, type_ in zip(takes, types, strict=True)
            ]
            result = form.result if isinstance(form.result, SqlType) else form.result(targets)
            if result is not None:
                return result, targets, form.call, form.is_strict
    return None


def _first(types: Sequence[SqlType]) -> SqlType:
    return types[0]


def _common(types: Sequence[SqlType]) -> SqlType:
    return next((type_ for type_ in types if type_ != NULL), NULL)


def _element(types: Sequence[SqlType]) -> SqlType:
    return types[0].element if types[0].parts else NULL


# Numbers.


def _round(value: float, places: int = 0) -> float:
    if math.isnan(value) or math.isinf(value):
        return value
    exact = Decimal(repr(value))
    if value >= 0:
        return float(exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, context=WIDE))
    # As Java's Math.round: halves towards positive infinity.
    shifted = (exact.scaleb(places) + Decimal("0.5")).to_integral_value(ROUND_FLOOR)
    return float(shifted.scaleb(-places))


def _round_decimal(value: Decimal, places: int = 0) -> Decimal:
    if value >= 0:
        return value.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, context=WIDE)
    shifted = (value.scaleb(places) + Decimal("0.5")).to_integral_value(ROUND_FLOOR)
    return shifted.scaleb(-places)


def _padded(value: Decimal, places: int) -> Decimal:
    return _round_decimal(value, places).quantize(Decimal(1).scaleb(value.as_tuple().exponent), context=WIDE)  # type: ignore[arg-type]


def _trunc(value: float, places: int = 0) -> float:
    return float(Decimal(repr(value)).scaleb(places).__trunc__() / Decimal(10) ** places)


def _cbrt(value: float) -> float:
    """Return the cube root, exactly where it is a whole number, as Java does and some C libraries do not."""
    root = math.cbrt(value)
    return float(round(root)) if math.isfinite(root) and round(root) ** 3 == value else root


def _java_long(value: float) -> int:
    return max(-(2**63), min(2**63 - 1, int(value)))


def _whole(types: Sequence[SqlType]) -> SqlType:
    return decimal(types[0].precision, 0) if types[0].base == "DECIMAL" else types[0]


def _rounded_type(types: Sequence[SqlType]) -> SqlType:
    precision, scale = types[0].precision, types[0].scale
    return decimal(max(1, min(38, precision - scale + (1 if scale else 0))), 0) if scale else types[0]


_function("ABS", [INTEGER], INTEGER, lambda x: wrapped(abs(x), "INTEGER"))
_function("ABS", [BIGINT], BIGINT, lambda x: wrapped(abs(x), "BIGINT"))
_function("ABS", [DOUBLE], DOUBLE, abs)
_function("ABS", ["decimal"], _first, abs)
for _name, _mode in (("CEIL", ROUND_CEILING), ("FLOOR", ROUND_FLOOR)):
    _function(_name, [INTEGER], INTEGER, lambda x: x)
    _function(_name, [BIGINT], BIGINT, lambda x: x)
    _function(_name, [DOUBLE], DOUBLE, lambda x, m=_mode: float(Decimal(repr(x)).to_integral_value(m)))
    _function(
        _name,
        ["decimal"],
        _first,
        lambda x, m=_mode: x.to_integral_value(m).quantize(Decimal(1).scaleb(x.as_tuple().exponent), context=WIDE),
    )
_function("ROUND", [INTEGER], INTEGER, lambda x: x)
_function("ROUND", [BIGINT], BIGINT, lambda x: x)
_function("ROUND", [DOUBLE], BIGINT, lambda x: _java_long(_round(x)))
_function("ROUND", ["decimal"], _whole, _round_decimal)
_function("ROUND", [DOUBLE, INTEGER], DOUBLE, _round)
_function("ROUND", ["decimal", INTEGER], _first, _padded)
_function("TRUNC", [INTEGER], INTEGER, lambda x: x)
_function("TRUNC", [BIGINT], BIGINT, lambda x: x)
_function("TRUNC", [DOUBLE], BIGINT, _java_long)
_function("TRUNC", ["decimal"], _whole, lambda x: Decimal(int(x)))
_function("TRUNC", [DOUBLE, INTEGER], DOUBLE, _trunc)
_function(
    "TRUNC",
    ["decimal", INTEGER],
    _first,
    lambda x, n: Decimal(int(x.scaleb(n))).scaleb(-n).quantize(Decimal(1).scaleb(x.as_tuple().exponent), context=WIDE),
)
_function("SQRT", [DOUBLE], DOUBLE, lambda x: math.sqrt(x) if x >= 0 else math.nan)
_function("CBRT", [DOUBLE], DOUBLE, _cbrt)
_function("EXP", [DOUBLE], DOUBLE, math.exp)
_function("LN", [DOUBLE], DOUBLE, lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan)
_function("LOG", [DOUBLE], DOUBLE, lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan)


def _log(base: float, value: float) -> float:
    if base <= 0 or base == 1 or value <= 0:
        return -math.inf if value == 0 and base > 1 else math.nan
    return math.log(value) / math.log(base)


_function("LOG", [DOUBLE, DOUBLE], DOUBLE, _log)


def _power(base: float, exponent: float) -> float:
    try:
        found = base**exponent
    except ZeroDivisionError:
        return math.inf
    except OverflowError:
        return math.inf
    return found if isinstance(found, float) else math.nan


_function("POWER", [DOUBLE, DOUBLE], DOUBLE, _power)
_function("SIGN", [INTEGER], INTEGER, lambda x: (x > 0) - (x < 0))
_function("SIGN", [DOUBLE], INTEGER, lambda x: (x > 0) - (x < 0))
_function("RANDOM", [], DOUBLE, random.random)
_function("PI", [], DOUBLE, lambda: math.pi)
for _name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "atan", "degrees", "radians"):
    _function(_name.upper(), [DOUBLE], DOUBLE, getattr(math, _name))
_function("ASIN", [DOUBLE], DOUBLE, lambda x: math.asin(x) if -1 <= x <= 1 else math.nan)
_function("ACOS", [DOUBLE], DOUBLE, lambda x: math.acos(x) if -1 <= x <= 1 else math.nan)
_function("ATAN2", [DOUBLE, DOUBLE], DOUBLE, math.atan2)
_function("COT", [DOUBLE], DOUBLE, lambda x: 1 / math.tan(x) if math.tan(x) else math.inf)


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), default=None)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), default=None)


_SCALARS = ("INTEGER", "BIGINT", "DOUBLE", "DECIMAL", "STRING", "BYTES", "DATE", "TIME", "TIMESTAMP", "BOOLEAN")


def _scalar_common(types: Sequence[SqlType]) -> SqlType | None:
    found = next((type_ for type_ in types if type_.base in TIMES), _common(types))
    return found if found.base in _SCALARS else None


_function("GREATEST", ["common"], _scalar_common, _greatest, strict=False, many=True)
_function("LEAST", ["common"], _scalar_common, _least, strict=False, many=True)


def _distance(lat1: float, lon1: float, lat2: float, lon2: float, unit: str | None = None) -> float | None:
    if None in (lat1, lon1, lat2, lon2):
        return None
    for value, most in ((lat1, 90), (lat2, 90), (lon1, 180), (lon2, 180)):
        if abs(value) > most:
            raise ValueError(f"{value} is out of range")
    radius = 3959 if (unit or "KM").lower() in ("mile", "miles", "mi") else 6371
    dlat, dlon = math.radians(lat2 - lat1), math.radians(lon2 - lon1)
    a = math.sin(dlat / 2) ** 2 + math.sin(dlon / 2) ** 2 * math.cos(math.radians(lat1)) * math.cos(math.radians(lat2))
    return radius * 2 * math.asin(math.sqrt(a))


_function("GEO_DISTANCE", [DOUBLE] * 4, DOUBLE, _distance)
_function("GEO_DISTANCE", [*[DOUBLE] * 4, STRING], DOUBLE, _distance, strict=False)

# Texts.


def _initcap(text: str) -> str:
    return re.sub(r"\S+", lambda found: found.group()[:1].upper() + found.group()[1:].lower(), text)


def _substring(text: Any, start: int, length: int | None = None) -> Any:
    if start == 0:
        first = 0
    elif start > 0:
        first = min(start - 1, len(text))
    else:
        first = max(0, len(text) + start)
    if length is None:
        return text[first:]
    return text[first : first + max(0, length)]


def _pad(text: Any, length: int, padding: Any, *, left: bool) -> Any:
    if length < 0 or not padding:
        return None
    missing = length - len(text)
    if missing <= 0:
        return text[:length]
    filled = (padding * (missing // len(padding) + 1))[:missing]
    return filled + text if left else text + filled


def _instr(text: str, part: str, position: int = 1, occurrence: int = 1) -> int:
    if not part or position == 0 or occurrence < 1:
        return 0
    if position > 0:
        found = position - 2
        for _ in range(occurrence):
            found = text.find(part, found + 1)
            if found < 0:
                return 0
        return found + 1
    end = len(text) + position + 1
    for _ in range(occurrence):
        found = text.rfind(part, 0, end + len(part) - 1)
        if found < 0:
            return 0
        end = found
    return found + 1


def _java_regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\(\?<([A-Za-z])", r"(?P<\1", pattern))


def _regexp_extract(pattern: str, text: str, group: int = 0) -> Any:
    found = _java_regex(pattern).search(text)
    if found is None or group > len(found.groups()):
        return None
    return found.group(group)


def _regexp_extract_all(pattern: str, text: str, group: int = 0) -> Any:
    expression = _java_regex(pattern)
    if group > expression.groups:
        return None
    return [found.group(group) for found in expression.finditer(text)]


def _regexp_replace(text: str, pattern: str, new: str) -> str:
    return _java_regex(pattern).sub(re.sub(r"\$(\d+)", r"\\\1", new), text)


def _regexp_split(text: str, pattern: str) -> list[str]:
    if not pattern:
        return list(text)
    found, start = [], 0
    for match in _java_regex(pattern).finditer(text):
        found.append(text[start : match.start()])
        start = match.end()
    return [*found, text[start:]]


def _split(text: Any, delimiter: Any) -> Any:
    if not delimiter:
        return [text[i : i + 1] for i in range(len(text))] or [text]
    return text.split(delimiter)


def _split_to_map(text: str, entry: str, pair: str) -> Any:
    if not entry or not pair:
        return None
    found = {}
    for each in text.split(entry):
        key, *values = each.split(pair)
        if values:
            found[key] = values[0]
    return found


def _mask(text: str, *, upper: Any = "X", lower: Any = "x", digit: Any = "n", other: Any = "-", part: slice) -> str:
    def one(sign: str) -> str:
        mask = upper if sign.isupper() else lower if sign.islower() else digit if sign.isdigit() else other
        return sign if mask is None else str(mask)

    signs = list(text)
    signs[part] = [one(sign) for sign in signs[part]]
    return "".join(signs)


_function("UCASE", [STRING], STRING, str.upper)
_function("LCASE", [STRING], STRING, str.lower)
_function("TRIM", [STRING], STRING, str.strip)
_function("INITCAP", [STRING], STRING, _initcap)
_function("LEN", [STRING], INTEGER, len)
_function("LEN", [BYTES], INTEGER, len)
for _type in (STRING, BYTES):
    _function("SUBSTRING", [_type, INTEGER], _type, _substring)
    _function("SUBSTRING", [_type, INTEGER, INTEGER], _type, _substring)
    _function("LPAD", [_type, INTEGER, _type], _type, lambda t, n, p: _pad(t, n, p, left=True))
    _function("RPAD", [_type, INTEGER, _type], _type, lambda t, n, p: _pad(t, n, p, left=False))
    _function("SPLIT", [_type, _type], array(_type), _split)
_function("REPLACE", [STRING, STRING, STRING], STRING, str.replace)
_function("INSTR", [STRING, STRING], INTEGER, _instr)
_function("INSTR", [STRING, STRING, INTEGER], INTEGER, _instr)
_function("INSTR", [STRING, STRING, INTEGER, INTEGER], INTEGER, _instr)
_function(
    "CONCAT", [STRING], STRING, lambda *texts: "".join(t for t in texts if t is not None), strict=False, many=True
)
_function("CONCAT", [BYTES], BYTES, lambda *parts: b"".join(p for p in parts if p is not None), strict=False, many=True)
_function(
    "CONCAT_WS",
    [STRING, STRING],
    STRING,
    lambda s, *texts: None if s is None else s.join(t for t in texts if t is not None),
    strict=False,
    many=True,
)
_function(
    "CONCAT_WS",
    [BYTES, BYTES],
    BYTES,
    lambda s, *texts: None if s is None else s.join(t for t in texts if t is not None),
    strict=False,
    many=True,
)
_function("CHR", [INTEGER], STRING, lambda x: chr(x) if x >= 0 else _raise(x))
_function(
    "CHR",
    [STRING],
    STRING,
    lambda x: (
        x.encode("ascii").decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16")
        if re.fullmatch(r"(\\u[0-9a-fA-F]{4})+", x)
        else None
    ),
)
_function("REGEXP_EXTRACT", [STRING, STRING], STRING, _regexp_extract)
_function("REGEXP_EXTRACT", [STRING, STRING, INTEGER], STRING, _regexp_extract)
_function("REGEXP_EXTRACT_ALL", [STRING, STRING], array(STRING), _regexp_extract_all)
_function("REGEXP_EXTRACT_ALL", [STRING, STRING, INTEGER], array(STRING), _regexp_extract_all)
_function("REGEXP_REPLACE", [STRING, STRING, STRING], STRING, _regexp_replace)
_function("REGEXP_SPLIT_TO_ARRAY", [STRING, STRING], array(STRING), _regexp_split)
_function("SPLIT_TO_MAP", [STRING, STRING, STRING], map_of(STRING, STRING), _split_to_map)
_function("MASK", [STRING], STRING, lambda t: _mask(t, part=slice(None)))
_function("MASK_LEFT", [STRING, INTEGER], STRING, lambda t, n: _mask(t, part=slice(0, n)))
_function("MASK_RIGHT", [STRING, INTEGER], STRING, lambda t, n: _mask(t, part=slice(max(0, len(t) - n), None)))
_function("MASK_KEEP_LEFT", [STRING, INTEGER], STRING, lambda t, n: _mask(t, part=slice(n, None)))
_function("MASK_KEEP_RIGHT", [STRING, INTEGER], STRING, lambda t, n: _mask(t, part=slice(0, max(0, len(t) - n))))
_function("MD5", [STRING], STRING, lambda t: hashlib.md5(t.encode(), usedforsecurity=False).hexdigest())
_function("UUID", [], STRING, lambda: str(uuid.uuid4()))
_function(
    "ELT",
    [INTEGER, STRING],
    STRING,
    lambda n, *t: t[n - 1] if n and 1 <= n <= len(t) else None,
    strict=False,
    many=True,
)
_function(
    "FIELD",
    [STRING, STRING],
    INTEGER,
    lambda x, *t: t.index(x) + 1 if x is not None and x in t else 0,
    strict=False,
    many=True,
)


def _raise(value: Any) -> Any:
    raise ValueError(f"{value!r} is out of range")


def _charset(data: str, source: str, target: str) -> str:
    match source.lower():
        case "hex":
            digits = data[2:] if data.startswith("0x") else data[2:-1] if data.upper().startswith("X'") else data
            raw = binascii.unhexlify(digits if len(digits) % 2 == 0 else "0" + digits)
        case "base64":
            raw = base64.b64decode(data, validate=True)
        case _:
            raw = data.encode(source, "replace")
    match target.lower():
        case "hex":
            return binascii.hexlify(raw).decode()
        case "base64":
            return base64.b64encode(raw).decode()
        case "ascii":
            return raw.decode("ascii", "replace")
    return raw.decode(target, "replace")


def _to_bytes(text: str, encoding: str) -> bytes:
    match encoding.lower():
        case "hex":
            digits = text[2:] if text.startswith("0x") else text[2:-1] if text.upper().startswith("X'") else text
            return binascii.unhexlify(digits)
        case "base64":
            return base64.b64decode(text, validate=True)
        case "ascii" | "utf8":
            return text.encode(encoding)
    return bytes(_raise(encoding))


def _from_bytes(data: bytes, encoding: str) -> str:
    match encoding.lower():
        case "hex":
            return data.hex().upper()
        case "base64":
            return base64.b64encode(data).decode()
        case "ascii" | "utf8":
            return data.decode(encoding)
    return str(_raise(encoding))


def _unpack(sign: str) -> Callable[..., Any]:
    def unpacked(data: bytes, order: str = "BIG_ENDIAN") -> Any:
        return binary.unpack((">" if order.upper() == "BIG_ENDIAN" else "<") + sign, data)[0]

    return unpacked


_function("ENCODE", [STRING, STRING, STRING], STRING, _charset)
_function("TO_BYTES", [STRING, STRING], BYTES, _to_bytes)
_function("FROM_BYTES", [BYTES, STRING], STRING, _from_bytes)
for _name, _sign, _type in (("INT", "i", INTEGER), ("BIGINT", "q", BIGINT), ("DOUBLE", "d", DOUBLE)):
    _function(f"{_name}_FROM_BYTES", [BYTES], _type, _unpack(_sign))
    _function(f"{_name}_FROM_BYTES", [BYTES, STRING], _type, _unpack(_sign))

# Nulls.
_function(
    "COALESCE", ["common"], _common, lambda *v: next((x for x in v if x is not None), None), strict=False, many=True
)
_function("IFNULL", ["common", "common"], _common, lambda x, y: y if x is None else x, strict=False)
_function("NULLIF", ["common", "common"], _common, lambda x, y: None if x == y else x, strict=False)
_function("AS_VALUE", ["any"], _first, lambda x: x, strict=False)

# Arrays and maps.


def _order(value: Any) -> tuple[bool, Any]:
    return value is None, value


def _distinct(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for each in values:
        if not any(_same(each, other) for other in found):
            found.append(each)
    return found


def _same(a: Any, b: Any) -> bool:
    return (type(a) is type(b) and bool(a == b)) or (a == b and isinstance(a, Decimal | int | float) and a is not True)


def _array_sort(values: Sequence[Any], order: str = "ASC") -> Any:
    direction = order.strip().upper()
    if direction not in ("ASC", "ASCENDING", "DESC", "DESCENDING"):
        return None
    known = sorted((value for value in values if value is not None), reverse=direction.startswith("DESC"))
    return known + [None] * (len(values) - len(known))


def _slice(values: Sequence[Any], start: int | None, end: int | None) -> Any:
    if values is None:
        return None
    first = 1 if start is None else start
    last = len(values) if end is None else end
    if not (1 <= first <= last <= len(values)):
        return None
    return list(values[first - 1 : last])


def _array_join(values: Any, separator: str = ",") -> Any:
    from keyed.sql.conversions import java_double

    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        return java_double(value) if isinstance(value, float) else "null" if value is None else str(value)

    return None if values is None else ("" if separator is None else separator).join(map(shown, values))


def _array_concat(a: Any, b: Any) -> Any:
    return None if a is None and b is None else [*(a or ()), *(b or ())]


def _map_union(a: Any, b: Any) -> Any:
    return None if a is None and b is None else {**(a or {}), **(b or {})}


def _contains(values: Any, value: Any) -> Any:
    return None if values is None else any(_same(each, value) or each is value for each in values)


def _two_arrays(types: Sequence[SqlType]) -> SqlType | None:
    found = [type_ for type_ in types if type_ != NULL]
    return found[0] if all(type_ == found[0] for type_ in found) else None


def _json_of_null(_: Any) -> None:
    return None


def _max_of(values: Any) -> Any:
    known = [each for each in values if each is not None]
    return max(known) if known else None


def _min_of(values: Any) -> Any:
    known = [each for each in values if each is not None]
    return min(known) if known else None


def _series(start: int, end: int, step: int | None = None) -> list[int]:
    if step is None:
        step = 1 if end >= start else -1
    if step == 0 or (end - start) * step < 0:
        raise ValueError("the step has the wrong sign")
    return list(range(start, end + (1 if step > 0 else -1), step))


_function("ARRAY_LENGTH", ["array"], INTEGER, len)
_function("ARRAY_MAX", ["array"], _element, _max_of)
_function("ARRAY_MIN", ["array"], _element, _min_of)
_function("ARRAY_SORT", ["array"], _first, _array_sort)
_function("ARRAY_SORT", ["array", STRING], _first, _array_sort)
_function("ARRAY_CONTAINS", ["array", "any"], BOOLEAN, _contains, strict=False)
_function("ARRAY_DISTINCT", ["array"], _first, _distinct)
_function(
    "ARRAY_EXCEPT",
    ["array", "array"],
    _two_arrays,
    lambda a, b: [x for x in _distinct(a) if x not in b],
)
_function("ARRAY_INTERSECT", ["array", "array"], _two_arrays, lambda a, b: [x for x in _distinct(a) if x in b])
_function("ARRAY_UNION", ["array", "array"], _two_arrays, lambda a, b: _distinct([*a, *b]))
_function("ARRAY_CONCAT", ["array", "array"], _two_arrays, _array_concat, strict=False)
_function(
    "ARRAY_REMOVE",
    ["array", "any"],
    _first,
    lambda a, x: None if a is None else [each for each in a if each != x],
    strict=False,
)
_function("ARRAY_JOIN", ["array"], STRING, _array_join, strict=False)
_function("ARRAY_JOIN", ["array", STRING], STRING, _array_join, strict=False)
_function("SLICE", ["array", INTEGER, INTEGER], _first, _slice, strict=False)
_function("GENERATE_SERIES", [INTEGER, INTEGER], array(INTEGER), _series)
_function("GENERATE_SERIES", [INTEGER, INTEGER, INTEGER], array(INTEGER), _series)
_function("GENERATE_SERIES", [BIGINT, BIGINT], array(BIGINT), _series)
_function("GENERATE_SERIES", [BIGINT, BIGINT, INTEGER], array(BIGINT), _series)


_function("MAP_KEYS", ["map"], lambda t: array(t[0].parts[0]) if t[0].parts else NULL, list)
_function("MAP_VALUES", ["map"], lambda t: array(t[0].parts[1]) if t[0].parts else NULL, lambda m: list(m.values()))
_function("MAP_UNION", ["map", "map"], _two_arrays, _map_union, strict=False)
_function(
    "AS_MAP",
    ["strings", "array"],
    lambda t: map_of(STRING, t[1].element) if t[1].parts else None,
    lambda k, v: dict(zip(k, v, strict=False)),
)


def _entries(types: Sequence[SqlType]) -> SqlType | None:
    if not types[0].parts:
        return None
    key, value = types[0].parts
    return array(struct(("K", key), ("V", value)))


_function(
    "ENTRIES",
    ["map", BOOLEAN],
    _entries,
    lambda m, ordered: [{"K": k, "V": m[k]} for k in (sorted(m) if ordered else m)],
)

# Dates and times.
_UNIT_MS = {"MILLISECONDS": 1, "SECONDS": 1000, "MINUTES": 60_000, "HOURS": 3_600_000, "DAYS": _DAY_MS}


def _unit_ms(unit: str) -> int:
    name = unit.upper()
    return _UNIT_MS[name if name.endswith("S") else name + "S"]


_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSS"


def _convert_zone(moment: int, source: str, target: str) -> int:
    return parse_moment(format_moment(parse_moment(timestamp_text(moment), _ISO, source), _ISO, target), _ISO)


_function("UNIX_TIMESTAMP", [], BIGINT, lambda: time.time_ns() // 1_000_000)
_function("UNIX_TIMESTAMP", [TIMESTAMP], BIGINT, lambda x: x)
_function("UNIX_DATE", [], INTEGER, lambda: time.time_ns() // (1_000_000 * _DAY_MS))
_function("UNIX_DATE", [DATE], INTEGER, lambda x: x)
_function("FROM_UNIXTIME", [BIGINT], TIMESTAMP, lambda x: x)
_function("FROM_DAYS", [INTEGER], DATE, lambda x: x)
_function("CONVERT_TZ", [TIMESTAMP, STRING, STRING], TIMESTAMP, _convert_zone)
_function("PARSE_TIMESTAMP STRINGTOTIMESTAMP_", [STRING, STRING], TIMESTAMP, parse_moment)
_function("PARSE_TIMESTAMP STRINGTOTIMESTAMP_", [STRING, STRING, STRING], TIMESTAMP, parse_moment)
_function("STRINGTOTIMESTAMP", [STRING, STRING], BIGINT, parse_moment)
_function("STRINGTOTIMESTAMP", [STRING, STRING, STRING], BIGINT, parse_moment)
_function("TIMESTAMPTOSTRING", [BIGINT, STRING], STRING, format_moment)
_function("TIMESTAMPTOSTRING", [BIGINT, STRING, STRING], STRING, format_moment)
_function("FORMAT_TIMESTAMP", [TIMESTAMP, STRING], STRING, format_moment)
_function("FORMAT_TIMESTAMP", [TIMESTAMP, STRING, STRING], STRING, format_moment)
# As Java's SimpleDateFormat: text after the date is ignored.
_function("PARSE_DATE", [STRING, STRING], DATE, lambda t, p: parse_moment(t, p, is_prefix=True) // _DAY_MS)
_function("STRINGTODATE", [STRING, STRING], INTEGER, lambda t, p: parse_moment(t, p) // _DAY_MS)
_function("FORMAT_DATE", [DATE, STRING], STRING, lambda d, p: format_moment(d * _DAY_MS, p))
_function("DATETOSTRING", [INTEGER, STRING], STRING, lambda d, p: format_moment(d * _DAY_MS, p))
_function("PARSE_TIME", [STRING, STRING], TIME, lambda t, p: parse_moment(t, p) % _DAY_MS)
_function("FORMAT_TIME", [TIME, STRING], STRING, format_moment)
del FUNCTIONS["STRINGTOTIMESTAMP_"]
for _name, _direction in (("ADD", 1), ("SUB", -1)):
    _function(
        f"TIMESTAMP{_name}",
        ["unit", INTEGER, TIMESTAMP],
        TIMESTAMP,
        lambda u, n, t, s=_direction: t + s * n * _unit_ms(u),
    )
    _function(
        f"DATE{_name}",
        ["unit", INTEGER, DATE],
        DATE,
        lambda u, n, d, s=_direction: (d * _DAY_MS + s * n * _unit_ms(u)) // _DAY_MS,
    )
    _function(
        f"TIME{_name}", ["unit", INTEGER, TIME], TIME, lambda u, n, t, s=_direction: (t + s * n * _unit_ms(u)) % _DAY_MS
    )


# JSON.


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


def _json_text(value: Any) -> str:
    return json.dumps(_plain(value), separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value) if value != value.to_integral_value() or "." in str(value) else int(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _extract(text: str, path: str) -> Any:
    # What follows the first value is ignored.
    value, _ = json.JSONDecoder(parse_float=Decimal).raw_decode(text.lstrip())
    if not path.startswith("$"):
        raise ValueError(f"{path!r} does not begin with $")
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(-?\d+|'[^']*')\]", path[1:]):
        if name:
            value = value.get(name) if isinstance(value, dict) else None
        elif index.startswith("'"):
            value = value.get(index[1:-1]) if isinstance(value, dict) else None
        else:
            value = value[int(index)] if isinstance(value, list) and 0 <= int(index) < len(value) else None
        if value is None:
            return None
    return value if isinstance(value, str) else _json_text(value)


def _is_json(text: Any) -> bool:
    try:
        json.loads(text)
    except (TypeError, ValueError):
        return False
    return True


def _json_concat(*texts: Any) -> Any:
    values = [_json(text) for text in texts]
    if all(isinstance(value, dict) for value in values):
        merged: Any = {}
        for value in values:
            merged.update(value)
        return _json_text(merged)
    joined: list[Any] = []
    for value in values:
        joined.extend(value if isinstance(value, list) else [value])
    return _json_text(joined)


def _json_contains(text: str, value: Any) -> bool:
    found = json.loads(text)
    return isinstance(found, list) and any(type(each) is type(value) and each == value for each in found)


def _when_object(function: Callable[[Any], Any], kind: type) -> Callable[[str], Any]:
    def called(text: str) -> Any:
        value = _json(text)
        return function(value) if isinstance(value, kind) else None

    return called


#: Written by `to_json_string`, which depends on the type of the argument.
_function("TO_JSON_STRING", ["any"], STRING, _json_text)
_function("EXTRACTJSONFIELD", [STRING, STRING], STRING, _extract)
_function("IS_JSON_STRING", [STRING], BOOLEAN, _is_json, strict=False)
_function("JSON_ARRAY_LENGTH", [STRING], INTEGER, _when_object(len, list))
_function("JSON_ARRAY_CONTAINS", [STRING, "any"], BOOLEAN, _json_contains, strict=False)
_function("JSON_CONCAT", [STRING], STRING, _json_concat, many=True)
_function("JSON_ITEMS", [STRING], array(STRING), _when_object(lambda v: [_json_text(each) for each in v], list))
_function("JSON_KEYS", [STRING], array(STRING), _when_object(list, dict))
_function(
    "JSON_RECORDS",
    [STRING],
    map_of(STRING, STRING),
    _when_object(lambda v: {k: each if isinstance(each, str) else _json_text(each) for k, each in v.items()}, dict),
)


def json_value(value: Any, type_: SqlType) -> Any:
    """Return a value as plain JSON, as ``TO_JSON_STRING`` and the JSON format write it."""
    from keyed.sql.conversions import text_of

    if value is None:
        return None
    match type_.base:
        case "DECIMAL":
            return float(value)
        case "BYTES":
            return base64.b64encode(value).decode()
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
    return lambda value: json.dumps(json_value(value, type_), separators=(",", ":"), ensure_ascii=False)


def _url(part: Callable[[Any], Any]) -> Callable[[str], Any]:
    return lambda text: part(urllib.parse.urlsplit(text))


def _query_value(text: str, name: str) -> Any:
    found = urllib.parse.parse_qs(urllib.parse.urlsplit(text).query, keep_blank_values=True).get(name)
    return found[0] if found else None


_function("URL_DECODE_PARAM", [STRING], STRING, urllib.parse.unquote_plus)
_function("URL_ENCODE_PARAM", [STRING], STRING, lambda t: urllib.parse.quote_plus(t, safe="*-._").replace("~", "%7E"))
_function("URL_EXTRACT_FRAGMENT", [STRING], STRING, _url(lambda u: u.fragment or None))
_function("URL_EXTRACT_HOST", [STRING], STRING, _url(lambda u: u.hostname))
_function("URL_EXTRACT_PATH", [STRING], STRING, _url(lambda u: u.path))
_function("URL_EXTRACT_PORT", [STRING], INTEGER, _url(lambda u: u.port))
_function("URL_EXTRACT_PROTOCOL", [STRING], STRING, _url(lambda u: u.scheme or None))
_function("URL_EXTRACT_QUERY", [STRING], STRING, _url(lambda u: u.query or None))
_function("URL_EXTRACT_PARAMETER", [STRING, STRING], STRING, _query_value)
