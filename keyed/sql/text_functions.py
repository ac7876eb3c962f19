"""Functions of texts and bytes, with the meaning of Java's ``String``.

Lengths and places count UTF-16 units: a character outside the basic plane has two. Half of such a character becomes
``?``, as in the records that Java writes.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import unicodedata
from collections.abc import Callable
from functools import wraps
from typing import Any

#: The most units of a padded text, and bytes of padded bytes.
_MOST_UNITS = 1 << 24
#: Java's ``String.trim`` removes these.
_TRIMMED = "".join(map(chr, range(33)))
_WORD = re.compile(r"[^ \t\n\x0b\f\r]+[ \t\n\x0b\f\r]*")
_LONE = re.compile("[\ud800-\udfff]")


def _is_narrow(value: Any) -> bool:
    """Return whether each character of a text is one unit."""
    return not isinstance(value, str) or value.isascii() or max(value) < "\U00010000"


def _units(value: Any) -> Any:
    if _is_narrow(value):
        return value
    data = value.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, struct.unpack(f"<{len(data) // 2}H", data)))


def whole(value: Any) -> Any:
    """Return a text of units as one of characters."""
    if not isinstance(value, str) or _LONE.search(value) is None:
        return value
    return _LONE.sub("?", value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass"))


def _in_units(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def called(*arguments: Any) -> Any:
        if all(map(_is_narrow, arguments)):
            return function(*arguments)
        return whole(function(*map(_units, arguments)))

    return called


def length(value: Any) -> int:
    """Return the number of units of a text, or of bytes."""
    return len(value) if _is_narrow(value) else len(value.encode("utf-16-le", "surrogatepass")) // 2


def trim(text: str) -> str:
    """Return a text without control characters and spaces at its ends."""
    return text.strip(_TRIMMED)


def initcap(text: str) -> str:
    """Return a text whose words begin in upper case; white space before the first word is dropped."""
    found = _WORD.findall(text.lower())
    return "".join((word[0].upper() if word[0] < "\U00010000" else word[0]) + word[1:] for word in found)


@_in_units
def substring(text: Any, start: int, units: int | None = None) -> Any:
    """Return a part of a text or bytes."""
    first = max(len(text) + start, 0) if start < 0 else max(min(start - 1, len(text)), 0)
    return text[first:] if units is None else text[first : first + max(0, units)]


def _filling(missing: int, padding: Any) -> Any:
    if missing > _MOST_UNITS:
        raise ValueError(f"a filling of more than {_MOST_UNITS} characters")
    return (padding * (missing // len(padding) + 1))[: max(0, missing)]


@_in_units
def lpad(text: Any, units: int, padding: Any) -> Any:
    """Return a text or bytes of a length, filled at the left; ``None`` without a filling or with a negative length."""
    return None if units < 0 or not padding else (_filling(units - len(text), padding) + text)[:units]


@_in_units
def rpad(text: Any, units: int, padding: Any) -> Any:
    """Return a text or bytes of a length, filled at the right; ``None`` without a filling or with a negative length."""
    return None if units < 0 or not padding else (text + _filling(units - len(text), padding))[:units]


@_in_units
def instr(text: str | None, part: str | None, position: int | None = 1, occurrence: int | None = 1) -> int | None:
    """Return the place of a part in a text; 0 if there is none, or for a null text or part."""
    if position is None or occurrence is None:
        return None
    if text is None or part is None or abs(position) > len(text):
        return 0
    is_reversed = position < 0
    # The place 0 searches in the last character, as the substring of a negative start does.
    start = abs(position) - 1 if position else max(0, len(text) - 1)
    if is_reversed:
        text, part = text[::-1], part[::-1]
    found = _ordinal_index(text[start:], part, occurrence)
    if found < 0:
        return 0
    return len(text) + position - found - len(part) + 2 if is_reversed else found + position


def _ordinal_index(text: str, part: str, occurrence: int) -> int:
    if occurrence < 1:
        return -1
    found = -1
    for _ in range(occurrence if part else 1):
        found = text.find(part, found + 1)
        if found < 0:
            break
    return found


def chr_of_code(code: int) -> str:
    """Return the character of a code point.

    Raises:
        ValueError: There is none.
    """
    return str(whole(chr(code)))


_ESCAPE = re.compile(r"\\(?:([0-3][0-7]{0,2}|[4-7][0-7]?)|u+\+?(.{0,4})|([\\\"'btnfr]?))", re.DOTALL)
_CONTROL = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


def chr_of_escape(text: str) -> str | None:
    r"""Return the text of Java's escapes, which begins with one like ``\u004b``; ``None`` for another text.

    Raises:
        ValueError: Such an escape has fewer than four digits.
    """

    def unescaped(found: re.Match[str]) -> str:
        octal, digits, sign = found.groups()
        if octal is not None:
            return chr(int(octal, 8))
        if digits is None:
            return _CONTROL.get(sign, sign)
        if re.fullmatch(r"[0-9a-fA-F]{4}", digits) is None:
            raise ValueError(f"{text!r} has an escape of fewer than four digits")
        return chr(int(digits, 16))

    if length(text) < 6 or not text.startswith("\\u"):
        return None
    return str(whole(_ESCAPE.sub(unescaped, text)))


def split(text: Any, delimiter: Any) -> Any:
    """Return the parts of a text or bytes between delimiters; each character or byte without one."""
    if not delimiter:
        return [text[place : place + 1] for place in range(len(text))] or [text]
    return text.split(delimiter)


def split_to_map(text: str, entry: str, pair: str) -> dict[str, str] | None:
    """Return the entries of a text as a map; ``None`` if a delimiter is empty, or both are the same."""
    if not entry or not pair or entry == pair:
        return None
    found = (each.split(pair) for each in text.split(entry) if pair in each)
    return {key: value for key, value, *_ in found}


# Masks.


def mask(
    text: str | None, upper: str | None = "X", lower: str | None = "x", digit: str | None = "n", other: str | None = "-"
) -> str | None:
    """Return a text with its characters replaced by kind; a null mask keeps the characters of its kind.

    Raises:
        ValueError: A mask is not one character.
    """
    for each in (upper, lower, digit, other):
        if each is not None and length(each) != 1:
            raise ValueError(f"{each!r} is no mask; a mask is one character")
    if text is None:
        return None
    masks = {"Lu": upper, "Ll": lower, "Nd": digit}
    found = []
    for sign in text:
        replaced = masks.get(unicodedata.category(sign), other)
        found.append(sign if replaced is None else replaced)
        if sign > "\uffff" and other is not None:
            # Java masks the second unit of such a character too.
            found.append(other)
    return "".join(found)


def _cut(text: str, place: int, *, from_end: bool = False) -> tuple[str, str]:
    if place < 0:
        raise ValueError(f"{place} is no number of characters to mask or to keep")
    units = _units(text)
    at = max(0, len(units) - place) if from_end else place
    return whole(units[:at]), whole(units[at:])


def mask_left(text: str | None, units: int | None, *masks: str | None) -> str | None:
    """Return a text with its first characters masked."""
    if text is None or units is None:
        return None
    left, right = _cut(text, units)
    return f"{mask(left, *masks)}{right}"


def mask_right(text: str | None, units: int | None, *masks: str | None) -> str | None:
    """Return a text with its last characters masked."""
    if text is None or units is None:
        return None
    left, right = _cut(text, units, from_end=True)
    return f"{left}{mask(right, *masks)}"


def mask_keep_left(text: str | None, units: int | None, *masks: str | None) -> str | None:
    """Return a text with all but its first characters masked."""
    if text is None or units is None:
        return None
    left, right = _cut(text, units)
    return f"{left}{mask(right, *masks)}"


def mask_keep_right(text: str | None, units: int | None, *masks: str | None) -> str | None:
    """Return a text with all but its last characters masked."""
    if text is None or units is None:
        return None
    left, right = _cut(text, units, from_end=True)
    return f"{mask(left, *masks)}{right}"


# Encodings.


def encode(text: str, source: str, target: str) -> str:
    """Return a text of one encoding in another one.

    Raises:
        ValueError: The text is not of the encoding, both encodings are the same, or one is unknown.
    """
    source, target = source.lower(), target.lower()
    if source == target:
        raise ValueError(f"both encodings are {source!r}")
    match source:
        case "hex":
            raw = binascii.unhexlify(_hex_digits(text))
        case "base64":
            raw = _lenient_base64(text)
        case _:
            raw = _encoded(text, source)
    return binascii.hexlify(raw).decode() if target == "hex" else from_bytes(raw, target)


def _hex_digits(text: str) -> str:
    """Return the digits of ``0xab79`` or ``X'ab79'``; an odd number of digits is allowed only after ``0x``."""
    if re.fullmatch("0x.*", text):
        return "0" * (len(text) % 2) + text[2:]
    return text[2:-1] if re.fullmatch("[xX]'.*'", text) else text


def _lenient_base64(text: str) -> bytes:
    """Return bytes as Apache's codec: other signs are skipped, padding is optional, ``-`` and ``_`` are allowed."""
    digits = re.sub(r"[^A-Za-z0-9+/]", "", text.partition("=")[0].replace("-", "+").replace("_", "/"))
    if len(digits) % 4 == 1:
        digits = digits[:-1]
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def _strict_base64(text: str) -> bytes:
    """Return bytes as Java's decoder: padding is optional, and right if it is there."""
    found = re.fullmatch(r"([A-Za-z0-9+/]*)(=*)", text)
    missing = -len(found[1]) % 4 if found else 3
    if found is None or missing == 3 or len(found[2]) not in (0, missing):
        raise ValueError(f"{text!r} is no base64")
    return base64.b64decode(found[1] + "=" * missing)


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("ascii", "utf8"):
        raise ValueError(f"unknown encoding {encoding!r}; use hex, utf8, ascii or base64")
    return text.encode(encoding, "replace")


def to_bytes(text: str, encoding: str) -> bytes:
    """Return the bytes of a text in an encoding.

    Raises:
        ValueError: The text is not of the encoding, or the encoding is unknown.
    """
    match encoding.lower():
        case "hex":
            return binascii.unhexlify(text)
        case "base64":
            return _strict_base64(text)
    return _encoded(text, encoding.lower())


def from_bytes(data: bytes, encoding: str) -> str:
    """Return bytes as text in an encoding; bytes that do not fit become U+FFFD.

    Raises:
        ValueError: The encoding is unknown.
    """
    match encoding.lower():
        case "hex":
            return data.hex().upper()
        case "base64":
            return base64.b64encode(data).decode()
        case "ascii" | "utf8":
            return data.decode(encoding, "replace")
    raise ValueError(f"unknown encoding {encoding!r}; use hex, utf8, ascii or base64")


def number_of(sign: str) -> Callable[..., Any]:
    """Return the function that reads a number of a format of `struct` in a byte order."""
    orders = {"BIG_ENDIAN": ">", "LITTLE_ENDIAN": "<"}

    def unpacked(data: bytes, order: str = "BIG_ENDIAN") -> Any:
        return struct.unpack(orders[order.upper()] + sign, data)[0]

    return unpacked
