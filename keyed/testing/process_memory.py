"""Memory of a process outside of a function's states: attributes of classes, globals, closures, caches.

A new process has the initial values; a test, which runs in one process, has to reset them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from enum import Enum
from types import CellType, FunctionType, ModuleType
from typing import Any

import attrs

from keyed.job.functions import Function, names_in
from keyed.job.state import State
from keyed.testing.moved_clocks import LIBRARIES
from keyed.testing.printing import code_of

#: Types of values that are reset in place, so that other references to them are reset too.
_CONTAINERS = (list, dict, set, bytearray, deque)
_PLAIN = (*_CONTAINERS, int, float, str, bytes, tuple, type(None))
_MISSING = object()


@attrs.define
class _Place:
    """A variable or attribute with a value.

    Attributes:
        code: Its code in a test.
        holder: The object with the attribute.
        name: Name of the attribute.
        first: The initial value.
        content: A copy of its content.
        touched: True if it was found changed at least once.
    """

    code: str
    holder: Any
    name: str
    first: Any
    content: Any
    touched: bool = False

    def look(self) -> bool:
        """Return true if it has changed, or had changed at an earlier call."""
        now = getattr(self.holder, self.name, _MISSING)
        try:
            same = type(now) is type(self.first) and bool(_form(now) == _form(self.content))
        except Exception:  # noqa: BLE001 - what cannot be compared may be another one
            same = False
        self.touched = self.touched or not same
        return not same

    def reset(self) -> None:
        """Reset it to its initial value."""
        if self.look():
            content = deepcopy(self.content)
            if isinstance(self.first, _CONTAINERS):
                self.first.clear()
                (self.first.update if isinstance(self.first, dict | set) else self.first.extend)(content)
                content = self.first
            if getattr(self.holder, self.name, _MISSING) is not content:
                setattr(self.holder, self.name, content)


class _Globals:
    """The global names of functions, as attributes."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


class ProcessMemory:
    """The current memory of a process that a function uses, to be reset later.

    It covers plain values: attributes of the function's classes, globals and variables of closures that their methods
    use, directly or through other functions; defaults of arguments; and attributes of objects of the user's own classes
    in these. The caches of `functools` are emptied, as in a new process.

    Args:
        function: The function.
    """

    def __init__(self, function: Function) -> None:
        self._classes = [cls for cls in type(function).__mro__ if _is_users(cls.__module__)]
        self._places: list[_Place] = []
        self._seen: set[FunctionType] = set()
        self._cells: list[CellType] = []
        self._caches: dict[str, Any] = {}
        self._filled: set[str] = set()
        self._added: set[tuple[str, str]] = set()
        self._objects: list[tuple[str, Any, set[str]]] = []
        for cls in self._classes:
            for name, value in list(vars(cls).items()):
                if not name.startswith("__"):
                    self._keep(f"{cls.__name__}.{name}", cls, name, value)
                self._follow(value, f"{cls.__name__}.{name}")
        for name, value in getattr(function, "__dict__", {}).items():
            self._follow(value, name)

    @contextmanager
    def as_at_first(self) -> Iterator[None]:
        """Reset it, now and afterwards."""
        self.reset()
        try:
            yield
        finally:
            self.reset()

    def reset(self) -> None:
        """Reset it to the initial values."""
        for place in self._places:
            place.reset()
        for code, holder, name in self._new():
            self._added.add((code, name))
            type.__delattr__(holder, name) if isinstance(holder, type) else object.__delattr__(holder, name)
        for code, cache in self._caches.items():
            if cache.cache_info().currsize:
                self._filled.add(code)
                cache.cache_clear()

    def lines(self) -> list[str]:
        """Return the code that resets the changed values in a test."""
        lines = []
        for place in self._places:
            if place.look() or place.touched:
                lines += f"{place.code} = {code_of(place.content)}".split("; ", place.code.count("; "))
        for code, name in sorted(self._added | {(code, name) for code, _, name in self._new()}):
            *imported, holder = code.split("; ")
            lines += [*imported, f"if hasattr({holder}, {name!r}):", f"    del {holder}.{name}"]
        for code, cache in self._caches.items():
            if cache.cache_info().currsize or code in self._filled:
                self._filled.add(code)
                lines += f"{code}.cache_clear()".split("; ")
        return lines

    def _new(self) -> list[tuple[str, Any, str]]:
        """Return new attributes of classes and objects, with their code."""
        known = {place.code for place in self._places}
        of_classes: list[tuple[str, Any, str]] = [
            (cls.__name__, cls, name)
            for cls in self._classes
            for name, value in vars(cls).items()
            if not name.startswith("__") and _is_data(value) and f"{cls.__name__}.{name}" not in known
        ]
        return of_classes + [
            (code, thing, name) for code, thing, names in self._objects for name in attributes_of(thing).keys() - names
        ]

    def _keep(self, code: str, holder: Any, name: str, value: Any) -> None:
        """Track an attribute with plain values, and the attributes of an object in it."""
        if any(place.code == code for place in self._places):
            return
        if is_own(value) and all(value is not thing for _, thing, _ in self._objects):
            self._objects.append((code, value, set(attributes_of(value))))
            for each, held in attributes_of(value).items():
                self._keep(f"{code}.{each}", value, each, held)
            for cls in type(value).__mro__:
                for each, method in list(vars(cls).items()) if _is_users(cls.__module__) else ():
                    self._follow(method, f"{code}.{each}")
        if not _is_data(value):
            return
        try:
            content = deepcopy(value)
        except Exception:  # noqa: BLE001 - whatever is in it; then it cannot be put back
            return
        self._places.append(_Place(code, holder, name, value, content))

    def _follow(self, value: Any, name: str) -> None:
        """Track the values that a function uses, directly or through other functions."""
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if callable(getattr(value, "cache_clear", None)) and callable(getattr(value, "cache_info", None)):
            self._caches.setdefault(name, value)
            value = getattr(value, "__wrapped__", None)
        if not isinstance(value, FunctionType) or value in self._seen or not _is_users(value.__module__):
            return
        self._seen.add(value)
        self._keep(f"{name}.__defaults__", value, "__defaults__", value.__defaults__)
        self._keep(f"{name}.__kwdefaults__", value, "__kwdefaults__", value.__kwdefaults__)
        module, names = sys.modules.get(value.__module__), value.__globals__
        # The globals of a function from another module, or of one compiled from text, are not those of this module.
        known = module is not None and vars(module) is names
        for used in sorted(names_in(value.__code__)):
            if used in names and not used.startswith("__"):
                code = f"{name}.__globals__[{used!r}]"
                if known:
                    code = f"import {value.__module__}; {value.__module__}.{used}"
                self._keep(code, module if known else _Globals(names), used, names[used])
                self._follow(names[used], code)
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
    return root != "keyed" and root not in sys.stdlib_module_names


def is_own(value: Any) -> bool:
    """Return true if a value is an object of a user's class, not of a library's."""
    cls = type(value)
    if isinstance(value, State | Function | Enum | type | ModuleType) or not _is_users(cls.__module__):
        return False
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return not isinstance(value, _PLAIN) and not file.startswith(LIBRARIES)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, in its dictionary or in slots."""
    slots = [name for cls in type(value).__mro__ for name in _slot_names(vars(cls).get("__slots__", ()))]
    attributes = {name: getattr(value, name, _MISSING) for name in slots if not name.startswith("__")}
    return {name: held for name, held in (attributes | getattr(value, "__dict__", {})).items() if held is not _MISSING}


def _slot_names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _form(value: Any) -> Any:
    """Return a comparable form of a value: objects without their own comparison are compared by attributes."""
    if isinstance(value, dict):
        return {key: _form(each) for key, each in value.items()}
    if isinstance(value, list | tuple | deque):
        return [type(value), *map(_form, value)]
    return (type(value), _form(attributes_of(value))) if is_own(value) else value


def _is_data(value: Any) -> bool:
    return isinstance(value, _PLAIN) and not isinstance(value, State)
