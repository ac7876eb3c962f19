"""Runs the broadcast elements of a batch in a key group, before its timers and its keyed elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from keyed.engine.batch import Chunk
from keyed.engine.bound import BoundState, Scope
from keyed.engine.engine_context import EngineContext
from keyed.engine.registry import Registry
from keyed.errors import StateAccessError
from keyed.job.state import ListState, MapState, State, VersionedState


class _NoKey:
    """Placeholder for the key while a broadcast element runs; keyed state refuses it."""

    def __repr__(self) -> str:
        return "none"

    def __hash__(self) -> NoReturn:
        raise StateAccessError(
            "a keyed state was used in process_broadcast_element, where there is no key; "
            "ctx.apply_to_keyed_state(self.state, function) calls a function for every key"
        )


_NO_KEY = _NoKey()


class EngineBroadcastContext:
    """`keyed.job.context.BroadcastContext` in a key group, for the broadcast elements of one batch.

    Attributes:
        dropped: Number of elements that the function counted as dropped.
    """

    def __init__(self, scope: Scope, registry: Registry, context: EngineContext) -> None:
        self._scope = scope
        self._registry = registry
        self._keys: dict[str, list[Any]] = {}
        self.dropped = 0
        self.get_broadcast_state, self.output, self.collect = (
            context.get_broadcast_state,
            context.output,
            context.collect,
        )
        self.timestamp, self.is_late = context.timestamp, context.is_late

    def __repr__(self) -> str:
        return f"BroadcastContext(timestamp={self._scope.timestamp})"

    def current_watermark(self) -> int:
        return self._scope.watermark

    def current_processing_time(self) -> int:
        return self._scope.processing_time

    def drop(self) -> None:
        self.dropped += 1

    def apply_to_keyed_state(self, descriptor: State, function: Callable[[Any, Any], object]) -> None:
        scope = self._scope
        if scope.key is not _NO_KEY:
            raise StateAccessError(
                "apply_to_keyed_state can be called only while a broadcast element runs, and not inside itself"
            )
        state = self._registry.keyed.get(getattr(descriptor, "name", ""))
        if state is None:
            raise StateAccessError(
                f"apply_to_keyed_state({descriptor!r}): the function has no such keyed state; it has "
                f"{', '.join(map(repr, self._registry.keyed)) or 'none'}"
            )
        try:
            for key in self._keys_of(state):
                scope.key = key
                if _holds(state):
                    function(key, state)
        finally:
            scope.key = _NO_KEY

    def _keys_of(self, state: BoundState) -> list[Any]:
        """Return the keys that may have entries in a state, in the order of their encoding.

        While broadcast elements run, no other key gets entries, so the keys are searched once per batch.
        """
        keys = self._keys.get(state.name)
        if keys is None:
            known = state.known_keys()
            keys = self._keys[state.name] = [known[encoded] for encoded in sorted(known)]
        return keys


class Broadcasting:
    """Runs broadcast elements.

    Args:
        process: ``process_broadcast_element`` of the opened function, or its replacement.
        scope: The batch's scope, at the watermark before the batch.
        registry: The states.
        context: Receives the outputs.

    Attributes:
        rows: Number of elements.
        late: Number of late elements.
        running: The running element, in a tuple; ``None`` if there is none.
    """

    def __init__(
        self, process: Callable[[Any, Any], Any], scope: Scope, registry: Registry, context: EngineContext
    ) -> None:
        self._process = process
        self._scope = scope
        self._states = list(registry.broadcast.values())
        self._outputs = context
        self._context = EngineBroadcastContext(scope, registry, context)
        self.rows = 0
        self.late = 0
        self.running: tuple[Any] | None = None

    @property
    def dropped(self) -> int:
        """Number of elements that the function counted as dropped."""
        return self._context.dropped

    def run(self, chunks: Iterable[Chunk]) -> None:
        """Run elements; their keys and sides are meaningless."""
        scope, outputs, context = self._scope, self._outputs, self._context
        self._allow(writing=True)
        outputs.domain = outputs.name = None
        scope.key = _NO_KEY
        for keys, timestamps, elements, _ in chunks:
            self.rows += len(keys)
            for element, timestamp in zip(elements, timestamps or [None] * len(keys), strict=True):
                self.running = (element,)
                scope.timestamp = timestamp
                self.late += outputs.is_late()
                outputs.collect_all(self._process(element, context), timestamp)
        self.running = None
        scope.key = scope.timestamp = None
        self._allow(writing=False)

    def _allow(self, *, writing: bool) -> None:
        for state in self._states:
            state.is_writable = writing


def _holds(state: Any) -> bool:
    """Return true if the current key has entries in a keyed state."""
    if isinstance(state, ListState):
        return bool(state.get())
    if isinstance(state, MapState):
        return not state.is_empty()
    return (state.get() if isinstance(state, VersionedState) else state.item()) is not None
