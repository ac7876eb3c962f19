"""Arguments of users: checks, durations and times, and short representations in messages.

Representations identify an object, and show neither data nor addresses.

Durations are whole milliseconds everywhere, `timedelta` is accepted everywhere a duration is. A call that is about one
duration also takes it as keywords, as in ``with_idleness(minutes=1)``. Options, and calls with two durations, take one
value each.
"""

from __future__ import annotations

import base64
import difflib
import functools
import html
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack, cast
from urllib.parse import quote

from keyed.errors import DefinitionError


def text(value: Any, what: str, expected: str = "text") -> str:
    """Return a text that is not empty.

    Args:
        value: The user's argument.
        what: Names it in messages.
        expected: Names what it has to be.

    Raises:
        DefinitionError: It is something else, empty, or has a NUL.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise DefinitionError(f"{what}={shown(value)} must be {expected}")
    return value


def path_text(value: Any, what: str, expected: str = "a path") -> str:
    """Return a path as text. See `text`."""
    return text(os.fspath(value) if isinstance(value, os.PathLike) else value, what, expected)


def names(value: Any, what: str) -> tuple[str, ...]:
    """Return one or several names of columns.

    Raises:
        DefinitionError: It is something else, or a name comes twice.
    """
    columns = (value,) if isinstance(value, str) else value
    is_right = isinstance(columns, Sequence) and all(isinstance(name, str) and name for name in columns)
    if not is_right or len({*columns}) < len(columns):
        raise DefinitionError(f"{what}={shown(value)} must be the name of a column, or a list of different names")
    return tuple(columns)


def texts(value: Any, what: str) -> dict[str, str]:
    """Return options, whose values are never shown.

    Raises:
        DefinitionError: It is no mapping of texts.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise DefinitionError(f"{what} must be a dict of texts by name, not {_kinds(value)}")
    return dict(value)


def setting_text(value: Any) -> str:
    """Return the value of a setting as text, in which booleans are ``true`` and ``false``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kinds(value: Any) -> str:
    if not isinstance(value, Mapping):
        return type(value).__name__
    return next(
        f"{type(each).__name__} for {shown(name)}"
        for name, each in value.items()
        if not isinstance(name, str) or not isinstance(each, str)
    )


F = TypeVar("F", bound=Callable[..., Any])
_LONGEST = 200
#: Names of settings whose values are secrets.
_SECRET = re.compile(r"password|secret|token|user\.info|proxy|jaas|oauthbearer\.config|\.pem$")


class Shown:
    """Shows the ``repr`` in notebooks."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


#: Rows and columns of a table in a notebook, and characters of a value there.
SHOWN_ROWS, _COLUMNS, _CELL = 20, 50, 100


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], more: bool) -> str:
    """Return a table for notebooks: all text escaped, with a bounded number of rows, columns and characters.

    Args:
        title: The line above it.
        columns: Names of the columns.
        rows: The rows; those after the first 20 are left out.
        more: True if there are more rows than these.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        cut = [*cells[:_COLUMNS], *(["..."] if len(cells) > _COLUMNS else [])]
        return "<tr>" + "".join(f"<{tag}>{html.escape(_cell(each))}</{tag}>" for each in cut) + "</tr>"

    body = [line([each if isinstance(each, str) else shown(each) for each in row], "td") for row in rows[:SHOWN_ROWS]]
    below = "<p>...</p>" if more or len(rows) > SHOWN_ROWS else ""
    head = f"<code>{html.escape(title)}</code><table><thead>{line(columns, 'th')}</thead>"
    return f"{head}<tbody>{''.join(body)}</tbody></table>{below}"


def _cell(text: str) -> str:
    # Lone surrogates are no text for a notebook.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _CELL else text[: _CELL - 3] + "..."


class NoValue(Shown):
    """An object that is often passed instead of its value: a state."""

    def mistake(self) -> str:
        """Return the remedy for using the state as its value."""
        raise NotImplementedError(f"{type(self).__name__} does not define mistake")


def mistaken(value: Any) -> str:
    """Return the remedy for a value that is, or contains, a state or an uncalled method; else an empty text."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else [value]
    for part in parts:
        if isinstance(part, NoValue):
            return part.mistake()
        if inspect.ismethod(part):
            return f"{part.__name__} is a method that was not called; call it: {part.__name__}()"
    return ""


def named(thing: Any) -> str:
    """Return the name of a class or function, or of the class of an object without its own ``repr``."""
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return thing.__name__
    has_repr: Any = type(thing).__repr__
    return type(thing).__name__ if has_repr is object.__repr__ else repr(thing)


def shown(value: Any) -> str:
    """Return the value's representation, cut to what fits into a message, and without what no log can encode."""
    try:
        text = repr(value)
    except RecursionError:
        return f"<{type(value).__name__}, nested too deep to be shown>"
    # Names of columns are shown as they are; text in quotes is escaped by Python.
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def without_credentials(address: object) -> str:
    """Return a path or its ``repr``; a URL without what precedes its last ``@``, because a password may hold one."""
    return re.sub(r"^(['\"]?[A-Za-z][A-Za-z0-9+.:-]*:/+).*@", r"\1", str(address), flags=re.DOTALL)


def without_secrets(text: str, settings: Mapping[str, Any]) -> str:
    """Return a text of a client or server with ``***`` for the secrets among a client's settings, in any encoding."""
    secrets = {value for name, value in settings.items() if isinstance(value, str) and _SECRET.search(name)}
    secrets |= {secret.partition(":")[2] for secret in secrets}
    forms = {form for secret in secrets for form in _forms(secret) if form}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, "***")
    return text


def _forms(secret: str) -> tuple[str, ...]:
    encoded = base64.b64encode(secret.encode("utf-8", "surrogatepass")).decode() if secret else ""
    return (
        secret,
        repr(secret)[1:-1],
        quote(secret, safe="", errors="replace"),
        quote(secret, errors="replace"),
        encoded,
    )


def type_of(value: Any) -> str:
    """Return the name of a value's type with its article: ``an int``."""
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiouAEIO" else f"a {name}"


def shows_options(kind: Any, **defaults: Any) -> Callable[[F], F]:
    """Show the options of a function in its signature, and refuse others with a `TypeError`.

    The error names the call, and an option with a similar name.

    Args:
        kind: The `TypedDict` that the function unpacks.
        defaults: Default values of the options, where they are not ``None``.
    """
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=hint.__forward_arg__
        )
        for name, hint in kind.__annotations__.items()
    ]

    def shown(function: F) -> F:
        signature = inspect.signature(function)
        *others, _ = signature.parameters.values()
        known = {each.name: each for each in (*others, *options)}
        checked = _refusing(function, known)
        vars(checked)["__signature__"] = signature.replace(parameters=list(known.values()))
        return checked

    return shown


def names_options(function: F) -> F:
    """Make a function refuse unknown keywords, with its own keywords in the message."""
    return _refusing(function, inspect.signature(function).parameters)


def _refusing(function: F, known: Mapping[str, Any]) -> F:
    """Return a function that refuses other keywords than the known ones."""

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # what pytest shows of a failing test is the call
        if unknown := [name for name in options if name not in known]:
            name = unknown[0]
            called = function.__qualname__.removesuffix(".__init__")
            names = ", ".join(each for each in known if each != "self")
            raise TypeError(f"{called}: {name!r} is not an option{similar(name, known)}; the options are {names}")
        return function(*args, **options)

    return cast("F", checked)


def similar(name: str, names: Iterable[str]) -> str:
    """Return `` (did you mean …?)`` for an unknown name that is like one of the known names, else nothing."""
    return "".join(f" (did you mean {each!r}?)" for each in difflib.get_close_matches(name, list(names), n=1))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``; did you mean …?`` for an unknown name, or the known names, or nothing."""
    known = {each.lower(): each for each in sorted(names)}
    matches = difflib.get_close_matches(name.lower(), known, n=1)
    if matches:
        return f"; did you mean {known[matches[0]]}?"
    return f"; known are {', '.join(known.values())}" if 0 < len(known) <= 12 else ""


#: The watermark before the first row: no time has passed (Flink's ``Watermark.UNINITIALIZED``).
MIN_TIMESTAMP = -(2**63)
#: The watermark at the end of input (Flink's ``Watermark.MAX_WATERMARK``).
MAX_TIMESTAMP = 2**63 - 1
#: Timestamps that are read as times in messages: 1973 to 5138. Lesser numbers are those of tests.
_FIRST_READ, _LAST_READ = 10**11, 10**14

Duration = int | timedelta
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def instant_ms(instant: datetime) -> int:
    """Return the milliseconds from the epoch to an instant, a datetime with a zone."""
    return (instant - _EPOCH) // _MILLISECOND


def instant_of(milliseconds: int) -> datetime:
    """Return the instant a number of milliseconds after the epoch.

    Raises:
        OverflowError: It is outside the range of Python's datetimes.
    """
    return _EPOCH + timedelta(milliseconds=milliseconds)


def clock_text(clock: int) -> str:
    """Return a watermark or processing time as text: milliseconds and their time, ``none`` or ``end of input``."""
    if clock in (MIN_TIMESTAMP, MAX_TIMESTAMP):
        return "none" if clock < 0 else "end of input"
    try:
        time = instant_of(clock)
    except OverflowError:
        return str(clock)
    return f"{clock} ({time.replace(tzinfo=None).isoformat(sep=' ', timespec='milliseconds')} UTC)"


def time_text(number: Any) -> str:
    """Return the text of a number that may be a timestamp: with its time if it is one of 1973 to 5138."""
    return clock_text(number) if type(number) is int and _FIRST_READ <= number < _LAST_READ else str(number)


def milliseconds_of(duration: Duration, parameter: str, *, least: int = 0) -> int:
    """Return the duration as whole milliseconds.

    Args:
        duration: An `int` in milliseconds or a `timedelta`.
        parameter: Name of the parameter, for the message.
        least: Least value allowed, in milliseconds.

    Raises:
        DefinitionError: Not an `int` or `timedelta`, not a whole number of milliseconds, or below ``least``.
    """
    if isinstance(duration, timedelta):
        milliseconds, rest = divmod(duration, _MILLISECOND)
        if rest:
            raise DefinitionError(f"{parameter}={duration!r} is not a whole number of milliseconds; round it first")
    elif isinstance(duration, int) and not isinstance(duration, bool):
        milliseconds = duration
    else:
        raise DefinitionError(f"{parameter}={duration!r} is {type_of(duration)}; give int milliseconds or a timedelta")
    if not least <= milliseconds <= MAX_TIMESTAMP:
        raise DefinitionError(f"{parameter}={duration!r} must be between {least} ms and 2^63 - 1 ms")
    return milliseconds


class Units(TypedDict, total=False):
    """A duration as keywords."""

    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float


def shows_units(function: F) -> F:
    """Show the units of a function that unpacks `Units` in its signature, and refuse other keywords."""
    return shows_options(Units, **dict.fromkeys(Units.__annotations__, 0))(function)


def duration_of(duration: Duration | None, parameter: str, *, least: int = 0, **keywords: Unpack[Units]) -> int:
    """Return a duration in milliseconds, given as one argument or as units by keyword.

    Raises:
        DefinitionError: Both or neither form is given, or the value breaks the rule of `milliseconds_of`.
    """
    milliseconds = keywords.get("milliseconds", 0)
    whole_ms = milliseconds if isinstance(milliseconds, int) else 0
    keywords["milliseconds"] = milliseconds - whole_ms
    try:
        parts = timedelta(**keywords)
        # Alone, milliseconds may be more than a timedelta holds.
        units: Duration = parts + timedelta(milliseconds=whole_ms) if parts else whole_ms
    except (OverflowError, ValueError) as error:
        raise DefinitionError(f"{parameter}: a unit is out of range ({error}); give int milliseconds") from error
    except TypeError as error:
        raise TypeError(f"{parameter}: {error}; the units are {', '.join(Units.__annotations__)}") from error
    if duration is None:
        if not units and least > 0:
            raise DefinitionError(
                f"{parameter} needs a duration above 0: give milliseconds, a timedelta or seconds=..."
            )
        duration = units
    elif units:
        raise DefinitionError(f"{parameter} takes a duration or units as keywords, not both")
    return milliseconds_of(duration, parameter, least=least)
