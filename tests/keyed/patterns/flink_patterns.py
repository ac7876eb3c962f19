"""Patterns and conditions of Flink's tests as texts, as `flink_cases.json` and `flink_streams.json` have them.

A step is a method of `Pattern` with its arguments: ``followed_by end name=d``, ``times 2 3 within 5``,
``begin_skip_to_first:b a name=a``, ``within_previous 3``. A group is a list: its method, then its steps.
A condition is a list of tests: ``sub`` (a row of the subclass), ``name=a``, ``name^a`` (begins with), ``name~a|b``
(contains one of these), ``price>3``, ``price=a.price`` (that of the first row of step ``a``), ``count(d)=3``,
``sum(a)=6`` (of the prices of a step's rows) and ``sum(a+row)<5`` (with this row).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from keyed.patterns import AfterMatchSkipStrategy, Pattern

_TEST = re.compile(r"(sum|count)\((\w+)(\+row)?\)(<=|>=|<|=)(.+)|(\w+)([>=^~])(.+)")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "^": str.startswith,
    "~": lambda text, parts: any(part in text for part in parts.split("|")),
}


def _passes(text: str, row: Any, match: Any) -> bool:
    if text == "sub":
        return row["volume"] is not None
    parts = _TEST.fullmatch(text)
    assert parts is not None, text
    function, step, with_row, sign, number, field, field_sign, value = parts.groups()
    if function:
        rows = [*match[step], row] if with_row else match[step]
        return _COMPARISONS[sign](
            len(rows) if function == "count" else sum(each["price"] for each in rows), float(number)
        )
    if field == "name":
        return _COMPARISONS[field_sign](row[field], value)
    if re.fullmatch(r"\w+\.price", value):
        return bool(match[value.removesuffix(".price")][0]["price"] == row["price"])
    return _COMPARISONS[field_sign](row[field], float(value))


def condition_of(text: str) -> Callable[[Any, Any], bool]:
    """Return the condition that a text describes, such as ``sub, name=middle, volume>5``."""
    return lambda row, match: all(_passes(part, row, match) for part in text.split(", "))


def _strategy_of(text: str) -> Any:
    name, *step = text.split(":")
    strategy: Any = getattr(AfterMatchSkipStrategy, name.removesuffix("_strictly"))(*step)
    return strategy.throw_exception_on_miss() if name.endswith("_strictly") else strategy


def pattern_of(steps: list[Any]) -> Pattern:
    """Return the pattern that steps describe."""
    pattern: Any = Pattern
    for step in steps:
        method, *arguments = [step[0], pattern_of(step[1:])] if isinstance(step, list) else step.split(" ", 2)
        if method.startswith("begin"):
            strategy = method.removeprefix("begin").removeprefix("_")
            after = _strategy_of(strategy) if strategy else None
            pattern = Pattern.begin(arguments[0], *map(condition_of, arguments[1:]), after_match=after)
        elif method in {"where", "or_where", "until"}:
            pattern = getattr(pattern, method)(condition_of(step.removeprefix(f"{method} ")))
        elif method in {"times", "times_or_more"}:
            counts, _, within = step.removeprefix(f"{method} ").partition(" within ")
            pattern = getattr(pattern, method)(*map(int, counts.split()), within=int(within) if within else None)
        elif method.startswith("within"):
            pattern = pattern.within(int(arguments[0]), since="previous" if method.endswith("previous") else "first")
        else:
            pattern = getattr(pattern, method)(*arguments[:1], *map(condition_of, arguments[1:]))
    return pattern
