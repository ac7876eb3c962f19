"""A model of ARCHITECTURE's semantics in plain dictionaries, and a function that runs random operations against it.

`Model` keeps everything that a keyed function can touch in a few dictionaries, without batches, logs or stores. The
operations of a program are tuples, interpreted by `interpret` against the engine's states or the model's alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keyed
from keyed.codec.keys import encode_key

EVENT, PROCESSING = keyed.TimeDomain.EVENT_TIME, keyed.TimeDomain.PROCESSING_TIME
#: How many timers of a key run their script after an element; those after them only report that they fired.
FUEL = 4
DEFAULT = 7

TTLS: list[keyed.StateTtl | None] = [
    None,
    *(
        keyed.StateTtl(milliseconds=6 + index, time_domain=domain, update=update, visibility=visibility)
        for index, (domain, update, visibility) in enumerate(
            (d, u, v) for d in keyed.TimeDomain for u in keyed.UpdateType for v in keyed.StateVisibility
        )
    ),
]
KINDS = ("value", "list", "map", "reducing", "aggregating")
STATES = {f"{kind}_{number}": (kind, ttl) for kind in KINDS for number, ttl in enumerate(TTLS)}


class Span:
    """An aggregate that keeps the least and the greatest value."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        values = [*accumulator, value]
        return [min(values), max(values)]

    def get_result(self, accumulator: list[int]) -> tuple[int, ...]:
        return tuple(accumulator)

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [min(a + b), max(a + b)]


SPAN = Span()


def add(a: int, b: int) -> int:
    return a + b


def declare(name: str) -> Any:
    """The declaration of one of `STATES`."""
    kind, ttl = STATES[name]
    if kind == "value":
        return keyed.ValueState(int, default=DEFAULT, name=name, ttl=ttl)
    if kind == "list":
        return keyed.ListState(int, name=name, ttl=ttl)
    if kind == "map":
        return keyed.MapState(str, int | None, name=name, ttl=ttl)
    if kind == "reducing":
        return keyed.ReducingState(add, int, name=name, ttl=ttl)
    return keyed.AggregatingState(SPAN, list[int], name=name, ttl=ttl)


def interpret(states: Any, ctx: Any, operations: list[Any]) -> Iterator[Any]:
    """Run operations and yield what they show.

    Args:
        states: Gives a state by its name as an attribute: the function, or the model.
        ctx: Its context.
        operations: Tuples: ("state", name, namespace, call, *arguments), ("timer", call, *arguments), ("collect",
            value, timestamp), ("output", value).
    """
    service = ctx.timer_service()
    for what, *rest in operations:
        if what == "state":
            name, namespace, call, *arguments = rest
            state = getattr(states, name)
            if namespace is not None:
                state = state.namespace(namespace)
            if call == "remove_some":
                # The map changes while it is iterated.
                for key in state:
                    if key in arguments[0]:
                        state.remove(key)
                result = None
            elif call == "set_item":
                state[arguments[0]] = arguments[1]
                result = state[arguments[0]] if state.contains(arguments[0]) else "gone"
            else:
                result = getattr(state, call)(*arguments)
            if call in ("keys", "values", "items", "items_from", "get") and not isinstance(
                result, int | str | tuple | None
            ):
                result = list(result)
            yield call, result
        elif what == "timer":
            call, *arguments = rest
            if call == "timers":
                yield [(t.timestamp, t.domain.value, t.name, t.key) for t in service.timers()]
            else:
                getattr(service, call)(*arguments)
        elif what == "collect":
            ctx.collect(rest[0], rest[1])
        elif what == "output":
            ctx.output("side", rest[0])


def on_element(states: Any, ctx: Any, operations: list[Any]) -> Iterator[Any]:
    """The work of `Program` for an element."""
    states.value_0.namespace("fuel").update(FUEL)
    service = ctx.timer_service()
    shown = ctx.get_current_key(), ctx.timestamp(), ctx.is_late(), ctx.timer_name(), service.current_processing_time()
    yield "element", *shown
    yield from interpret(states, ctx, operations)


def on_timer(states: Any, ctx: Any, timestamp: int, scripts: list[list[Any]]) -> Iterator[Any]:
    """The work of `Program` for a timer: the script that its time chooses, while the key has fuel."""
    service = ctx.timer_service()
    yield (
        *("timer", ctx.get_current_key(), timestamp, ctx.timestamp(), ctx.time_domain().value, ctx.timer_name()),
        *(service.current_watermark(), service.current_processing_time()),
    )
    fuel = states.value_0.namespace("fuel")
    left = fuel.value()
    if left > 0 and scripts:
        fuel.update(left - 1)
        yield from interpret(states, ctx, scripts[timestamp % len(scripts)])


class Program(keyed.KeyedProcessFunction):
    """Elements are (key, operations)."""

    def __init__(self, scripts: list[list[Any]]) -> None:
        self.scripts = scripts

    def process_element(self, value, ctx):
        yield from on_element(self, ctx, value[1])

    def on_timer(self, timestamp, ctx):
        yield from on_timer(self, ctx, timestamp, self.scripts)


for _name in STATES:
    setattr(Program, _name, declare(_name))


class ModelState:
    """A state of the model: its items are ``{slot: [value, due]}`` per (namespace, key), whatever its kind."""

    def __init__(self, model: Model, name: str, namespace: bytes = b"") -> None:
        self.model = model
        self.name = name
        self.kind, self.ttl = STATES[name]
        self._namespace = namespace

    def namespace(self, namespace: Any) -> ModelState:
        return ModelState(self.model, self.name, encode_key(namespace))

    @property
    def items_of_key(self) -> dict[Any, list[Any]]:
        return self.model.entries.setdefault((self.name, self._namespace, self.model.key), {})

    def clock(self) -> int:
        assert self.ttl is not None
        return self.model.clock(self.ttl.time_domain)

    def due(self) -> int:
        if self.ttl is None:
            return keyed.MAX_TIMESTAMP
        clock = self.clock()
        if self.ttl.time_domain is EVENT and self.model.event_timestamp is not None:
            clock = max(clock, self.model.event_timestamp)
        return min(clock + self.ttl.milliseconds, keyed.MAX_TIMESTAMP)

    def read(self, slot: Any) -> Any:
        """The (value,) at a slot, or None if it is not there or hidden."""
        item = self.items_of_key.get(slot)
        if item is None:
            return None
        if self.ttl is not None:
            expired = item[1] <= self.clock()
            if expired and self.ttl.visibility is keyed.StateVisibility.NEVER_RETURN_EXPIRED:
                return None
            if not expired and self.ttl.update is keyed.UpdateType.ON_READ_AND_WRITE:
                item[1] = self.due()
        return (item[0],)

    def write(self, slot: Any, value: Any) -> None:
        self.items_of_key[slot] = [value, self.due()]

    def clear(self) -> None:
        self.items_of_key.clear()

    # Value, reducing, aggregating, list

    def value(self) -> Any:
        found = self.read(0)
        return found[0] if found else DEFAULT

    def get(self, *arguments: Any) -> Any:
        if self.kind == "list":
            return [found[0] for slot in sorted(self.items_of_key) if (found := self.read(slot))]
        if self.kind == "map":
            found = self.read(arguments[0])
            return found[0] if found else arguments[1] if len(arguments) > 1 else None
        found = self.read(0)
        if not found:
            return None
        return SPAN.get_result(found[0]) if self.kind == "aggregating" else found[0]

    def update(self, value: Any) -> None:
        if self.kind == "list":
            self.clear()
            self.add_all(value)
        elif value is None:
            self.clear()
        else:
            self.write(0, value)

    def add(self, value: Any) -> None:
        if self.kind == "list":
            self.model.added += 1
            self.write(self.model.added, value)
            return
        found = self.read(0)
        if self.kind == "aggregating":
            value = SPAN.add(value, found[0] if found else [])
        elif found:
            value = found[0] + value
        self.write(0, value)

    def add_all(self, values: list[Any]) -> None:
        for value in values:
            self.add(value)

    # Map

    def put(self, key: str, value: Any) -> None:
        self.write(key, value)

    __setitem__ = put

    def put_all(self, entries: dict[str, Any]) -> None:
        for key, value in entries.items():
            self.write(key, value)

    def remove(self, key: str) -> None:
        self.items_of_key.pop(key, None)

    def contains(self, key: str) -> bool:
        return self.read(key) is not None

    def __getitem__(self, key: str) -> Any:
        return self.read(key)[0]

    def items(self) -> list[tuple[str, Any]]:
        return self.items_from("")

    def items_from(self, first: str) -> list[tuple[str, Any]]:
        keys = sorted(key for key in self.items_of_key if key >= first)
        return [(key, found[0]) for key in keys if (found := self.read(key))]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        return not any(self.read(key) for key in sorted(self.items_of_key))

    def __len__(self) -> int:
        return len(self.items())


class _Listed:
    """A timer in a list."""

    def __init__(self, timestamp: int, domain: keyed.TimeDomain, name: Any, key: Any) -> None:
        self.timestamp, self.domain, self.name, self.key = timestamp, domain, name, key


class Model:
    """Model of a function over a keyed stream, commit by commit. It is its own context."""

    def __init__(self, scripts: list[list[Any]]) -> None:
        self.scripts = scripts
        self.entries: dict[tuple[str, bytes, Any], dict[Any, list[Any]]] = {}
        # (domain, key, encoded name or b"" with the time) -> (time, name)
        self.timers: dict[tuple[keyed.TimeDomain, Any, Any], tuple[int, Any]] = {}
        self.watermark = keyed.MIN_TIMESTAMP
        self.processing_time = 0
        self.timer_clock: int | None = None
        self.closed = False
        self.added = 0
        self.key: Any = None
        self.event_timestamp: int | None = None
        self._timestamp: int | None = None
        self._domain: keyed.TimeDomain | None = None
        self._name: Any = None
        self.output: list[tuple[Any, int | None, Any]] = []
        self.side: list[tuple[Any, int | None, Any]] = []
        self.rows = self.late = self.fired = 0

    def __getattr__(self, name: str) -> ModelState:
        if name not in STATES:
            raise AttributeError(name)
        return ModelState(self, name)

    # Commits

    def process(self, rows: list[tuple[Any, int | None, list[Any]]]) -> None:
        if all(timestamp is not None for _, timestamp, _ in rows):
            rows = sorted(rows, key=lambda row: row[1] or 0)
        for key, timestamp, operations in rows:
            self.rows += 1
            self.late += timestamp is not None and timestamp <= self.watermark
            self._call(key, timestamp, timestamp, None, None, partial(on_element, self, ModelContext(self), operations))
            self._fire(PROCESSING, self.processing_time)
        self._expire()

    def advance_watermark(self, timestamp: int) -> None:
        self._advance(timestamp)
        self._expire()

    def advance_processing_time(self, timestamp: int) -> None:
        self.processing_time = max(self.processing_time, timestamp)
        self._fire(PROCESSING, self.processing_time)
        self._expire()

    def end_of_input(self) -> None:
        self._advance(keyed.MAX_TIMESTAMP)
        self.closed = True
        self._fire(PROCESSING, keyed.MAX_TIMESTAMP)
        self.timer_clock = keyed.MAX_TIMESTAMP
        self._fire(EVENT, keyed.MAX_TIMESTAMP)
        self.timer_clock = None
        self._expire()

    def _advance(self, timestamp: int) -> None:
        if timestamp > self.watermark:
            before, self.watermark = self.watermark, timestamp
            self.timer_clock = before
            self._fire(EVENT, timestamp)
            self.timer_clock = None

    def _fire(self, domain: keyed.TimeDomain, up_to: int) -> None:
        while True:
            due = [
                (time, encode_key(key), b"" if name is None else encode_key(name), slot)
                for slot, (time, name) in self.timers.items()
                for key in (slot[1],)
                if slot[0] is domain and time <= up_to
            ]
            if not due:
                return
            time, _, _, slot = min(due, key=lambda timer: timer[:3])
            _, name = self.timers.pop(slot)
            self.fired += 1
            event = time if domain is EVENT else None
            if event is not None and self.timer_clock is not None:
                self.timer_clock = max(self.timer_clock, event)
            self._call(
                slot[1], time, event, domain, name, partial(on_timer, self, ModelContext(self), time, self.scripts)
            )
            if domain is EVENT and not self.closed:
                self._fire(PROCESSING, self.processing_time)

    def _call(
        self,
        key: Any,
        timestamp: int | None,
        event: int | None,
        domain: keyed.TimeDomain | None,
        name: Any,
        run: Callable[[], Iterator[Any]],
    ) -> None:
        self.key, self._timestamp, self.event_timestamp, self._domain, self._name = key, timestamp, event, domain, name
        for value in run():
            self.output.append((value, event, key))

    def clock(self, domain: keyed.TimeDomain) -> int:
        if domain is PROCESSING:
            return self.processing_time
        return self.watermark if self.timer_clock is None else self.timer_clock

    def _expire(self) -> None:
        """Remove expired entries at the end of a commit."""
        for (name, _, _), items in self.entries.items():
            ttl = STATES[name][1]
            if ttl is not None:
                for slot in [slot for slot, (_, due) in items.items() if due <= self.clock(ttl.time_domain)]:
                    del items[slot]

    # What a test compares

    def state_entries(self) -> int:
        return sum(map(len, self.entries.values()))

    def pending(self) -> list[Any]:
        return sorted(
            ((time, domain.value, key, repr(name)) for (domain, key, _), (time, name) in self.timers.items()), key=repr
        )

    # The context and its timer service

    def timestamp(self) -> int | None:
        return self._timestamp

    def get_current_key(self) -> Any:
        return self.key

    def is_late(self) -> bool:
        return self._timestamp is not None and self._timestamp <= self.watermark

    def time_domain(self) -> keyed.TimeDomain:
        assert self._domain is not None
        return self._domain

    def timer_name(self) -> Any:
        return self._name

    def collect(self, value: Any, timestamp: int | None = None) -> None:
        self.output.append((value, self.event_timestamp if timestamp is None else timestamp, self.key))

    def output_(self, tag: str, value: Any) -> None:
        assert tag == "side"
        self.side.append((value, self.event_timestamp, self.key))

    def current_watermark(self) -> int:
        return self.watermark

    def current_processing_time(self) -> int:
        return self.processing_time

    def register_event_time_timer(self, timestamp: int) -> None:
        self.timers[EVENT, self.key, timestamp] = (timestamp, None)

    def register_processing_time_timer(self, timestamp: int) -> None:
        if not self.closed:
            self.timers[PROCESSING, self.key, timestamp] = (timestamp, None)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self.timers.pop((EVENT, self.key, timestamp), None)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self.timers.pop((PROCESSING, self.key, timestamp), None)

    def set_timer(self, name: Any, timestamp: int, domain: keyed.TimeDomain = EVENT) -> None:
        if domain is EVENT or not self.closed:
            self.timers[domain, self.key, ("named", encode_key(name))] = (timestamp, name)

    def cancel_timer(self, name: Any, domain: keyed.TimeDomain = EVENT) -> None:
        self.timers.pop((domain, self.key, ("named", encode_key(name))), None)

    def list_timers(self) -> list[_Listed]:
        found = [
            _Listed(time, domain, name, key)
            for (domain, key, _), (time, name) in self.timers.items()
            if key == self.key
        ]

        def order(timer: _Listed) -> tuple[str, int, bytes]:
            return timer.domain.value, timer.timestamp, b"" if timer.name is None else encode_key(timer.name)

        return sorted(found, key=order)


class ModelContext:
    """The model as `interpret` sees a context, whose method ``output`` has the name of the model's list."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, {"output": "output_", "timers": "list_timers"}.get(name, name))

    def timer_service(self) -> ModelContext:
        return self
