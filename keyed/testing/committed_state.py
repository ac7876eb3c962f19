"""The committed state of a function under test, for assertions."""

from __future__ import annotations

from collections import Counter
from typing import Any

from keyed.codec.keys import encode_key
from keyed.codec.state_schema import is_shown_as_another, shown_tables
from keyed.content.addresses import TIMER_EVENT, TIMER_PROCESSING, key_of
from keyed.content.delta import table_keys
from keyed.engine.group_log import GroupMeta
from keyed.engine.key_group import KeyGroup
from keyed.errors import DefinitionError
from keyed.job.context import Timer
from keyed.job.functions import Function, declared_states
from keyed.job.state import State
from keyed.tables.state_table import timer_of
from keyed.testing.group_set import GroupSet
from keyed.testing.states import namespaces, state_by_key, windows_by_key

#: Name of the one table of an operator, which has no name of its own in a harness.
WINDOWS = "windows"


class CommittedState:
    """States, timers and counters as of the last commit.

    Args:
        groups: The key groups that hold them.
    """

    def __init__(self, groups: GroupSet) -> None:
        self._groups = groups

    def pending_timers(self, key: Any = None) -> list[Timer]:
        """Return the pending timers, of one key or of all: by timestamp, domain, key and name."""
        timers = []
        for prefix, sub, value in self._groups.entries():
            if prefix[0] in (TIMER_EVENT, TIMER_PROCESSING):
                timers.append((prefix[1:], sub, timer_of(prefix, sub, value)))
        timers.sort(key=lambda item: (item[2].timestamp, item[2].domain.value, *item[:2]))
        encoded_key = None if key is None else encode_key(key)
        return [timer for encoded, _, timer in timers if encoded_key is None or encoded == encoded_key]

    def state(self, name: str, namespace: Any = None) -> dict[Any, Any]:
        """Return the committed entries of a state by key, in order of keys.

        A value or accumulator is the result of ``value()`` or ``get()``, a map a dictionary in key order, a versioned
        state a dictionary by timestamp, a table a list of rows. Windows are the state ``"windows"``, a dictionary of
        results by (start, end).

        Args:
            name: Name of the state.
            namespace: The namespace beside the key.
        """
        values: dict[Any, Any] = {}
        names: set[str] = set(self._declared())
        for group, meta, store in self._groups.committed():
            stored = self._stored_names(meta)
            names |= stored.keys()
            if name not in stored:
                continue
            state = stored[name]
            if not _is_computed(meta.states[state]):
                declared = self._declared(group).get(state)
                values |= state_by_key(store, state, meta.states[state], declared, namespace)
            elif namespace is None:
                values |= windows_by_key(store, meta, state, self._groups.spec.function)
        if name not in names:
            raise DefinitionError(
                f"state {name!r} does not exist; the states are: {', '.join(sorted(names)) or 'none'}"
            )
        return {key: values[key] for key in sorted(values, key=encode_key)}

    def namespaces(self, name: str) -> list[Any]:
        """Return the namespaces in which a state has entries, in order."""
        self.state(name)
        names: set[Any] = set()
        for _, meta, store in self._groups.committed():
            state = self._stored_names(meta).get(name)
            if state is not None and not _is_computed(meta.states[state]):
                names |= namespaces(store, meta.states[state])
        return sorted(names, key=encode_key)

    @property
    def broadcast_state_names(self) -> list[str]:
        """The names of the broadcast states."""
        return sorted(str(state.name) for state in self._groups.spec.broadcast)

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """Return the committed entries of a broadcast state, in order of its keys.

        Raises:
            DefinitionError: There is no such state, or its copies differ between key groups.
        """
        copies: list[dict[Any, Any]] = []
        declared = next((state for state in self._groups.spec.broadcast if state.name == name), None)
        for _, meta, store in self._groups.committed():
            described = meta.states.get(name)
            if described is None or described["schema"]["kind"] != "broadcast":
                raise DefinitionError(f"broadcast_state({name!r}): there is no such broadcast state")
            copies.append(state_by_key(store, name, described, declared, None).get(None, {}))
        if any(copy != copies[0] for copy in copies):
            raise DefinitionError(
                f"broadcast state {name!r} differs between key groups: {copies!r:.500}; the writes of "
                "process_broadcast_element may depend only on the element and on broadcast state"
            )
        return copies[0] if copies else {}

    @property
    def state_names(self) -> list[str]:
        """The names of the states; those of ``open`` once an element was processed."""
        names = {name for _, meta, _ in self._groups.committed() for name in self._stored_names(meta)}
        return sorted(names | {name for name, state in self._declared().items() if state.shown_as is None})

    def state_entries(self, key: Any = None) -> int:
        """Count the live entries of a key or of all."""
        if key is not None:
            entries = sum(1 for at, _, _ in self._groups.entries() if at[0] < TIMER_PROCESSING and key_of(at) == key)
            states = [each for _, meta, _ in self._groups.committed() for each in meta.states.items()]
            names = {name for name, state in states if state["schema"]["kind"] == "table"}
            return entries + sum(len(self.state(name).get(key, ())) for name in names)
        count = sum(1 for prefix, _, _ in self._groups.entries() if prefix[0] < TIMER_PROCESSING)
        committed = self._groups.committed()
        tables = [store.table(state_id) for _, meta, store in committed for state_id in table_keys(meta.states)]
        return count + sum(table.num_rows for table in tables if table is not None)

    def metrics(self) -> dict[str, int]:
        """Return the counters, summed over key groups."""
        total: Counter[str] = Counter()
        for _, meta, _ in self._groups.committed():
            total.update(meta.counters)
        return dict(total)

    @property
    def function(self) -> Function:
        """The function."""
        return self._groups.spec.function

    def _stored_names(self, meta: GroupMeta) -> dict[str, str]:
        """Return the stored names of the states by the names of their tables; states without a table have their own.

        A state that only names the namespaces of another one is part of that one.
        """
        shown = shown_tables(meta.states, WINDOWS)
        naming = {described["schema"].get("named_by") for described in meta.states.values()}
        inner = {name: name for name in meta.states if name not in shown.values() and name not in naming}
        return inner | shown

    def _declared(self, group: KeyGroup | None = None) -> dict[str, State]:
        """Return the declarations of states by name: those of the class, and those that a group has obtained."""
        states = {name: state for name, (_, state) in declared_states(self._groups.spec.function).items()}
        return states if group is None else states | group.declarations()


def _is_computed(described: dict[str, Any]) -> bool:
    """Return true if a state is shown as the one table of its operator."""
    return is_shown_as_another(described) and bool(described["schema"]["shown_as"]["view"])
