"""Declarations of keyed state, and the operations that a function calls on it.

A state is declared as a class attribute of a `KeyedProcessFunction`. Inside a call that has a key the attribute is
bound to that key; anywhere else its operations raise `StateAccessError`. Names and operations are those of Flink's
``org.apache.flink.api.common.state``. The bound classes live in `keyed.engine`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import attrs

from keyed.base.arguments import MIN_TIMESTAMP, Duration, NoValue, milliseconds_of, named, shown, shows_options
from keyed.errors import StateAccessError, StateDefinitionError
from keyed.job.ttl import StateTtl, history_ttl, ttl_of

T = TypeVar("T")
D = TypeVar("D")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
IN_contra = TypeVar("IN_contra", contravariant=True)
OUT_co = TypeVar("OUT_co", covariant=True)
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NO_DEFAULT: Any = object()

#: Returned by `VersionedState.put` for a version that is older than the history, and was dropped (Kafka Streams'
#: ``PUT_RETURN_CODE_NOT_PUT``).
NOT_PUT: Final = MIN_TIMESTAMP


class AggregateFunction(Protocol[IN_contra, ACC, OUT_co]):
    """The aggregation of an `AggregatingState` (Flink's `AggregateFunction`).

    ``add`` may change its accumulator, and ``merge`` both. Mutable values and results are copied. Lists and dicts of
    an accumulator need values of the declared type: conversions (int to float, datetime to UTC) happen only when the
    batch ends.
    """

    def create_accumulator(self) -> ACC:
        """Return an empty accumulator."""

    def add(self, value: IN_contra, accumulator: ACC) -> ACC:
        """Return the accumulator with ``value`` added."""

    def get_result(self, accumulator: ACC) -> OUT_co:
        """Return the result of the added values."""

    def merge(self, a: ACC, b: ACC) -> ACC:
        """Return one accumulator from two."""


def _type(type_: Any) -> Any:
    """Return a declared type; `object` where there is none.

    Raises:
        StateDefinitionError: It is text or a value, and not a type.
    """
    if isinstance(type_, str):
        raise StateDefinitionError(f"{type_!r} is text, not a type; give the type itself, as in int")
    if isinstance(type_, bool | int | float | bytes | list | dict | tuple | set):
        raise StateDefinitionError(
            f"{type_!r} is a value, not a type; give the type first: ValueState({type(type_).__name__}, "
            f"default={type_!r})"
        )
    return object if type_ is None else type_


class NameOptions(TypedDict, total=False):
    """Keywords of all states."""

    name: str | None


class StateOptions(NameOptions, total=False):
    """Keywords of all states but the versioned ones."""

    ttl: StateTtl | timedelta | None


ROW_CALLS = "process_element, on_timer or what they call"
BATCH_CALLS = "process_batch, on_watermark or what they call"


def used_outside(what: str, calls: str) -> NoReturn:
    """Refuse the use of a state, timer or output outside of its calls.

    Raises:
        StateAccessError: Always.
    """
    raise StateAccessError(f"{what} was used outside of a call; use it inside {calls}")


#: Special methods of values that a state refuses, with the operator for the message. ``==`` is defined separately.
_OPERATORS = {
    **{f"__{name}__": sign for name, sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="))},
    **{
        f"__{side}{name}__": sign
        for name, sign in (
            *(("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("floordiv", "//"), ("mod", "%")),
            *(("pow", "**"), ("and", "&"), ("or", "|"), ("xor", "^"), ("lshift", "<<"), ("rshift", ">>")),
        )
        for side in ("", "r")
    },
    **{f"__{name}__": sign for name, sign in (("neg", "-"), ("pos", "+"), ("invert", "~"), ("abs", "abs()"))},
    "__format__": "formatting",
}


class State(NoValue):
    """Base of all state declarations.

    A state is not its value: truth, comparison, arithmetic and formatting of a state, and assignment to the attribute
    that declares it, raise `StateAccessError`. States are compared with each other by identity, and can be hashed.

    Args:
        name: Name in logs and checkpoints, matching ``[A-Za-z0-9_-]{1,128}``; the attribute's name if not given.
        ttl: Time to live of each entry: a `StateTtl`, or its duration alone as a `timedelta`.
    """

    kind = "state"
    #: The ways to read and write it, for messages.
    reading, writing = ".get()", ".update(...)"
    _lifetime = "ttl"
    _calls = f"{ROW_CALLS}, and call namespace() there too"
    #: Set by `inner_state`.
    in_place: bool = False
    completed: Callable[[Any], Any] | None = None
    named_by: str | None = None
    shown_as: Mapping[str, Any] | None = None
    shown_types: Mapping[str, Any] = {}
    #: The parts of a SQL query, or of a pattern, on which the content depends, by name.
    meaning: Mapping[str, str] | None = None

    def __init__(self, name: str | None = None, ttl: StateTtl | timedelta | None = None) -> None:
        self.ttl = ttl_of(ttl)
        self.name = self._attribute = ""
        if name is not None:
            self.set_name(name)

    def __repr__(self) -> str:
        types = ", ".join(map(named, self._types()))
        ttl = f", {self._lifetime}={self.ttl.milliseconds} ms" if self.ttl is not None else ""
        return f"{type(self).__name__}({types}{', ' * bool(types)}name={self.name!r}{ttl})"

    def _types(self) -> tuple[Any, ...]:
        """Return the types that distinguish states of a kind: those of their values."""
        return ()

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name
        if not self.name:
            self.set_name(name)

    def set_name(self, name: str) -> None:
        """Set the name of the state.

        Raises:
            StateDefinitionError: The name breaks the rule.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise StateDefinitionError(
                f"state name {name!r} must match [A-Za-z0-9_-]{{1,128}}, because names become paths; rename it"
            )
        self.name = name

    def _unbound(self) -> NoReturn:
        if not self.name:
            raise StateAccessError(
                f"a {self.kind} state was used that is not declared; assign it to an attribute of the class"
            )
        used_outside(f"{self.kind} state {self.name!r}", self._calls)

    __hash__ = object.__hash__

    # Type checkers find most of these by themselves, as long as they do not see the methods that refuse.
    if not TYPE_CHECKING:

        def __bool__(self) -> bool:
            return self._no_value("truth")

        def __eq__(self, other: object) -> bool:
            return self is other if isinstance(other, State) else self._no_value("comparison")

        # Without __get__, reading the attribute is a plain lookup in the instance.
        def __set__(self, function: object, value: Any) -> None:
            name = self._attribute
            if not isinstance(value, State):
                raise StateAccessError(self.replaced(function, name, f"self.{name} = {shown(value)}"))
            vars(function)[name] = value

        def __delete__(self, function: object) -> NoReturn:
            raise StateAccessError(self.replaced(function, self._attribute, f"del self.{self._attribute}"))

    def replaced(self, function: object, attribute: str, what: str) -> str:
        """Return the message for a call of a function that replaces or deletes the attribute of this state."""
        return (
            f"{what} in {type(function).__name__} would replace {self.kind} state {self.name!r} for all keys, and "
            f"store nothing; write it with self.{attribute}{self.writing}, empty it with self.{attribute}.clear()"
        )

    def mistake(self) -> str:
        """Return the remedy for using the state as its value."""
        return f"{self.kind} state {self.name!r} is not its value; read that with {self.reading}"

    def no_attribute(self, name: str) -> str:
        """Return the remedy for an attribute that the state does not have."""
        declared = next(cls for cls in type(self).__mro__ if cls.__module__ in _DECLARING)
        public = [each for each in dir(declared) if each[0] != "_" and each not in _INTERNAL]
        operations = ", ".join(each for each in public if inspect.isfunction(getattr(declared, each)))
        return (
            f"; {self.kind} state {self.name!r} is not its value, and has no {name}: read the value with "
            f"{self.reading}; the operations of the state are {operations}"
        )

    def _no_value(self, operation: str) -> NoReturn:
        """Refuse an operation on the state instead of its value.

        Raises:
            StateAccessError: Always.
        """
        raise StateAccessError(
            f"{self.kind} state {self.name!r} is not a value, and {operation} needs one; read the value with "
            f"{self.reading}, write it with {self.writing}"
        )


#: Attributes of states that are internal to the library.
_DECLARING = ("keyed.job.state", "keyed.job.table_declaration")
_INTERNAL = (
    *("set_name", "replaced", "no_attribute", "mistake"),
    *("in_place", "completed", "named_by", "shown_as", "shown_types", "meaning"),
)


def _refusing(sign: str) -> Callable[..., NoReturn]:
    def refuse(self: State, *_: object) -> NoReturn:
        self._no_value(sign)

    return refuse


for _method, _sign in _OPERATORS.items():
    setattr(State, _method, _refusing(_sign))


S = TypeVar("S", bound=State)


def inner_state(
    state: S,
    *,
    in_place: bool = False,
    completed: Callable[[Any], Any] | None = None,
    named_by: str | None = None,
    table: Mapping[str, Any] | None = None,
    is_shown: bool = True,
    shown_types: Mapping[str, Any] | None = None,
    meaning: Mapping[str, str] | None = None,
) -> S:
    """Return a state of a library's operator, with options that its users do not need.

    Args:
        state: The state. It is changed.
        in_place: Of a `ValueState`: `ValueState.value` returns the stored object itself. Changes to it are stored
            without ``update``. Keep no reference to it after the call.
        completed: Of a `ValueState`: returns the value to store for one that a batch has written; it may change it.
        named_by: Of a `ValueState` or `ListState`: a `MapState` whose values are pairs (name, namespace): state
            tables show the entries of a namespace under its name, as for windows that merge.
        table: Data for the class of keyed that ``table["view"]`` names: shows the state as the one table of the
            operator, under its name.
        is_shown: Whether state tables show the state by itself, where there is no ``table``.
        shown_types: Of a `TableState`: Arrow types in place of the stored ones in queries.
        meaning: Parts of a definition on which the content depends, as text by name; a checkpoint refuses another
            text.

    Raises:
        StateDefinitionError: A part does not fit the state.
    """
    kind = type(state).__name__
    if in_place and (not isinstance(state, ValueState) or state.default is not None):
        default = getattr(state, "default", None)
        raise StateDefinitionError(
            f"in_place=True of a {kind} with default={default!r}: changes of a default would be lost; give a "
            "ValueState without a default, and update() with a new value where value() is None"
        )
    state.in_place, state.completed = in_place, completed
    state.named_by, state.meaning = named_by, meaning
    state.shown_types = shown_types or {}
    state.shown_as = table if is_shown else {"view": ""}
    return state


class KeyedState(State):
    """Base of the states of a row function, which belong to the current key."""

    def clear(self) -> None:
        """Remove the state of the current key (and namespace)."""
        self._unbound()

    def namespace(self, namespace: Any) -> Self:
        """Return the same state under a namespace beside the key, such as ``(start, end)``.

        `None` is the state itself.

        Raises:
            EncodingError: The namespace cannot be encoded.
        """
        self._unbound()


class ValueState(KeyedState, Generic[T]):
    """One value per key.

    Args:
        type: Type of the value; `object` takes any plain encodable value.
        default: Returned by `value` if nothing is stored.
    """

    kind = "value"
    reading, writing = ".value()", ".update(value)"

    @overload
    def __init__(self: ValueState[D | None], type: type[D], **options: Unpack[StateOptions]) -> None: ...
    @overload
    def __init__(self: ValueState[D], type: type[D], default: D, **options: Unpack[StateOptions]) -> None: ...
    @overload
    def __init__(
        self: ValueState[Any], type: Any = None, default: Any = None, **options: Unpack[StateOptions]
    ) -> None: ...
    @shows_options(StateOptions)
    def __init__(self, type: Any = None, default: Any = None, **options: Unpack[StateOptions]) -> None:
        super().__init__(**options)
        self.type: Any = _type(type)
        self.default: Any = default

    def _types(self) -> tuple[Any, ...]:
        return (self.type,)

    def value(self) -> T:
        """Return a copy of the stored value, or of the default; store a changed one with ``update``."""
        self._unbound()

    def update(self, value: T | None) -> None:
        """Store ``value`` as it is now; ``None`` clears."""
        self._unbound()


class ListState(KeyedState, Generic[T]):
    """A list per key: appending does not read or rewrite it. Null elements are rejected.

    ``len``, truth, iteration and ``state[index]`` read it as ``get`` does; an index cannot be assigned.
    """

    kind = "list"
    writing = ".update(values) or .add(value)"

    @overload
    def __init__(self: ListState[D], type: type[D], **options: Unpack[StateOptions]) -> None: ...
    @overload
    def __init__(self: ListState[Any], type: Any = None, **options: Unpack[StateOptions]) -> None: ...
    @shows_options(StateOptions)
    def __init__(self, type: Any = None, **options: Unpack[StateOptions]) -> None:
        super().__init__(**options)
        self.type: Any = _type(type)

    def _types(self) -> tuple[Any, ...]:
        return (self.type,)

    def get(self) -> list[T]:
        """Return copies of the elements in order: store a changed list with ``update``."""
        self._unbound()

    def __iter__(self) -> Iterator[T]:
        self._unbound()

    def __len__(self) -> int:
        """Return the number of elements; reads them all."""
        return len(self.get())

    def __bool__(self) -> bool:
        return bool(len(self))

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return the element at an index, or the list of those in a slice."""
        return self.get()[index]

    def add(self, value: T) -> None:
        """Append one element."""
        self._unbound()

    def append(self, value: T) -> None:
        """Append one element, as ``add``."""
        self.add(value)

    def add_all(self, values: Iterable[T]) -> None:
        """Append all of ``values``."""
        self._unbound()

    def update(self, values: Iterable[T]) -> None:
        """Replace the list; an empty iterable clears, `None` is refused, as in Flink."""
        self._unbound()


class MapState(KeyedState, Generic[K, V]):
    """A map per key, in the order of its encoded keys; null keys and values are allowed.

    It has a dictionary's operations, but reads return copies. Put a changed list or dict back:

        recent = self.recent.get(user, [])
        recent.append(page)
        self.recent[user] = recent
    """

    kind = "map"
    reading, writing = "[key], .get(key) or .items()", ".put(key, value) or .update(entries)"

    @overload
    def __init__(self: MapState[K, V], key: type[K], value: type[V], **options: Unpack[StateOptions]) -> None: ...
    @overload
    def __init__(
        self: MapState[Any, Any], key: Any = None, value: Any = None, **options: Unpack[StateOptions]
    ) -> None: ...
    @shows_options(StateOptions)
    def __init__(self, key: Any = None, value: Any = None, **options: Unpack[StateOptions]) -> None:
        super().__init__(**options)
        self.key_type: Any = _type(key)
        self.value_type: Any = _type(value)

    def _types(self) -> tuple[Any, ...]:
        return (self.key_type, self.value_type)

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Return a copy of the value of ``key``, or ``default``; reads this entry only."""
        self._unbound()

    @overload
    def setdefault(self: MapState[K, D | None], key: K, default: None = None) -> D | None: ...
    @overload
    def setdefault(self, key: K, default: V) -> V: ...
    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return a copy of the value of ``key``, set to ``default`` if missing; put it back after changing it."""
        self._unbound()

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: Any = _NO_DEFAULT) -> Any:
        """Remove ``key`` and return its value, or ``default``.

        Raises:
            KeyError: It is missing, and there is no default.
        """
        self._unbound()

    def put(self, key: K, value: V) -> None:
        """Set the value of ``key``."""
        self._unbound()

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set all of ``entries``."""
        self._unbound()

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = (), /, **named: V) -> None:
        """Set all of ``entries``, a mapping or pairs, and of the keywords."""
        self.put_all(dict(entries, **named))

    def remove(self, key: K) -> None:
        """Remove ``key`` if it is there."""
        self._unbound()

    def contains(self, key: K) -> bool:
        """Return whether ``key`` is there (with a null value too)."""
        self._unbound()

    def keys(self) -> Iterator[K]:
        """Iterate in order. If the map changes meanwhile, removed keys are skipped, new ones may be."""
        self._unbound()

    def values(self) -> Iterator[V]:
        """Return the values in the order of their keys."""
        self._unbound()

    def items(self) -> Iterator[tuple[K, V]]:
        """Return pairs of key and value in the order of the keys."""
        self._unbound()

    def items_from(self, key: K) -> Iterator[tuple[K, V]]:
        """Return the pairs from ``key`` on; the ones before are not read."""
        self._unbound()

    def is_empty(self) -> bool:
        """Return whether there is no entry."""
        self._unbound()

    def __getitem__(self, key: K) -> V:
        self._unbound()

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self._unbound()

    def __contains__(self, key: object) -> bool:
        self._unbound()

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __len__(self) -> int:
        """Return the number of entries; reads them all."""
        return sum(1 for _ in self.keys())

    def __bool__(self) -> bool:
        return not self.is_empty()


class ReducingState(KeyedState, Generic[T]):
    """One value per key, combined with each added value by ``reduce``.

    Args:
        reduce: ``(current, added) -> new``, associative.
        type: Type of the value.
    """

    kind = "reducing"
    writing = ".add(value)"

    @overload
    def __init__(
        self: ReducingState[D], reduce: Callable[[D, D], D], type: type[D], **options: Unpack[StateOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: ReducingState[Any], reduce: Callable[[Any, Any], Any], type: Any = None, **options: Unpack[StateOptions]
    ) -> None: ...
    @shows_options(StateOptions)
    def __init__(self, reduce: Callable[[Any, Any], Any], type: Any = None, **options: Unpack[StateOptions]) -> None:
        super().__init__(**options)
        if not callable(reduce):
            raise StateDefinitionError(f"reduce={reduce!r} is not callable; give a function (current, added) -> new")
        if reduce in (int, float, str, bool, bytes, list, dict, set, tuple):
            name = reduce.__name__
            raise StateDefinitionError(
                f"ReducingState({name}): {name} is a type; the function comes first: ReducingState(function, {name}), "
                "where function is (current, added) -> new, such as operator.add"
            )
        self.reduce = reduce
        self.type: Any = _type(type)

    def _types(self) -> tuple[Any, ...]:
        return (self.reduce, self.type)

    def get(self) -> T | None:
        """Return the reduced value, or ``None`` if nothing was added."""
        self._unbound()

    def add(self, value: T) -> None:
        """Combine ``value`` with the stored value."""
        self._unbound()


class AggregatingState(KeyedState, Generic[IN, OUT]):
    """An accumulator per key, fed by `add` and read as a result.

    Args:
        aggregate: The `AggregateFunction`.
        accumulator: Type of the accumulator.
    """

    kind = "aggregating"
    writing = ".add(value)"

    @shows_options(StateOptions)
    def __init__(
        self, aggregate: AggregateFunction[IN, Any, OUT], accumulator: Any = None, **options: Unpack[StateOptions]
    ) -> None:
        super().__init__(**options)
        missing = [m for m in ("create_accumulator", "add", "get_result") if not callable(getattr(aggregate, m, None))]
        if missing:
            raise StateDefinitionError(f"aggregate={aggregate!r} lacks {', '.join(missing)}; see AggregateFunction")
        self.aggregate = aggregate
        self.accumulator_type: Any = _type(accumulator)

    def _types(self) -> tuple[Any, ...]:
        return (self.aggregate, self.accumulator_type)

    def get(self) -> OUT | None:
        """Return the result of the added values, or ``None`` without any."""
        self._unbound()

    def add(self, value: IN) -> None:
        """Add ``value`` to the accumulator."""
        self._unbound()


@attrs.frozen
class VersionedRecord(Generic[T]):
    """A version of a value (Kafka Streams' `VersionedRecord`).

    Attributes:
        value: The value.
        timestamp: Start of its validity, milliseconds.
        valid_to: Exclusive end: the timestamp of the next version or deletion; `None` for the newest.
    """

    value: T
    timestamp: int
    valid_to: int | None = None


class VersionedState(KeyedState, Generic[T]):
    """The versions of one value per key, by timestamp (Kafka Streams' `VersionedKeyValueStore`, KIP-889).

    A version is valid from its timestamp to that of the next one; they may be put in any order. Kept are the newest
    one, and all that were valid within the history: ``t`` is within it while ``t + history`` is above the watermark.
    Older puts and deletes change nothing and are counted (``versions_dropped``). Without timestamps in the stream all
    versions stay.

    Args:
        type: Type of the values.
        history: Event time for which versions are kept and may be put, milliseconds or a `timedelta`; 0 keeps the
            newest alone.
    """

    kind = "versioned"
    writing = ".put(value, timestamp)"
    _lifetime = "history"

    @overload
    def __init__(
        self: VersionedState[D], type: type[D], *, history: Duration, **options: Unpack[NameOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: VersionedState[Any], type: Any = None, *, history: Duration, **options: Unpack[NameOptions]
    ) -> None: ...
    @shows_options(NameOptions)
    def __init__(self, type: Any = None, *, history: Duration, **options: Unpack[NameOptions]) -> None:
        self.history_ms = milliseconds_of(history, "history")
        super().__init__(ttl=history_ttl(self.history_ms), **options)
        self.type: Any = _type(type)

    def _types(self) -> tuple[Any, ...]:
        return (self.type,)

    def put(self, value: T | None, timestamp: int) -> int | None:
        """Store ``value`` as it is now under ``timestamp`` (milliseconds); `None` deletes.

        Returns:
            The timestamp of the next version or deletion, `None` if it is the newest, `NOT_PUT` if it is older than
                the history and was dropped.
        """
        self._unbound()

    @overload
    def get(self) -> VersionedRecord[T] | None: ...
    @overload
    def get(self, as_of: int) -> VersionedRecord[T] | None: ...
    def get(self, as_of: int | None = None) -> VersionedRecord[T] | None:
        """Return the version valid at ``as_of`` (milliseconds), by default the newest one.

        `None` if there was none, it was deleted, or ``as_of`` is older than the history. The newest is returned
        however old.
        """
        self._unbound()

    def get_range(self, from_: int | None = None, to: int | None = None) -> list[VersionedRecord[T]]:
        """Return the versions valid from ``from_`` to ``to``, inclusive (Kafka's `MultiVersionedKeyQuery`)."""
        self._unbound()

    def delete(self, timestamp: int) -> VersionedRecord[T] | None:
        """Delete the value from ``timestamp`` to the next version.

        Returns:
            The result of ``get`` as of ``timestamp`` before; `None` also if the deletion is older than the history,
                and was dropped.
        """
        self._unbound()
