"""The scalar functions, with ksqlDB's names and meaning.

Each has one or more forms: the types of its arguments, the type of its result, and a Python function. A function of a
form that is strict is null if an argument is null.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import time
import urllib.parse
import uuid
from collections.abc import Callable, Sequence
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal
from typing import Any, TypeAlias

import attrs

from keyed.sql import java_regexes, json_functions, text_functions
from keyed.sql.conversions import WIDE, is_implicit, java_double, wrapped
from keyed.sql.java_formats import (
    DATE_LETTERS,
    TIME_LETTERS,
    format_moment,
    offset_ms,
    parse_date,
    parse_days,
    parse_moment,
    parse_time_of_day,
)
from keyed.sql.java_uris import JavaUri, parse_uri
from keyed.sql.java_values import java_identity, java_order
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
#: The most numbers of a series.
_MOST_NUMBERS = 1 << 20


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


def _scaled(value: Decimal, places: int, mode: str) -> Decimal:
    """Return a number with at most so many digits after the point; negative places are before the point."""
    if value.as_tuple().exponent >= -places:  # type: ignore[operator]
        return value
    if value.adjusted() + 1 < -places:
        return Decimal(0)
    # Java's decimals have no negative zero.
    return WIDE.plus(value.quantize(Decimal((0, (1,), -places)), mode, WIDE))


def _rounded(value: Decimal, places: int = 0) -> Decimal:
    """Return a rounded number: halves go towards positive infinity."""
    return _scaled(value, places, ROUND_HALF_UP if value > 0 else ROUND_HALF_DOWN)


def _truncated(value: Decimal, places: int = 0) -> Decimal:
    return _scaled(value, places, ROUND_DOWN)


def _of_double(scaled: Callable[..., Decimal]) -> Callable[[float, int], float]:
    def called(value: float, places: int) -> float:
        if not math.isfinite(value):
            raise ValueError(f"{value} has no places")
        return float(scaled(Decimal(repr(value)), places))

    return called


def _same_scale(scaled: Callable[..., Decimal]) -> Callable[[Decimal, int], Decimal]:
    def called(value: Decimal, places: int) -> Decimal:
        return scaled(value, places).quantize(value, context=WIDE)

    return called


def _whole_decimal(scaled: Callable[..., Decimal]) -> Callable[[Decimal], Decimal]:
    return lambda value: scaled(value).quantize(Decimal(1), context=WIDE)


def _round_double(value: float) -> int:
    return _java_long(float(_rounded(Decimal(repr(value)))) if math.isfinite(value) else value)


def _cbrt(value: float) -> float:
    """Return the cube root, exactly where it is a whole number, as Java does and some C libraries do not."""
    root = math.cbrt(value)
    return float(round(root)) if math.isfinite(root) and round(root) ** 3 == value else root


def _java_long(value: float) -> int:
    """Return a number as Java's ``long``: 0 for NaN, and the ends of the range for what is outside of it."""
    if not math.isfinite(value):
        return 0 if math.isnan(value) else 2**63 - 1 if value > 0 else -(2**63)
    return max(-(2**63), min(2**63 - 1, int(value)))


def _whole_type(types: Sequence[SqlType]) -> SqlType:
    return decimal(max(1, types[0].precision - types[0].scale), 0)


def _real(function: Callable[..., float]) -> Callable[..., float]:
    """Return a function that is NaN where it has no value, and infinite where the value is too large, as in Java."""

    def called(*values: float) -> float:
        try:
            return function(*values)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return called


_function("ABS", [INTEGER], INTEGER, lambda x: wrapped(abs(x), "INTEGER"))
_function("ABS", [BIGINT], BIGINT, lambda x: wrapped(abs(x), "BIGINT"))
_function("ABS", [DOUBLE], DOUBLE, abs)
_function("ABS", ["decimal"], _first, Decimal.copy_abs)
for _name, _mode in (("CEIL", ROUND_CEILING), ("FLOOR", ROUND_FLOOR)):
    _function(_name, [INTEGER], INTEGER, lambda x: x)
    _function(_name, [BIGINT], BIGINT, lambda x: x)
    _function(_name, [DOUBLE], DOUBLE, lambda x, m=_mode: float(Decimal(repr(x)).to_integral_value(m)))
    _function(
        _name,
        ["decimal"],
        _first,
        lambda x, m=_mode: x.to_integral_value(m).quantize(x, context=WIDE),
    )
for _name, _scale, _whole in (("ROUND", _rounded, _round_double), ("TRUNC", _truncated, _java_long)):
    _function(_name, [INTEGER], BIGINT, lambda x: x)
    _function(_name, [BIGINT], BIGINT, lambda x: x)
    _function(_name, [DOUBLE], BIGINT, _whole)
    _function(_name, ["decimal"], _whole_type, _whole_decimal(_scale))
    _function(_name, [DOUBLE, INTEGER], DOUBLE, _of_double(_scale))
    _function(_name, ["decimal", INTEGER], _first, _same_scale(_scale))
_function("SQRT", [DOUBLE], DOUBLE, lambda x: math.sqrt(x) if x >= 0 else math.nan)
_function("CBRT", [DOUBLE], DOUBLE, _cbrt)
_function("EXP", [DOUBLE], DOUBLE, _real(math.exp))


def _ln(value: float) -> float:
    return -math.inf if value == 0 else _real(math.log)(value)


def _log(base: float, value: float) -> float:
    if base <= 0 or base == 1:
        return math.nan
    # Infinite numbers and zeros have Java's quotients.
    numerator, denominator = _ln(value), _ln(base)
    return math.nan if math.isinf(numerator) and math.isinf(denominator) else numerator / denominator


def _power(base: float, exponent: float) -> float:
    if exponent == 0:
        return 1.0
    if math.isnan(base) or math.isnan(exponent) or (abs(base) == 1 and math.isinf(exponent)):
        return math.nan
    is_odd = exponent % 2 == 1
    if base == 0 and exponent < 0:
        return math.copysign(math.inf, base) if is_odd else math.inf
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and is_odd else math.inf
    except ValueError:
        return math.nan


_function("LN LOG", [DOUBLE], DOUBLE, _ln)
_function("LOG", [DOUBLE, DOUBLE], DOUBLE, _log)
_function("POWER", [DOUBLE, DOUBLE], DOUBLE, _power)
_function("SIGN", [INTEGER], INTEGER, lambda x: (x > 0) - (x < 0))
_function("SIGN", [DOUBLE], INTEGER, lambda x: (x > 0) - (x < 0))
_function("RANDOM", [], DOUBLE, random.random)
_function("PI", [], DOUBLE, lambda: math.pi)
for _name in ("sin", "cos", "tan", "asin", "acos", "atan", "cosh", "tanh", "degrees", "radians"):
    _function(_name.upper(), [DOUBLE], DOUBLE, _real(getattr(math, _name)))
_function("SINH", [DOUBLE], DOUBLE, lambda x: math.copysign(_real(math.sinh)(abs(x)), x))
_function("ATAN2", [DOUBLE, DOUBLE], DOUBLE, math.atan2)


def _cot(value: float) -> float:
    tangent = _real(math.tan)(value)
    return 1 / tangent if tangent else math.copysign(math.inf, tangent)


_function("COT", [DOUBLE], DOUBLE, _cot)


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), default=None, key=java_order)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), default=None, key=java_order)


_SCALARS = ("INTEGER", "BIGINT", "DOUBLE", "DECIMAL", "STRING", "BYTES", "DATE", "TIME", "TIMESTAMP", "BOOLEAN")


def _scalar_common(types: Sequence[SqlType]) -> SqlType | None:
    found = next((type_ for type_ in types if type_.base in TIMES), _common(types))
    return found if found.base in _SCALARS else None


_function("GREATEST", ["common"], _scalar_common, _greatest, strict=False, many=True)
_function("LEAST", ["common"], _scalar_common, _least, strict=False, many=True)


_UNITS_OF_LENGTH = {
    **dict.fromkeys(("mi", "mile", "miles"), 3959),
    **dict.fromkeys(("", "km", "kilometer", "kilometers", "kilometre", "kilometres"), 6371),
}


def _distance(lat1: float, lon1: float, lat2: float, lon2: float, unit: str | None = None) -> float | None:
    if None in (lat1, lon1, lat2, lon2):
        return None
    for value, most in ((lat1, 90), (lat2, 90), (lon1, 180), (lon2, 180)):
        if abs(value) > most:
            raise ValueError(f"{value} is out of range")
    radius = _UNITS_OF_LENGTH[text_functions.trim(unit or "").lower()]
    dlat, dlon = math.radians(lat2 - lat1), math.radians(lon2 - lon1)
    a = math.sin(dlat / 2) ** 2 + math.sin(dlon / 2) ** 2 * math.cos(math.radians(lat1)) * math.cos(math.radians(lat2))
    return radius * 2 * _real(math.asin)(math.sqrt(a))


_function("GEO_DISTANCE", [DOUBLE] * 4, DOUBLE, _distance)
_function("GEO_DISTANCE", [*[DOUBLE] * 4, STRING], DOUBLE, _distance, strict=False)

# Texts.


_function("UCASE", [STRING], STRING, str.upper)
_function("LCASE", [STRING], STRING, str.lower)
_function("TRIM", [STRING], STRING, text_functions.trim)
_function("INITCAP", [STRING], STRING, text_functions.initcap)
_function("LEN", [STRING], INTEGER, text_functions.length)
_function("LEN", [BYTES], INTEGER, len)
for _type in (STRING, BYTES):
    _function("SUBSTRING", [_type, INTEGER], _type, text_functions.substring)
    _function("SUBSTRING", [_type, INTEGER, INTEGER], _type, text_functions.substring)
    _function("LPAD", [_type, INTEGER, _type], _type, text_functions.lpad)
    _function("RPAD", [_type, INTEGER, _type], _type, text_functions.rpad)
    _function("SPLIT", [_type, _type], array(_type), text_functions.split)
_function("REPLACE", [STRING, STRING, STRING], STRING, str.replace)
_function("INSTR", [STRING, STRING], INTEGER, text_functions.instr, strict=False)
_function("INSTR", [STRING, STRING, INTEGER], INTEGER, text_functions.instr, strict=False)
_function("INSTR", [STRING, STRING, INTEGER, INTEGER], INTEGER, text_functions.instr, strict=False)
_function(
    "CONCAT", [STRING], STRING, lambda *texts: "".join(t for t in texts if t is not None), strict=False, many=True
)
_function("CONCAT", [BYTES], BYTES, lambda *parts: b"".join(p for p in parts if p is not None), strict=False, many=True)


def _concat_ws(separator: Any, *parts: Any) -> Any:
    return None if separator is None else separator.join(part for part in parts if part is not None)


_function("CONCAT_WS", [STRING, STRING], STRING, _concat_ws, strict=False, many=True)
_function("CONCAT_WS", [BYTES, BYTES], BYTES, _concat_ws, strict=False, many=True)
_function("CHR", [INTEGER], STRING, text_functions.chr_of_code)
_function("CHR", [STRING], STRING, text_functions.chr_of_escape)
_function("REGEXP_EXTRACT", [STRING, STRING], STRING, java_regexes.extract)
_function("REGEXP_EXTRACT", [STRING, STRING, INTEGER], STRING, java_regexes.extract)
_function("REGEXP_EXTRACT_ALL", [STRING, STRING], array(STRING), java_regexes.extract_all)
_function("REGEXP_EXTRACT_ALL", [STRING, STRING, INTEGER], array(STRING), java_regexes.extract_all)
_function("REGEXP_REPLACE", [STRING, STRING, STRING], STRING, java_regexes.replace_all)
_function("REGEXP_SPLIT_TO_ARRAY", [STRING, STRING], array(STRING), java_regexes.split_to_array)
_function("SPLIT_TO_MAP", [STRING, STRING, STRING], map_of(STRING, STRING), text_functions.split_to_map)
_function("MASK", [STRING], STRING, text_functions.mask)
_function("MASK", [STRING] * 5, STRING, text_functions.mask, strict=False)
for _name in ("mask_left", "mask_right", "mask_keep_left", "mask_keep_right"):
    _function(_name.upper(), [STRING, INTEGER], STRING, getattr(text_functions, _name))
    _function(_name.upper(), [STRING, INTEGER, *[STRING] * 4], STRING, getattr(text_functions, _name), strict=False)
_function(
    "MD5", [STRING], STRING, lambda t: hashlib.md5(t.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
)
_function("UUID", [], STRING, lambda: str(uuid.uuid4()))
_function("UUID", [BYTES], STRING, lambda data: str(uuid.UUID(bytes=data)) if len(data) == 16 else None)
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
_function("ENCODE", [STRING, STRING, STRING], STRING, text_functions.encode)
_function("TO_BYTES", [STRING, STRING], BYTES, text_functions.to_bytes)
_function("FROM_BYTES", [BYTES, STRING], STRING, text_functions.from_bytes)
for _name, _sign, _type in (("INT", "i", INTEGER), ("BIGINT", "q", BIGINT), ("DOUBLE", "d", DOUBLE)):
    _function(f"{_name}_FROM_BYTES", [BYTES], _type, text_functions.number_of(_sign))
    _function(f"{_name}_FROM_BYTES", [BYTES, STRING], _type, text_functions.number_of(_sign))

# Nulls.
_function(
    "COALESCE", ["common"], _common, lambda *v: next((x for x in v if x is not None), None), strict=False, many=True
)
_function("IFNULL", ["common", "common"], _common, lambda x, y: y if x is None else x, strict=False)
_function(
    "NULLIF",
    ["common", "common"],
    _common,
    lambda x, y: None if java_identity(x) == java_identity(y) else x,
    strict=False,
)
_function("AS_VALUE", ["any"], _first, lambda x: x, strict=False)

# Arrays and maps.


def _distinct(values: Sequence[Any]) -> list[Any]:
    found: dict[Any, Any] = {}
    for each in values:
        found.setdefault(java_identity(each), each)
    return list(found.values())


def _array_sort(values: Sequence[Any], order: str = "ASC") -> Any:
    direction = order.upper()
    if direction not in ("ASC", "ASCENDING", "DESC", "DESCENDING"):
        return None
    known = sorted((each for each in values if each is not None), reverse=direction.startswith("DESC"), key=java_order)
    return known + [None] * (len(values) - len(known))


def _slice(values: Sequence[Any], start: int | None, end: int | None) -> Any:
    if values is None:
        return None
    first = 0 if start is None else start - 1
    last = len(values) if end is None else end
    return list(values[first:last]) if 0 <= first <= last <= len(values) else None


def _array_join(values: Any, separator: str | None = ",") -> Any:
    def shown(value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        return java_double(value) if isinstance(value, float) else "null" if value is None else str(value)

    return None if values is None else (separator or "").join(map(shown, values))


def _joinable(types: Sequence[SqlType]) -> SqlType | None:
    is_joinable = not types[0].parts or types[0].element.is_number or types[0].element in (STRING, BOOLEAN, NULL)
    return STRING if is_joinable else None


def _array_concat(a: Any, b: Any) -> Any:
    return None if a is None and b is None else [*(a or ()), *(b or ())]


def _map_union(a: Any, b: Any) -> Any:
    return None if a is None and b is None else {**(a or {}), **(b or {})}


def _contains(values: Any, value: Any) -> bool:
    known = java_identity(value)
    return values is not None and any(java_identity(each) == known for each in values)


def _remove(values: Any, value: Any) -> Any:
    known = java_identity(value)
    return None if values is None else [each for each in values if java_identity(each) != known]


def _except(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    known = set(map(java_identity, b))
    return [each for each in _distinct(a) if java_identity(each) not in known]


def _intersect(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    known = set(map(java_identity, b))
    return [each for each in _distinct(a) if java_identity(each) in known]


def _two_arrays(types: Sequence[SqlType]) -> SqlType | None:
    found = [type_ for type_ in types if type_ != NULL]
    return found[0] if all(type_ == found[0] for type_ in found) else None


def _max_of(values: Any) -> Any:
    return _greatest(*values)


def _min_of(values: Any) -> Any:
    return _least(*values)


def _series(start: int, end: int, step: int | None = None) -> list[int]:
    if step is None:
        step = 1 if end >= start else -1
    if step == 0 or (end - start) * step < 0:
        raise ValueError("the step has the wrong sign")
    if (end - start) // step >= _MOST_NUMBERS:
        raise ValueError(f"a series of more than {_MOST_NUMBERS} numbers")
    return list(range(start, end + (1 if step > 0 else -1), step))


_function("ARRAY_LENGTH", ["array"], INTEGER, len)
_function("ARRAY_MAX", ["array"], _element, _max_of)
_function("ARRAY_MIN", ["array"], _element, _min_of)
_function("ARRAY_SORT", ["array"], _first, _array_sort)
_function("ARRAY_SORT", ["array", STRING], _first, _array_sort)
_function("ARRAY_CONTAINS", ["array", "any"], BOOLEAN, _contains, strict=False)
_function("ARRAY_DISTINCT", ["array"], _first, _distinct)
_function("ARRAY_EXCEPT", ["array", "array"], _two_arrays, _except)
_function("ARRAY_INTERSECT", ["array", "array"], _two_arrays, _intersect)
_function("ARRAY_UNION", ["array", "array"], _two_arrays, lambda a, b: _distinct([*a, *b]))
_function("ARRAY_CONCAT", ["array", "array"], _two_arrays, _array_concat, strict=False)
_function("ARRAY_REMOVE", ["array", "any"], _first, _remove, strict=False)
_function("ARRAY_JOIN", ["array"], _joinable, _array_join, strict=False)
_function("ARRAY_JOIN", ["array", STRING], _joinable, _array_join, strict=False)
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
    lambda k, v: {key: v[place] if place < len(v) else None for place, key in enumerate(k)},
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
    lambda m, ordered: [{"K": k, "V": m[k]} for k in (sorted(m, key=java_order) if ordered else m)],
)

# Dates and times.
_UNIT_MS = {"MILLISECONDS": 1, "SECONDS": 1000, "MINUTES": 60_000, "HOURS": 3_600_000, "DAYS": _DAY_MS}


def _unit_ms(unit: str) -> int:
    name = unit.upper()
    return _UNIT_MS[name if name.endswith("S") else name + "S"]


def _convert_zone(moment: int, source: str, target: str) -> int:
    return moment + offset_ms(moment, target) - offset_ms(moment, source)


def _shifted_days(days: int, shift_ms: int) -> int:
    """Return a date moved by a duration; a part of a day is dropped, towards 1970 as in Java."""
    moment = days * _DAY_MS + shift_ms
    return moment // _DAY_MS if moment >= 0 else -(-moment // _DAY_MS)


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
_function("FORMAT_TIMESTAMP", [TIMESTAMP, STRING], STRING, lambda t, p: format_moment(t, p, "GMT"))
_function("FORMAT_TIMESTAMP", [TIMESTAMP, STRING, STRING], STRING, format_moment)
_function("PARSE_DATE", [STRING, STRING], DATE, parse_date)
_function("STRINGTODATE", [STRING, STRING], INTEGER, parse_days)
_function("FORMAT_DATE", [DATE, STRING], STRING, lambda d, p: format_moment(d * _DAY_MS, p, letters=DATE_LETTERS))
_function("DATETOSTRING", [INTEGER, STRING], STRING, lambda d, p: format_moment(d * _DAY_MS, p, letters=DATE_LETTERS))
_function("PARSE_TIME", [STRING, STRING], TIME, parse_time_of_day)
_function("FORMAT_TIME", [TIME, STRING], STRING, lambda t, p: format_moment(t, p, letters=TIME_LETTERS))
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
        lambda u, n, d, s=_direction: _shifted_days(d, s * n * _unit_ms(u)),
    )
    _function(
        f"TIME{_name}", ["unit", INTEGER, TIME], TIME, lambda u, n, t, s=_direction: (t + s * n * _unit_ms(u)) % _DAY_MS
    )


# JSON.
#: Written by `to_json_string`, which depends on the type of the argument.
_function("TO_JSON_STRING", ["any"], STRING, json_functions.json_text)
_function("EXTRACTJSONFIELD", [STRING, STRING], STRING, json_functions.extract)
_function("IS_JSON_STRING", [STRING], BOOLEAN, json_functions.is_json, strict=False)
_function("JSON_ARRAY_LENGTH", [STRING], INTEGER, json_functions.array_length)
_function("JSON_ARRAY_CONTAINS", [STRING, "any"], BOOLEAN, json_functions.array_contains, strict=False)
_function("JSON_CONCAT", [STRING], STRING, json_functions.concat, many=True)
_function("JSON_ITEMS", [STRING], array(STRING), json_functions.items)
_function("JSON_KEYS", [STRING], array(STRING), json_functions.keys)
_function("JSON_RECORDS", [STRING], map_of(STRING, STRING), json_functions.records)

# URLs.


def _url(part: Callable[[JavaUri], Any]) -> Callable[[str], Any]:
    return lambda text: part(parse_uri(text))


def _query_value(text: str, name: str) -> str | None:
    query = parse_uri(text).query
    found = (each.partition("=") for each in ([] if query is None else query.split("&")))
    return next((value for key, _, value in found if key == name), None)


def _url_decoded(text: str) -> str:
    if re.search("%(?![0-9a-fA-F]{2})", text):
        raise ValueError(f"{text!r} has an escape without two digits")
    return urllib.parse.unquote_plus(text)


_function("URL_DECODE_PARAM", [STRING], STRING, _url_decoded)
_function("URL_ENCODE_PARAM", [STRING], STRING, lambda t: urllib.parse.quote_plus(t, safe="*-._").replace("~", "%7E"))
_function("URL_EXTRACT_FRAGMENT", [STRING], STRING, _url(lambda u: u.fragment))
_function("URL_EXTRACT_HOST", [STRING], STRING, _url(lambda u: u.host))
_function("URL_EXTRACT_PATH", [STRING], STRING, _url(lambda u: u.path))
_function("URL_EXTRACT_PORT", [STRING], INTEGER, _url(lambda u: u.port))
_function("URL_EXTRACT_PROTOCOL", [STRING], STRING, _url(lambda u: u.scheme))
_function("URL_EXTRACT_QUERY", [STRING], STRING, _url(lambda u: u.query))
_function("URL_EXTRACT_PARAMETER", [STRING, STRING], STRING, _query_value)
