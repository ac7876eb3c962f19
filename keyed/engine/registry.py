"""The states of one operator: their names and ids, and their check against a checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs

from keyed.base.arguments import shown
from keyed.codec.state_schema import StateSchema, check_compatible
from keyed.engine.bound import Scope
from keyed.engine.bound_lists import BoundListState
from keyed.engine.bound_maps import BoundBroadcastState, BoundMapState
from keyed.engine.bound_tables import BoundTableState, check_key
from keyed.engine.bound_values import BoundAggregatingState, BoundReducingState, BoundValueState
from keyed.engine.bound_versions import BoundVersionedState
from keyed.engine.changes import Changes
from keyed.engine.held_rows import HeldRows, held_rows_state
from keyed.errors import EncodingError, StateAccessError, StateDefinitionError
from keyed.job.functions import Function, OperatorSpec, declared_states, takes_two
from keyed.job.state import AggregatingState, ListState, MapState, ReducingState, State, ValueState, VersionedState
from keyed.job.table_declaration import TableState

_BOUND: dict[str, Any] = {
    bound.kind: bound
    for bound in (
        *(BoundTableState, BoundValueState, BoundListState, BoundMapState, BoundReducingState),
        *(BoundAggregatingState, BoundVersionedState),
    )
}


class Registry:
    """Binds states to a batch, and implements the `keyed.job.context.OpenContext` of ``open``.

    Args:
        spec: The operator.
        group: Index of the key group.
        scope: The batch's scope.
        stored: Descriptions of the states that the checkpoint holds, with their ids, by name.
        last_id: The highest id that was used, if it was that of a state that was dropped.
    """

    def __init__(self, spec: OperatorSpec, group: int, scope: Scope, stored: dict[str, Any], last_id: int = 0) -> None:
        self._spec = spec
        self._group = group
        self._scope = scope
        self._stored = stored
        self._ids = {name: int(state["id"]) for name, state in stored.items()}
        #: The highest id that was used. The id of a dropped state is not used again: the log may have its entries.
        self.last_id = max(last_id, *self._ids.values(), 0)
        self.bound: dict[str, Any] = {}
        #: The states that belong to keys, and those that do not.
        self.keyed: dict[str, Any] = {}
        self.broadcast: dict[str, BoundBroadcastState] = {}
        #: The rows that wait for the watermark, if the operator orders them by it.
        self.held: HeldRows | None = None
        self._schemas: dict[str, StateSchema] = {}
        self._checked = False
        self._attributes: dict[str, State] = {}

    def __repr__(self) -> str:
        return f"OpenContext(operator {self._spec.name!r}, key group {self._group} of {self._spec.parallelism})"

    def bind_declared(self, function: Function) -> None:
        """Bind the broadcast states and the declared states, the latter to attributes of ``function``.

        ``function`` is a copy of the operator's. An attribute that is a broadcast state's descriptor stays.
        """
        for descriptor in self._spec.broadcast:
            self.broadcast[descriptor.name] = self._bind(descriptor, BoundBroadcastState)
        if self._spec.order == "watermark":
            self.held = self._bind(held_rows_state(), partial(HeldRows, sided=takes_two(function)))
        for attribute, state in declared_states(self._spec.function).values():
            if not any(state is descriptor for descriptor in self._spec.broadcast):
                function.__dict__[attribute] = self._bind(state)

    def check(self) -> None:
        """Check all states against those of the checkpoint.

        Raises:
            DefinitionError: The migration of the class has other states.
            StateDefinitionError: The ``named_by`` of a state is not a map state.
            StateSchemaChanged: One changed incompatibly with its stored values.
        """
        for schema in self._schemas.values():
            names = None if schema.named_by is None else self._schemas.get(schema.named_by)
            if schema.named_by is not None and (names is None or names.kind != "map"):
                raise StateDefinitionError(
                    f"named_by={schema.named_by!r} of the {schema}: there is no such map state; declare it, as "
                    f"MapState(name={schema.named_by!r})"
                )
        if (migration := self._spec.function.migration) is not None:
            migration.check_class(type(self._spec.function).__name__, self._schemas)
        old = [StateSchema.from_json(state["schema"]) for state in self._stored.values()]
        check_compatible(self._spec.name, old, list(self._schemas.values()))
        self._checked = True

    def watch(self, function: Function) -> None:
        """Record the states that are attributes of the opened function, for `check_attributes`."""
        self._attributes = {name: state for name, state in vars(function).items() if isinstance(state, State)}

    def check_attributes(self, function: Function) -> None:
        """Check that a call has not replaced a state by a value.

        Declarations on the class refuse such an assignment at once. This check finds it for states that the function
        got in ``open``, or declares on the object, before the batch is committed.

        Raises:
            StateAccessError: A state was replaced.
        """
        attributes = vars(function)
        for name, state in self._attributes.items():
            if not isinstance(attributes.get(name), State):
                what = f"self.{name} = {shown(attributes[name])}" if name in attributes else f"del self.{name}"
                raise StateAccessError(
                    f"operator {self._spec.name!r}, key group {self._group}: {state.replaced(function, name, what)}"
                )

    def activate(self) -> None:
        """Allow access to the states."""
        for state in self.bound.values():
            state.activate()

    def deactivate(self) -> None:
        """Refuse access again: no call with a key is running."""
        for state in self.bound.values():
            state.deactivate()

    def flush(self, changes: Changes) -> None:
        """Write the changes of the batch."""
        try:
            for state in self.bound.values():
                state.flush(changes)
        except EncodingError as error:
            raise EncodingError(f"operator {self._spec.name!r}, key group {self._group}: {error}") from error

    def described(self) -> dict[str, Any]:
        """Return descriptions with ids, in their stored form."""
        return {name: {"id": self._ids[name], "schema": schema.to_json()} for name, schema in self._schemas.items()}

    def _bind(self, declaration: State, kind: Any = None) -> Any:
        name = declaration.name
        if self._checked:
            raise StateAccessError(
                f"{declaration.kind} state {name!r} of operator {self._spec.name!r} was requested after open, when the "
                "states were checked against the checkpoint; declare it on the class, or get it in open and keep it"
            )
        if name in self.bound:
            raise StateDefinitionError(f"state {name!r} of operator {self._spec.name!r} is declared twice; rename one")
        if name not in self._ids:
            self.last_id += 1
            self._ids[name] = self.last_id
        if isinstance(declaration, TableState):
            check_key(declaration, self._spec.keys, self._spec.name)
        bound = self.bound[name] = (kind or _BOUND[declaration.kind])(declaration, self._scope, self._ids[name])
        if not isinstance(bound, BoundBroadcastState | HeldRows):
            self.keyed[name] = bound
        self._schemas[name] = describe(bound, len(self._spec.keys))
        return bound

    # The methods for open() -------------------------------------------------------------------------------------------

    def get_task_name(self) -> str:
        return self._spec.name

    def get_index_of_this_subtask(self) -> int:
        return self._group

    def get_number_of_parallel_subtasks(self) -> int:
        return self._spec.parallelism

    def get_state(self, descriptor: ValueState[Any]) -> ValueState[Any]:
        return self._bind(_expect(descriptor, ValueState))  # type: ignore[no-any-return]

    def get_list_state(self, descriptor: ListState[Any]) -> ListState[Any]:
        return self._bind(_expect(descriptor, ListState))  # type: ignore[no-any-return]

    def get_map_state(self, descriptor: MapState[Any, Any]) -> MapState[Any, Any]:
        return self._bind(_expect(descriptor, MapState))  # type: ignore[no-any-return]

    def get_reducing_state(self, descriptor: ReducingState[Any]) -> ReducingState[Any]:
        return self._bind(_expect(descriptor, ReducingState))  # type: ignore[no-any-return]

    def get_aggregating_state(self, descriptor: AggregatingState[Any, Any]) -> AggregatingState[Any, Any]:
        return self._bind(_expect(descriptor, AggregatingState))  # type: ignore[no-any-return]

    def get_versioned_state(self, descriptor: VersionedState[Any]) -> VersionedState[Any]:
        return self._bind(_expect(descriptor, VersionedState))  # type: ignore[no-any-return]


def describe(bound: Any, stream_keys: int) -> StateSchema:
    """Return the description of a bound state's declaration, which is stored and compared.

    Args:
        bound: The state.
        stream_keys: Number of key columns of the stream.
    """
    state = bound.declaration
    if isinstance(bound, BoundTableState):
        schema = StateSchema.of_table(state.name, list(state.key), bound.layout.fingerprint(stream_keys), state.ttl)
    elif isinstance(state, MapState):
        schema = StateSchema.of(state.name, bound.kind, state.key_type, state.value_type, state.ttl)
    else:
        value = state.accumulator_type if isinstance(state, AggregatingState) else state.type
        schema = StateSchema.of(state.name, bound.kind, None, value, state.ttl)
    return attrs.evolve(schema, named_by=state.named_by, shown_as=state.shown_as, meaning=state.meaning)


def _expect(descriptor: Any, kind: type[State]) -> State:
    if not isinstance(descriptor, kind):
        raise StateDefinitionError(f"{descriptor!r} is not a {kind.__name__} or {kind.__name__}Descriptor")
    if not descriptor.name:
        raise StateDefinitionError(
            f"{kind.__name__} obtained in open needs a name: {kind.__name__}Descriptor(name, ...)"
        )
    return descriptor
