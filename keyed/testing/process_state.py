"""State of a process that the user's own code may depend on: clocks, hashes, random numbers, and its memory.

A second run a few milliseconds after the first one is on the same day, usually in the same second, and before every
time-out. In the process of `keyed.testing.other_process` the user's code reads a clock that is more than a year ahead,
at another time of day, and advances by a minute at each read. A script that reads one is run again with the time of
its rows, and with one before them. Libraries read the machine's clock.

The hash of a value with text depends on ``PYTHONHASHSEED``. Half of all hash seeds leave `hash(x) % 2` of a text as it
is, and hardly any makes `hash(x) % 1_000` zero. So in one process of `keyed.testing.other_process` the hash of each
text is negative and a multiple of all usual numbers of buckets, and in another one it is positive and one below such a
multiple. A process uses one of the two from its start, because a table that a module builds by `hash` has to be found
again. The order of sets stays that of the hash seed.

The next draws of `random`, `secrets` and NumPy are low, high, or from another seed. Hypothesis seeds `random` and NumPy
equally before each example, so two runs of an example would draw the same numbers, and an event of small probability,
such as ``random.random() < 0.001``, would hardly ever occur. The first numbers are set to the lowest, or the highest,
possible; later ones follow a seed, for functions that draw until a number fits.

`secrets`, `random.SystemRandom` and `uuid.uuid4` read the system's random bytes, which no seed repeats: an example that
failed once would pass when it is tried again, and could not be shrunk. So numbers that the user's own code draws there
come from here. Identifiers, which have more bytes, still come from the system, so that they are unique.

The memory of a process outside of a function's states is attributes of classes, globals, closures, caches. A new
process has the initial values; a test, which runs in one process, has to reset them.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import os
import random
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from enum import Enum
from functools import wraps
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any, Literal

import attrs

from keyed.job.functions import Function, names_in
from keyed.job.state import State
from keyed.testing.printing import code_of

#: Another year, month, day of the month and of the week, hour, minute and second.
_AHEAD = 401 * 86_400 + 5 * 3_600 + 17 * 60 + 23.457
_PER_LOOK = 61.7
#: Folders of libraries.
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


class MovedClocks:
    """The clocks of a process, which must not be used for anything else; moved before user code is imported.

    Attributes:
        dated: Number of reads of the time of day.
    """

    def __init__(self) -> None:
        self.dated = 0
        self._looks = 0
        self._ahead = _AHEAD
        self._now = time.time
        _move(self)

    @contextmanager
    def at(self, instant: float) -> Iterator[None]:
        """Make it this time of day at the next read, in seconds since the epoch."""
        self._ahead = instant - self._now() - _PER_LOOK * self._looks
        try:
            yield
        finally:
            self._ahead = _AHEAD

    def shift(self, *, elapsed: bool) -> float:
        """Count a read, and return the shift of the clock in seconds; ``elapsed`` for one without an epoch."""
        shift = (_AHEAD if elapsed else self._ahead) + _PER_LOOK * self._looks
        self._looks += 1
        self.dated += not elapsed
        return shift


def _move(clocks: MovedClocks) -> None:
    now, time_ns = time.time, time.time_ns

    def moved(*, elapsed: bool = False) -> float:
        """Return the shift of the clock for the caller's caller."""
        user = is_of_user(sys._getframe(2).f_globals)  # noqa: SLF001 - there is no other way to the caller
        return clocks.shift(elapsed=elapsed) if user else 0

    def reading(real: Callable[[], Any], units: Callable[[float], Any] = float) -> Callable[[], Any]:
        elapsed = real not in (now, time_ns)

        @wraps(real)
        def read() -> Any:
            return real() + units(moved(elapsed=elapsed))

        return read

    def shown(real: Callable[..., Any], number: int) -> Callable[..., Any]:
        """Return a function of the time that uses the moved clock if called with at most this many arguments."""

        @wraps(real)
        def show(*arguments: Any) -> Any:
            if len(arguments) > number:
                return real(*arguments)
            instant: Any = now() + moved()
            return real(*arguments, instant if number == 0 and real is not asctime else localtime(instant))

        return show

    localtime, asctime = time.localtime, time.asctime
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, reading(getattr(time, name)))
        setattr(time, f"{name}_ns", reading(getattr(time, f"{name}_ns"), lambda seconds: int(seconds * 1e9)))
    for name, name_and_position in (("localtime", 0), ("gmtime", 0), ("ctime", 0), ("asctime", 0), ("strftime", 1)):
        setattr(time, name, shown(getattr(time, name), name_and_position))

    def present(cls: type[datetime], tz: Any = None) -> datetime:
        return cls.fromtimestamp(now() + moved(), tz)

    def present_utc(cls: type[datetime]) -> datetime:
        return cls.fromtimestamp(now() + moved(), UTC).replace(tzinfo=None)

    # `date.today` and `datetime.today` call `time.time`; these two do not, and attributes of their class cannot be set.
    methods: Any = gc.get_referents(datetime.__dict__)[0]
    methods |= {"now": classmethod(present), "utcnow": classmethod(present_utc)}
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def is_of_user(names: Mapping[str, Any]) -> bool:
    """Return true if code with these globals is neither that of a library nor part of keyed."""
    if str(names.get("__name__")).partition(".")[0] in ("keyed", "windows"):
        return False
    file = str(names.get("__file__") or names.get("__spec__") or "")
    return not file.startswith(LIBRARIES) and "frozen" not in file


Extreme = Literal["low", "high"]
#: All numbers to 16, powers of two to 4,096 and of ten to 10,000 divide it.
_BUCKETS = 2**12 * 3**2 * 5**4 * 7 * 11 * 13
#: Number of different hashes: few enough to be near the least and the largest one.
_HASHES = 2**22
_MOST = 2**63 // _BUCKETS


class ExtremeHashes:
    """The hashes of a process, which must not be used for anything else; set before user code is imported.

    Args:
        extreme: The kind.

    Attributes:
        text_hashes: Number of hashes of values with text that the user's code has asked for.
    """

    def __init__(self, extreme: Extreme) -> None:
        self.text_hashes = 0
        real = hash

        def extreme_hash(value: object, /) -> int:
            hashed = real(value)
            # The hash of an empty text is 0 with any seed.
            if not hashed or not has_text(value) or not is_of_user(sys._getframe(1).f_globals):  # noqa: SLF001
                return hashed
            self.text_hashes += 1
            multiple = (_MOST - hashed % _HASHES) * _BUCKETS
            return -multiple if extreme == "low" else multiple - 1

        names: Any = builtins
        names.hash = extreme_hash


def has_text(value: Any) -> bool:
    """Return true if the hash of a value depends on the hash seed of the process; classes may have their own hash."""
    hashed: Any = type(value).__hash__
    if hashed in (tuple.__hash__, frozenset.__hash__):
        return any(map(has_text, value))
    if hashed in (datetime.__hash__, time_of_day.__hash__):
        # With a zone it is the hash of a duration.
        return bool(value.utcoffset() is None)
    return hashed in (str.__hash__, bytes.__hash__, date.__hash__, Enum.__hash__)


Draws = Literal["low", "high", "seeded"]
#: Number of extreme words of 32 bits, and of extreme numbers of the system; a floating-point number uses two words.
_EXTREME_WORDS = 64
#: Up to this many bytes of the system are a number; more are an identifier.
_NUMBER = 8
#: The state of a Mersenne twister for which the next number is 0xFFFFFFFF: its tempering, undone.
_HIGHEST = 0x12DD9BB3
_STDLIB = sysconfig.get_path("stdlib")


@contextmanager
def drawing(draws: Draws, seed: int) -> Iterator[None]:
    """Set the next draws of `random`, and of NumPy if it is imported; within the context those of the system, too."""
    _set_next(draws, seed)
    system = os.urandom
    thread = threading.get_ident()
    following = random.Random(f"{draws} {seed}")  # noqa: S311 - chance of tests
    numbers = 0

    def urandom(size: int, /) -> bytes:
        nonlocal numbers
        if size > _NUMBER or threading.get_ident() != thread or not _is_user_frame(sys._getframe(1)):  # noqa: SLF001
            return system(size)
        numbers += 1
        if draws == "seeded" or numbers > _EXTREME_WORDS:
            return following.randbytes(size)
        return (b"\0" if draws == "low" else b"\xff") * size

    # `random` has a name of its own for it.
    module: Any = random
    os.urandom = module._urandom = urandom  # noqa: SLF001
    try:
        yield
    finally:
        os.urandom = module._urandom = system  # noqa: SLF001


def _is_user_frame(frame: FrameType | None) -> bool:
    """Return true if the innermost caller outside the standard library is neither a library nor part of keyed."""
    while frame is not None:
        file = frame.f_code.co_filename
        if "site-packages" in file or not (file.startswith(_STDLIB) or "frozen" in file):
            return is_of_user(frame.f_globals)
        frame = frame.f_back
    return False


def _set_next(draws: Draws, seed: int) -> None:
    words = list(random.Random(seed).getstate()[1][:-1])  # noqa: S311 - chance of tests
    if draws != "seeded":
        words[:_EXTREME_WORDS] = [0 if draws == "low" else _HIGHEST] * _EXTREME_WORDS
    random.setstate((3, (*words, 0), None))
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.set_state(("MT19937", words, 0, 0, 0.0))


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
