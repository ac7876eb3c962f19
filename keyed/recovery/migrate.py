"""Execution of declared migrations (`keyed.StateMigration`), on the descriptions of states and on their entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyed.codec.migration import as_type, with_fields
from keyed.codec.state_schema import StateSchema
from keyed.content.addresses import NULL, describe_entry, split_value, state_id_of
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
        for name in migrate.dropped:
            if name not in stored:
                raise _misfit(f"dropped={sorted(migrate.dropped)!r}: there is no state {name!r}", stored)
        self._dropped = {int(stored[name]["id"]) for name in migrate.dropped}
        everything, stored = stored, {name: state for name, state in stored.items() if name not in migrate.dropped}
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
            if name in migrate.converted:
                if name in migrate.added:
                    raise _misfit(f"the state {name!r} is in added= and in converted=; give it one of them", stored)
                try:
                    schema["value"], convert = as_type(schema["kind"], schema["value"], migrate.converted[name])
                except (StateSchemaChanged, EncodingError) as error:
                    raise _misfit(f"converted={{{name!r}: {migrate.converted[name]!r}}}: {error}", stored) from error
                self._converters[int(state["id"])] = convert
            self.states[name] = state | {"schema": schema}
        for name in migrate.added:
            if name not in self.states:
                raise _misfit(f"added={{{name!r}: ...}}: there is no state {name!r}", stored)
        for name in migrate.converted:
            if name not in self.states:
                raise _misfit(f"converted={{{name!r}: ...}}: there is no state {name!r}", everything)

    @property
    def changes_entries(self) -> bool:
        """True if the migration changes entries."""
        return bool(self._converters)

    @property
    def drops_entries(self) -> bool:
        """True if the migration leaves entries out."""
        return bool(self._dropped)

    def apply(self, delta: Delta) -> Delta:
        """Return the migrated form.

        Raises:
            StateSchemaChanged: A value cannot be converted.
        """
        if not self._converters and not self._dropped:
            return delta
        result: list[Change] = []
        for change in delta.entries:
            prefix, sub, value = change
            state_id = state_id_of(prefix)
            if state_id in self._dropped:
                continue
            convert = self._converters.get(state_id)
            if convert is not None and value is not None:
                head, body = split_value(prefix, value)
                if body != NULL:
                    try:
                        result.append((prefix, sub, head + convert(body)))
                    except StateSchemaChanged as error:
                        raise StateSchemaChanged(f"{describe_entry(prefix, sub, self.states)}: {error}") from error
                    continue
            result.append(change)
        return Delta(result, [table for table in delta.tables if table.state_id not in self._dropped])


def _misfit(why: str, stored: dict[str, Any]) -> StateSchemaChanged:
    states = [f"  {StateSchema.from_json(state['schema'])}" for state in stored.values()]
    return StateSchemaChanged("\n".join([f"migrate={why}; the changelog has", *(states or ["  no states"])]))
