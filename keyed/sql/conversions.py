"""Conversions of values between SQL types: implicit ones, casts, and texts as Java writes them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from keyed.sql.sql_types import DOUBLE, NULL, SqlType

Convert = Callable[[Any], Any]
#: Exact for the arithmetic of decimals of 38 digits.
WIDE = Context(prec=80, rounding=ROUND_HALF_UP)
_EPOCH = dt.date(1970, 1, 1)
_DAY_MS = 86_400_000


def identity(value: Any) -> Any:
    """Return the value."""
    return value


def to_decimal(value: Any, precision: int, scale: int) -> Decimal:
    """Return a number as a decimal of a type, rounded half up.

    Raises:
        OverflowError: It has more digits.
    """
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    rounded = exact.quantize(Decimal(1).scaleb(-scale), context=WIDE)
    if rounded and rounded.adjusted() >= precision - scale:
        raise OverflowError(f"{value} has more digits than DECIMAL({precision}, {scale})")
    # Java's decimals have one zero.
    return rounded or rounded.copy_abs()


def wrapped(value: int, base: str) -> int:
    """Return an integer as Java computes it, wrapped around at the ends of its range."""
    bits = 31 if base == "INTEGER" else 63
    return ((value + (1 << bits)) & ((1 << (bits + 1)) - 1)) - (1 << bits)


def is_implicit(source: SqlType, target: SqlType) -> bool:
    """Return whether values of one type are used as another without a cast."""
    if source in (target, NULL):
        return True
    if source.is_number and target.is_number:
        order = ("INTEGER", "BIGINT", "DECIMAL", "DOUBLE")
        if source.base == target.base == "DECIMAL":
            return source.precision - source.scale <= target.precision - target.scale and source.scale <= target.scale
        if target.base == "DECIMAL":
            return (
                {"INTEGER": 10, "BIGINT": 19}[source.base] <= target.precision - target.scale
                if (order.index(source.base) < 2)
                else False
            )
        return order.index(source.base) < order.index(target.base)
    if source.base == target.base and source.base in ("ARRAY", "MAP"):
        return all(is_implicit(a, b) for a, b in zip(source.parts, target.parts, strict=True))
    if source.base == target.base == "STRUCT":
        return all((found := target.field(name)) is not None and is_implicit(t, found) for name, t in source.fields)
    return False


def widening(source: SqlType, target: SqlType) -> Convert:
    """Return the conversion of an implicit use, which a null passes."""
    if source == target or NULL in (source, target):
        return identity
    if target == DOUBLE:
        return lambda value: None if value is None else float(value)
    if target.base == "DECIMAL":
        precision, scale = target.precision, target.scale
        return lambda value: None if value is None else to_decimal(value, precision, scale)
    if target.base == "ARRAY" and source.base == "ARRAY":
        item = widening(source.element, target.element)
        return lambda value: None if value is None else [item(each) for each in value]
    if target.base == "MAP" and source.base == "MAP":
        item = widening(source.element, target.element)
        return lambda value: None if value is None else {key: item(each) for key, each in value.items()}
    if target.base == "STRUCT" and source.base == "STRUCT":
        had = dict(source.fields)
        found = {n: widening(had[n], t) if n in had else (lambda _: None) for n, t in target.fields}
        return lambda value: None if value is None else {n: each(value.get(n)) for n, each in found.items()}
    return identity


def casting(source: SqlType, target: SqlType) -> Convert | None:
    """Return the conversion of a ``CAST``, ``None`` if there is none. It raises for a value that does not convert."""
    convert = _casting(source, target)
    if convert is None or convert is identity:
        return convert
    return lambda value: None if value is None else convert(value)


def _casting(source: SqlType, target: SqlType) -> Convert | None:
    a, b = source.base, target.base
    if source == target or a == "NULL":
        return identity
    if b == "STRING":
        return text_of(source) if a != "BYTES" else None
    if target.is_number and source.is_number:
        return _number_cast(target)
    if a == "STRING":
        return _from_text(target)
    if (a, b) == ("TIMESTAMP", "DATE"):
        return lambda value: value // _DAY_MS
    if (a, b) == ("TIMESTAMP", "TIME"):
        return lambda value: value % _DAY_MS
    if (a, b) == ("DATE", "TIMESTAMP"):
        return lambda value: value * _DAY_MS
    if (a, b) == ("TIMESTAMP", "BIGINT"):
        return identity
    if a == b and a in ("ARRAY", "MAP"):
        parts = [casting(x, y) for x, y in zip(source.parts, target.parts, strict=True)]
        if any(part is None for part in parts):
            return None
        item: Any = parts[-1]
        if a == "ARRAY":
            return lambda value: [item(each) for each in value]
        key: Any = parts[0]
        return lambda value: {key(name): item(each) for name, each in value.items()}
    if a == b == "STRUCT":
        had = dict(source.fields)
        found: dict[str, Any] = {}
        for name, type_ in target.fields:
            found[name] = casting(had[name], type_) if name in had else (lambda _: None)
        if any(each is None for each in found.values()):
            return None
        return lambda value: {name: each(value.get(name)) for name, each in found.items()}
    return None


def _number_cast(target: SqlType) -> Convert:
    if target.base == "DECIMAL":
        return lambda value: to_decimal(value, target.precision, target.scale)
    if target.base == "DOUBLE":
        return float
    return lambda value: wrapped(int(value), target.base)


def _from_text(target: SqlType) -> Convert | None:
    match target.base:
        case "BOOLEAN":
            return truth_of
        case "INTEGER" | "BIGINT":
            return lambda value: _ranged(int(value.strip()) if _is_plain(value) else _fail(value), target.base)
        case "DOUBLE":
            return lambda value: float(value) if not set(value.lower()) & {"_", "x"} else _fail(value)
        case "DECIMAL":
            return lambda value: to_decimal(Decimal(value.strip()), target.precision, target.scale)
        case "TIMESTAMP":
            return parse_timestamp
        case "DATE":
            return parse_date
        case "TIME":
            return parse_time
    return None


def truth_of(value: str) -> bool:
    """Return a text as ksqlDB's boolean: true for any beginning of ``true`` or ``yes``."""
    lowered = value.lower()
    return bool(lowered) and ("true".startswith(lowered) or "yes".startswith(lowered))


def _is_plain(value: str) -> bool:
    return re.fullmatch(r"\s*[+-]?\d+\s*", value) is not None


def _ranged(value: int, base: str) -> int:
    return value if wrapped(value, base) == value else _fail(value)


def _fail(value: Any) -> Any:
    raise ValueError(f"{value!r} does not convert")


_TIMESTAMP = re.compile(
    r"(\d{1,4})(?:-(\d{1,2})(?:-(\d{1,2}))?)?"
    r"(?:T(?:(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?)?(Z|[+-]\d{2}:?\d{2}|[+-]\d{2})?)?"
)


def parse_timestamp(value: str) -> int:
    """Return the milliseconds of a timestamp of which the end may be missing: ``2020``, ``2020-01-02T03:04``.

    Raises:
        ValueError: It is none.
    """
    found = _TIMESTAMP.fullmatch(value.strip().replace(" ", "T", 1))
    if found is None:
        raise ValueError(f"{value!r} is no timestamp; write it as 2020-01-02T03:04:05.006")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    moment = dt.datetime(
        int(year),
        int(month or 1),
        int(day or 1),
        int(hour or 0),
        int(minute or 0),
        int(second or 0),
        tzinfo=dt.UTC,
    )
    offset = 0
    if zone and zone != "Z":
        sign = -1 if zone[0] == "-" else 1
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = sign * (int(digits[:2]) * 60 + int(digits[2:])) * 60_000
    whole = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    return whole + int((fraction or "0").ljust(3, "0")[:3]) - offset


def parse_date(value: str) -> int:
    """Return the days of a date of which the end may be missing."""
    return parse_timestamp(value.partition("T")[0]) // _DAY_MS


def parse_time(value: str) -> int:
    """Return the milliseconds of a time of the day."""
    parts = re.fullmatch(r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?", value.strip())
    if parts is None:
        raise ValueError(f"{value!r} is no time; write it as 03:04:05.006")
    hour, minute, second, fraction = parts.groups()
    found = ((int(hour) * 60 + int(minute or 0)) * 60 + int(second or 0)) * 1000
    if found >= _DAY_MS:
        raise ValueError(f"{value!r} is no time of a day")
    return found + int((fraction or "0").ljust(3, "0")[:3])


def text_of(type_: SqlType) -> Convert:
    """Return the conversion to text, as a ``CAST`` has it."""
    match type_.base:
        case "BOOLEAN":
            return lambda value: "true" if value else "false"
        case "DOUBLE":
            return java_double
        case "DECIMAL":
            return lambda value: format(value, "f")
        case "TIMESTAMP":
            return timestamp_text
        case "DATE":
            return lambda value: (_EPOCH + dt.timedelta(days=value)).isoformat()
        case "TIME":
            return time_text
        case "ARRAY":
            item = _nested_text(type_.element)
            return lambda value: "[" + ", ".join(map(item, value)) + "]"
        case "MAP":
            key, item = (_nested_text(part) for part in type_.parts)
            return lambda value: "{" + ", ".join(f"{key(k)}={item(v)}" for k, v in value.items()) + "}"
        case "STRUCT":
            fields = [(name, _nested_text(each)) for name, each in type_.fields]
            return lambda value: (
                "Struct{" + ",".join(f"{n}={each(value[n])}" for n, each in fields if value.get(n) is not None) + "}"
            )
    return str


def _nested_text(type_: SqlType) -> Convert:
    convert = text_of(type_)
    return lambda value: "null" if value is None else convert(value)


def timestamp_text(value: int) -> str:
    """Return a timestamp as text: ``2020-01-02T03:04:05.006``."""
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=value)  # noqa: DTZ001 - in UTC
    return moment.isoformat(timespec="milliseconds")


def time_text(value: int) -> str:
    """Return a time of the day as text: as short as it is exact, at least ``03:04``."""
    seconds, millis = divmod(value, 1000)
    minutes, second = divmod(seconds, 60)
    shown = f"{minutes // 60:02}:{minutes % 60:02}"
    if millis:
        return f"{shown}:{second:02}.{millis:03}"
    return f"{shown}:{second:02}" if second else shown


def java_double(value: float) -> str:
    """Return a double as Java's ``Double.toString`` writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    if abs(value) == 5e-324:
        return "4.9E-324" if value > 0 else "-4.9E-324"
    if 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    shown = "".join(map(str, digits))
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{int(exponent) + len(digits) - 1}"
