"""Regular expressions of Java: translated to those of Python, and applied as Java and Guava apply them.

An expression that has no translation is an error, as an expression that is none: lookbehinds of no fixed length, flags
after the start, intersections of classes, and the names of scripts and blocks.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache

_INLINE_FLAGS = re.compile(r"\(\?([a-zA-Z]+)")
_ENDS = r"\n\r\u0085\u2028\u2029"
_BLANKS = r" \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000"
#: Escapes outside and inside of classes.
_ESCAPES = {
    "z": (r"\Z", None),
    "Z": (rf"(?=(?:\r\n|[{_ENDS}])?\Z)", None),
    "R": (r"(?:\r\n|[\n\x0b\f\r\u0085\u2028\u2029])", None),
    "h": (f"[{_BLANKS}]", _BLANKS),
    "v": (r"[\n\x0b\f\r\x85\u2028\u2029]", r"\n\x0b\f\r\x85\u2028\u2029"),
    "e": (r"\x1b", r"\x1b"),
}  # fmt: skip
_POSIX = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "ASCII": r"\x00-\x7f",
    "Alpha": "a-zA-Z",
    "Digit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Cntrl": r"\x00-\x1f\x7f",
    "XDigit": "0-9a-fA-F",
    "Space": r" \t\n\x0b\f\r",
}
_PROPERTIES: dict[str, Callable[[str], bool]] = {
    "Alphabetic": lambda sign: sign.isalpha() or unicodedata.category(sign) == "Nl",
    "Letter": lambda sign: unicodedata.category(sign)[0] == "L",
    "Digit": lambda sign: unicodedata.category(sign) == "Nd",
    "Lowercase": str.islower,
    "Uppercase": str.isupper,
    "Punctuation": lambda sign: unicodedata.category(sign)[0] == "P",
    "White_Space": str.isspace,
}


@lru_cache(maxsize=32)
def _property(name: str, *, is_negated: bool) -> str:
    """Return the inside of a class of the characters with a property."""
    if name in _POSIX and not is_negated:
        return _POSIX[name]
    if name in _POSIX:
        expression = re.compile(f"[{_POSIX[name]}]")
        test: Callable[[str], bool] = lambda sign: expression.match(sign) is not None  # noqa: E731
    else:
        short = name.removeprefix("Is").removeprefix("general_category=").removeprefix("gc=")
        if re.fullmatch("[CLMNPSZ][a-z]?", short):
            test = lambda sign: unicodedata.category(sign).startswith(short)  # noqa: E731
        elif name.startswith("Is") and short in _PROPERTIES:
            test = _PROPERTIES[short]
        else:
            raise ValueError(f"no property of characters {name!r}")
    ranges, start = [], None
    for code in range(sys.maxunicode + 2):
        fits = code <= sys.maxunicode and test(chr(code)) != is_negated
        if fits and start is None:
            start = code
        elif not fits and start is not None:
            ranges.append(rf"\U{start:08x}-\U{code - 1:08x}")
            start = None
    return "".join(ranges)


class _Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._place = 0
        flags = "".join(_INLINE_FLAGS.findall(pattern))
        # A flag that changes the meaning of a dot is kept with Python's dot.
        self._dot = "." if "s" in flags or "d" in flags else f"[^{_ENDS}]"

    def translated(self) -> str:
        found = []
        while self._place < len(self._pattern):
            sign = self._pattern[self._place]
            self._place += 1
            match sign:
                case "\\":
                    found.append(self._escape(in_class=False))
                case "[":
                    found.append(f"[{self._inside()}]")
                case ".":
                    found.append(self._dot)
                case "(" if (name := re.compile(r"\?<([A-Za-z]\w*)>").match(self._pattern, self._place)) is not None:
                    found.append(f"(?P<{name[1]}>")
                    self._place = name.end()
                case _:
                    found.append(sign)
        return "".join(found)

    def _inside(self) -> str:
        """Return the inside of a class; a class in it is a part of it."""
        found = []
        if self._pattern[self._place : self._place + 1] == "^":
            found.append("^")
            self._place += 1
        first = self._place
        while self._place < len(self._pattern):
            sign = self._pattern[self._place]
            self._place += 1
            if sign == "]" and self._place - 1 > first:
                return "".join(found)
            if sign == "[":
                inner = self._inside()
                if inner.startswith("^"):
                    raise ValueError(f"{self._pattern!r}: a class with a negated class in it is not supported")
                found.append(inner)
            elif sign == "&" and self._pattern[self._place : self._place + 1] == "&":
                raise ValueError(f"{self._pattern!r}: intersections of classes are not supported")
            elif sign == "\\":
                found.append(self._escape(in_class=True))
            else:
                # Python reserves doubled signs.
                found.append(re.escape(sign) if sign in "~|]" else sign)
        raise ValueError(f"{self._pattern!r}: a class has no end")

    def _escape(self, *, in_class: bool) -> str:
        pattern = self._pattern
        sign = pattern[self._place : self._place + 1]
        self._place += 1
        if sign == "Q":
            end = pattern.find(r"\E", self._place)
            quoted = pattern[self._place : end if end >= 0 else len(pattern)]
            self._place = end + 2 if end >= 0 else len(pattern)
            return re.escape(quoted)
        if sign in ("p", "P"):
            name = re.compile(r"\{(\^?)([\w=]+)\}|()([A-Z])").match(pattern, self._place)
            if name is None:
                raise ValueError(f"{pattern!r}: a property has no name")
            self._place = name.end()
            inside = _property(name[2] or name[4], is_negated=(sign == "P") != bool(name[1]))
            return inside if in_class else f"[{inside}]"
        if sign == "k" and (name := re.compile(r"<(\w+)>").match(pattern, self._place)) is not None:
            self._place = name.end()
            return f"(?P={name[1]})"
        if sign == "x" and (code := re.compile(r"\{([0-9a-fA-F]+)\}").match(pattern, self._place)) is not None:
            self._place = code.end()
            return rf"\U{int(code[1], 16):08x}"
        if sign == "0" and (octal := re.compile("[0-3]?[0-7]{1,2}").match(pattern, self._place)) is not None:
            self._place = octal.end()
            return rf"\x{int(octal[0], 8):02x}"
        outside, inside_class = _ESCAPES.get(sign, (f"\\{sign}", f"\\{sign}"))
        if in_class and inside_class is None:
            raise ValueError(f"{pattern!r}: \\{sign} is no part of a class")
        return inside_class if in_class and inside_class is not None else outside


@lru_cache(maxsize=256)
def java_regex(pattern: str) -> re.Pattern[str]:
    """Return a regular expression of Java as one of Python.

    Raises:
        ValueError: It has no translation.
        re.error: It is none.
    """
    # In Java, digits, word characters and white space are those of ASCII.
    return re.compile(_Translator(pattern).translated(), re.ASCII)


def extract(pattern: str, text: str, group: int = 0) -> str | None:
    """Return a group of the first match; ``None`` without a match or group."""
    expression = java_regex(pattern)
    found = None if group > expression.groups else expression.search(text)
    return None if found is None else found.group(group)


def extract_all(pattern: str, text: str, group: int = 0) -> list[str | None] | None:
    """Return a group of each match; ``None`` without such a group."""
    expression = java_regex(pattern)
    return None if group > expression.groups else [found.group(group) for found in expression.finditer(text)]


def replace_all(text: str, pattern: str, new: str) -> str:
    """Return a text with each match replaced: ``$1`` and ``${name}`` are groups, a backslash quotes a character."""
    expression = java_regex(pattern)

    def replaced(found: re.Match[str]) -> str:
        parts = _replacement(new, expression)
        return "".join(part if isinstance(part, str) else found.group(part) or "" for part in parts)

    return expression.sub(replaced, text)


@lru_cache(maxsize=256)
def _replacement(new: str, expression: re.Pattern[str]) -> tuple[str | int, ...]:
    """Return the texts and groups of a replacement."""
    found: list[str | int] = []
    place = 0
    while place < len(new):
        sign = new[place]
        place += 1
        if sign == "$":
            name = re.compile(r"\{([A-Za-z][A-Za-z0-9]*)\}|[0-9]").match(new, place)
            if name is None:
                raise ValueError(f"{new!r} has a $ without a group")
            place = name.end()
            group = expression.groupindex[name[1]] if name[1] else int(name[0])
            # Further digits belong to the group as long as there is one with that number.
            while not name[1] and new[place : place + 1] in tuple("0123456789"):
                longer = group * 10 + int(new[place])
                if longer > expression.groups:
                    break
                group, place = longer, place + 1
            if group > expression.groups:
                raise ValueError(f"{new!r} has the group {group}, and the expression has {expression.groups}")
            found.append(group)
        elif sign == "\\":
            if place == len(new):
                raise ValueError(f"{new!r} ends with a backslash")
            found.append(new[place])
            place += 1
        else:
            found.append(sign)
    return tuple(found)


def split_to_array(text: str, pattern: str) -> list[str]:
    """Return the parts of a text between matches, as Guava does, or Java if it matches an empty text."""
    expression = java_regex(pattern)
    return _java_split(text, expression) if expression.fullmatch("") else _guava_split(text, expression)


def _java_split(text: str, expression: re.Pattern[str]) -> list[str]:
    """Return the parts as ``Pattern.split``: without empty texts at the end, nor one before an empty first match."""
    found, start = [], 0
    for match in expression.finditer(text):
        if match.end() > 0:
            found.append(text[start : match.start()])
            start = match.end()
    if start == 0:
        return [text]
    found.append(text[start:])
    while found and not found[-1]:
        found.pop()
    return found


def _guava_split(text: str, expression: re.Pattern[str]) -> list[str]:
    found = []
    place = 0
    while place >= 0:
        start = place
        while place >= 0:
            match = expression.search(text, place)
            end, place = (len(text), -1) if match is None else match.span()
            if place != start:
                found.append(text[start:end])
                break
            # An empty match at the start of a part ends no part.
            place = place + 1 if place < len(text) else -1
    return found
