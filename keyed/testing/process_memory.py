"""What a process remembers of a function outside of its states: attributes of classes, globals, closures, defaults.

A new process has all of it as it was at first; a test, which has one process for all, has to put it back.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import CellType, CodeType, FunctionType
from typing import Any

import attrs

from keyed.functions import Function
from keyed.state import State

#: What is put back in place, so that whoever holds it sees it.
_CONTAINERS = (list, dict, set, bytearray, deque)
_PLAIN = (*_CONTAINERS, int, float, str, bytes, tuple, type(None))
_MISSING = object()


@attrs.define
class _Place:
    """Where a value is.

    Attributes:
        code: The code of it in a test.
        get: Gives what is there, `_MISSING` if nothing is.
        put: Puts a value there; deletes it for `_MISSING`.
        first: What was there at first.
        content: A copy of what that held.
        touched: Whether it was ever found to be another one.
    """

    code: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    first: Any
    content: Any
    touched: bool = False

    def look(self) -> bool:
        """Tell whether it is another one, or was when that was asked before."""
        now = self.get()
        try:
            same = type(now) is type(self.first) and bool(now == self.content)
        except Exception:  # noqa: BLE001 - what cannot be compared may be another one
            same = False
        self.touched = self.touched or not same
        return not same

    def put_back(self) -> None:
        """Make it what it was at first."""
        if self.look():
            content = deepcopy(self.content)
            if isinstance(self.first, _CONTAINERS):
                self.first.clear()
                (self.first.update if isinstance(self.first, dict | set) else self.first.extend)(content)
                content = self.first
            self.put(content)


class ProcessMemory:
    """The memory of a process that a function uses, as it is now, to be put back.

    It is that in plain values: attributes of the function's classes, globals and variables of closures that their
    methods use, directly or through other functions, and defaults of arguments.

    Args:
        function: The function.
    """

    def __init__(self, function: Function) -> None:
        self._classes = [cls for cls in type(function).__mro__ if _is_users(cls.__module__)]
        self._places: list[_Place] = []
        self._seen: set[FunctionType] = set()
        self._cells: list[CellType] = []
        for cls in self._classes:
            for name, value in list(vars(cls).items()):
                if not name.startswith("__"):
                    self._keep(f"{cls.__name__}.{name}", cls, name, value)
                self._follow(value, f"{cls.__name__}.{name}")
        for name, value in getattr(function, "__dict__", {}).items():
            self._follow(value, name)

    @contextmanager
    def as_at_first(self) -> Iterator[None]:
        """Put it back, now and afterwards."""
        self.put_back()
        try:
            yield
        finally:
            self.put_back()

    def put_back(self) -> None:
        """Make it as it was at first."""
        for place in self._places:
            place.put_back()
        for cls, name in self._new():
            delattr(cls, name)

    def lines(self) -> list[str]:
        """Return the code that does so in a test, for what was seen to change."""
        lines = []
        for place in self._places:
            if place.look() or place.touched:
                *imported, target = place.code.split("; ")
                lines += [*imported, f"{target} = {place.content!r}"]
        return lines

    def _new(self) -> list[tuple[type, str]]:
        """Return the attributes of classes that there were not at first."""
        known = {place.code for place in self._places}
        return [
            (cls, name)
            for cls in self._classes
            for name, value in vars(cls).items()
            if not name.startswith("__") and _is_data(value) and f"{cls.__name__}.{name}" not in known
        ]

    def _keep(self, code: str, holder: Any, name: str, value: Any) -> None:
        """Keep an attribute with plain values."""
        if not _is_data(value) or any(place.code == code for place in self._places):
            return
        try:
            content = deepcopy(value)
        except Exception:  # noqa: BLE001 - whatever is in it; then it cannot be put back
            return
        get, put = partial(getattr, holder, name, _MISSING), partial(setattr, holder, name)
        self._places.append(_Place(code, get, put, value, content))

    def _follow(self, value: Any, name: str) -> None:
        """Keep what a function uses, and what the functions use that it uses."""
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if not isinstance(value, FunctionType) or value in self._seen or not _is_users(value.__module__):
            return
        self._seen.add(value)
        self._keep(f"{name}.__defaults__", value, "__defaults__", value.__defaults__)
        self._keep(f"{name}.__kwdefaults__", value, "__kwdefaults__", value.__kwdefaults__)
        module = sys.modules.get(value.__module__)
        for used in sorted(_names(value.__code__)):
            if module is not None and used in vars(module) and not used.startswith("__"):
                self._keep(f"import {module.__name__}; {module.__name__}.{used}", module, used, vars(module)[used])
                self._follow(vars(module)[used], f"{module.__name__}.{used}")
        for index, cell in enumerate(value.__closure__ or ()):
            try:
                held = cell.cell_contents
            except ValueError:
                continue
            if all(cell is not each for each in self._cells):
                self._cells.append(cell)
                self._keep(f"{name}.__closure__[{index}].cell_contents", cell, "cell_contents", held)
            self._follow(held, f"{name}.__closure__[{index}].cell_contents")


def _is_users(module: str) -> bool:
    root = module.partition(".")[0]
    return root not in ("keyed", "windows") and root not in sys.stdlib_module_names


def _is_data(value: Any) -> bool:
    return isinstance(value, _PLAIN) and not isinstance(value, State)


def _names(code: CodeType) -> set[str]:
    """Return the names of globals that code may use, that of functions inside it too."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found
