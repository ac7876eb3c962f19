"""Tests as text: the code of values, of functions, and the imports that a test needs to be pasted."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import attrs

from keyed.job.functions import Function
from keyed.job.state import State

#: Where names of the kit are imported from.
_KNOWN = {
    "KeyedTestHarness": "keyed.testing",
    "Record": "keyed.testing",
    "SecondRecord": "keyed.testing",
    "OutputTag": "keyed",
    "bounded_out_of_orderness": "keyed",
    "WatermarkStrategy": "keyed",
    "assert_deterministic": "keyed.testing",
}
#: Names that are modules.
_MODULES = {"datetime": "datetime", "keyed": "keyed", "pa": "pyarrow as pa", "st": "hypothesis.strategies as st"}


def code_of(value: Any) -> str:
    """Return the code that creates a value, if its ``repr`` or that of its parts is code."""
    if isinstance(value, Enum):
        return f"{_name(type(value))}.{value.name}" if value.name else repr(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124 - a NaN
        return f"float({str(value)!r})"
    if isinstance(value, Function):
        return _of_function(value)
    if inspect.isfunction(value):
        return _of_lambda(value) if value.__name__ == "<lambda>" else _name(value)
    if type(value) in (list, tuple, set, frozenset) and value:
        inner = ", ".join(map(code_of, value))
        if isinstance(value, tuple):
            return f"({inner}{',' if len(value) == 1 else ''})"
        return f"[{inner}]" if isinstance(value, list) else f"{type(value).__name__}([{inner}])"
    if type(value) is dict:
        return "{" + ", ".join(f"{code_of(key)}: {code_of(each)}" for key, each in value.items()) + "}"
    if (fields := _fields(value)) is not None:
        return f"{_name(type(value))}({', '.join(f'{name}={code_of(each)}' for name, each in fields.items())})"
    return repr(value)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the arguments of an object of an attrs class, a dataclass or a named tuple; ``None`` for any other."""
    if isinstance(value, type):
        return None
    if attrs.has(type(value)) and not isinstance(value, State):
        return {
            field.alias or field.name: getattr(value, field.name) for field in attrs.fields(type(value)) if field.init
        }
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else None


def _name(thing: Any) -> str:
    name = str(thing.__qualname__)
    return str(thing.__name__) if "<locals>" in name else name


def _of_function(function: Function) -> str:
    """Return the call that creates a keyed function; its arguments are taken from the attributes of the same names."""
    if (own := repr(function)) != f"{type(function).__name__}()":
        return own
    arguments = []
    for name, parameter in inspect.signature(type(function)).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kept = [vars(function)[each] for each in (name, f"_{name}") if each in getattr(function, "__dict__", {})]
        if kept and not _same(kept[0], parameter.default):
            arguments.append(f"{name}={code_of(kept[0])}")
        elif not kept and parameter.default is parameter.empty:
            arguments.append(f"{name}=...")
    return f"{type(function).__name__}({', '.join(arguments)})"


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _of_lambda(function: Any) -> str:
    """Return the source code of a lambda, or dots if it is not available."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[function.__module__]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return "..."
    # The start of its body: one instruction covers all of it.
    starts = min((place[0], place[2]) for place in function.__code__.co_positions() if place[3])
    lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    candidates = [node for node in lambdas if (node.body.lineno, node.body.col_offset) == starts]
    return ast.unparse(candidates[0]) if candidates else "..."


def as_test(name: str, lines: Iterable[str], *made_of: Any) -> str:
    """Return a test that can be pasted.

    Args:
        name: Its name, without ``test_``.
        lines: Its code.
        made_of: The objects in the code: their classes and functions are imported.
    """
    body = "\n".join([f"def test_{name}():", *(f"    {line}" for line in lines)])
    homes: dict[str, str] = {}
    for thing in _things(made_of, set()):
        if thing.__module__ not in ("builtins", "__main__") and "<locals>" not in thing.__qualname__:
            homes.setdefault(thing.__qualname__.partition(".")[0], thing.__module__)
    modules, imported = set(), dict[str, set[str]]()
    for used in _free_names(body):
        if used in _MODULES:
            modules.add(_MODULES[used])
        elif used in _KNOWN or used in homes:
            imported.setdefault(_KNOWN.get(used) or homes[used], set()).add(used)
        else:
            home = next((each for each in homes.values() if hasattr(sys.modules.get(each), used)), None)
            if home is not None:
                imported.setdefault(home, set()).add(used)
    head = [f"import {module}" for module in sorted(modules)]
    head += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(imported.items())]
    return "\n".join([*head, "", "", body]) if head else body


def _free_names(code: str) -> list[str]:
    """Return the names that code uses and does not define."""
    try:
        nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name | ast.arg | ast.alias)]
    except SyntaxError:
        return []
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(dir(builtins))
    return sorted({node.id for node in names} - bound)


def _things(value: Any, seen: set[int]) -> Iterator[Any]:
    """Return the classes and functions in a value."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, type) or inspect.isfunction(value):
        yield value
        return
    yield type(value)
    parts: Any = _fields(value)
    parts = parts.values() if parts is not None else ()
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes):
        parts = value
    elif isinstance(value, Function):
        yield from (cls for cls in type(value).__mro__ if cls is not object)
        parts = getattr(value, "__dict__", {}).values()
    elif isinstance(value, State):
        parts = value._types()  # noqa: SLF001 - of our own
    for part in list(parts):
        yield from _things(part, seen)
