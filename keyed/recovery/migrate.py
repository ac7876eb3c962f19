"""Execution of declared migrations (`keyed.StateMigration`), on the descriptions of states and on their entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyed.codec.migration import with_fields
from keyed.codec.state_schema import StateSchema
from keyed.content.addresses import NULL, split_value, state_id_of
from keyed.content.blocks import Change
from keyed.content.delta import Delta
from keyed.errors import EncodingError, StateSchemaChanged
from keyed.restoring import StateMigration


class Migration:
    """A migration of the states of a changelog.

    Args:
        migrate: The declaration.
        stored: Descriptions of the stored states with their ids, by name.

    Attributes:
        states: The descriptions afterwards.

    Raises:
        StateSchemaChanged: It is not compatible with the stored states.
    """

    def __init__(self, migrate: StateMigration, stored: dict[str, Any]) -> None:
        for old, new in migrate.renamed.items():
            if old not in stored:
                raise _misfit(f"renamed={{{old!r}: {new!r}}}: there is no state {old!r}", stored)
        names = [migrate.renamed.get(name, name) for name in stored]
        for name in names:
            if names.count(name) > 1:
                raise _misfit(f"renamed={dict(migrate.renamed)!r}: two states would be named {name!r}", stored)
        self.states = {}
        self._converters: dict[int | None, Callable[[bytes], bytes]] = {}
        for name, state in zip(names, stored.values(), strict=True):
            schema = state["schema"] | {"name": name}
            if name in migrate.added:
                try:
                    schema["value"], convert = with_fields(schema["value"], migrate.added[name])
                except (StateSchemaChanged, EncodingError) as error:
                    raise _misfit(f"added={{{name!r}: {migrate.added[name]!r}}}: {error}", stored) from error
                self._converters[int(state["id"])] = convert
            self.states[name] = state | {"schema": schema}
        for name in migrate.added:
            if name not in self.states:
                raise _misfit(f"added={{{name!r}: ...}}: there is no state {name!r}", stored)

    @property
    def changes_entries(self) -> bool:
        """True if the migration changes entries."""
        return bool(self._converters)

    def apply(self, delta: Delta) -> Delta:
        """Return the migrated form."""
        if not self._converters:
            return delta
        result: list[Change] = []
        for change in delta.entries:
            prefix, sub, value = change
            convert = self._converters.get(state_id_of(prefix))
            if convert is not None and value is not None:
                head, body = split_value(prefix, value)
                if body != NULL:
                    result.append((prefix, sub, head + convert(body)))
                    continue
            result.append(change)
        return Delta(result, delta.tables)


def _misfit(why: str, stored: dict[str, Any]) -> StateSchemaChanged:
    states = [f"  {StateSchema.from_json(state['schema'])}" for state in stored.values()]
    return StateSchemaChanged("\n".join([f"migrate={why}; the changelog has", *(states or ["  no states"])]))
