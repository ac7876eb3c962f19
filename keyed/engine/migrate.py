"""Execution of declared migrations (`keyed.StateMigration`), on the descriptions of states and on their entries.

A restore migrates the entries that it reads. The migration of a class is also applied in place, in the first batch on a
checkpoint that needs it: its changes are part of that batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyed.codec.fingerprints import describe_type, field_names, why_incompatible
from keyed.codec.migration import as_type, with_fields
from keyed.codec.state_schema import StateSchema
from keyed.content.addresses import NULL, describe_entry, split_value, state_id_of
from keyed.content.blocks import Change, TableDelta
from keyed.content.contents import contents
from keyed.content.delta import Delta
from keyed.content.local_store import ReadStore
from keyed.engine.changes import Changes
from keyed.errors import DefinitionError, EncodingError, StateSchemaChanged
from keyed.job.functions import Function
from keyed.job.restoring import StateMigration


class Migration:
    """A migration of the states of a changelog.

    Args:
        migrate: The declaration.
        stored: Descriptions of the stored states with their ids, by name.

    Attributes:
        states: The descriptions afterwards.

    Raises:
        DefinitionError: It names a state that is not stored.
        StateSchemaChanged: It is not compatible with the stored states.
    """

    def __init__(self, migrate: StateMigration, stored: dict[str, Any]) -> None:
        for old, new in migrate.renamed.items():
            if old not in stored:
                raise _unknown(f"renamed={{{old!r}: {new!r}}}", old, stored)
        for name in migrate.dropped:
            if name not in stored:
                raise _unknown(f"dropped={sorted(migrate.dropped)!r}", name, stored)
        self._dropped = {int(stored[name]["id"]) for name in migrate.dropped}
        self._stored, stored = stored, {name: state for name, state in stored.items() if name not in migrate.dropped}
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
        for option, named in (("added", migrate.added), ("converted", migrate.converted)):
            for name in named:
                if name not in self.states:
                    raise _unknown(f"{option}={{{name!r}: ...}}", name, self._stored)

    @property
    def changes_entries(self) -> bool:
        """True if the migration changes entries, or leaves some out."""
        return bool(self._converters or self._dropped)

    def apply(self, delta: Delta) -> Delta:
        """Return the migrated form.

        Raises:
            StateSchemaChanged: A value cannot be converted.
        """
        if not self.changes_entries:
            return delta
        entries = [new for change in delta.entries if (new := self._migrated(change)) is not None]
        return Delta(entries, [table for table in delta.tables if table.state_id not in self._dropped])

    def write(self, store: ReadStore, changes: Changes) -> None:
        """Write the changes that turn the content of a store into the migrated form.

        Raises:
            StateSchemaChanged: A value cannot be converted.
        """
        if not self.changes_entries:
            return
        dropped: dict[int, list[TableDelta]] = {}
        for delta in contents(store, self._stored):
            for change in delta.entries:
                new = self._migrated(change)
                if new is not change:
                    changes.write(change[0], change[1], None if new is None else new[2])
            for table in delta.tables:
                if table.state_id in self._dropped:
                    dropped.setdefault(table.state_id, []).append(table)
        for state_id, parts in dropped.items():
            import pyarrow as pa

            rows = pa.concat_tables([part.upserts for part in parts if part.upserts is not None])
            keys = parts[0].keys
            changes.write_table(TableDelta(state_id, keys, removed=rows.select(keys)), rows)

    def _migrated(self, change: Change) -> Change | None:
        """Return an entry, or a change of one, in its new form; ``None`` if its state is dropped."""
        prefix, sub, value = change
        state_id = state_id_of(prefix)
        if state_id in self._dropped:
            return None
        convert = self._converters.get(state_id)
        if convert is None or value is None:
            return change
        head, body = split_value(prefix, value)
        if body == NULL:
            return change
        try:
            return prefix, sub, head + convert(body)
        except StateSchemaChanged as error:
            raise StateSchemaChanged(f"{describe_entry(prefix, sub, self.states)}: {error}") from error


def class_migration(function: Function, stored: dict[str, Any]) -> StateMigration:
    """Return the part of the migration of a function's class that stored states still need.

    A class declares its migration for good: it has no effect on states that were migrated before.

    Args:
        function: The function.
        stored: Descriptions of the stored states with their ids, by name.
    """
    migrate = function.migration or StateMigration()
    renamed = {old: new for old, new in migrate.renamed.items() if old in stored and new not in stored}
    dropped = [name for name in migrate.dropped if name in stored]
    values = {
        renamed.get(name, name): state["schema"]["value"] for name, state in stored.items() if name not in dropped
    }
    converted = {
        name: type_
        for name, type_ in migrate.converted.items()
        if name in values and why_incompatible(values[name], describe_type(type_))
    }
    added = {}
    for name, fields in migrate.added.items():
        present = field_names(values[name]) if name in values else fields
        if missing := {field: value for field, value in fields.items() if field not in present}:
            added[name] = missing
    return StateMigration(renamed, added, dropped, converted)


def _unknown(what: str, name: str, stored: dict[str, Any]) -> DefinitionError:
    return DefinitionError(_described(f"{what}: there is no state {name!r}", stored))


def _misfit(why: str, stored: dict[str, Any]) -> StateSchemaChanged:
    return StateSchemaChanged(_described(why, stored))


def _described(why: str, stored: dict[str, Any]) -> str:
    states = [f"  {StateSchema.from_json(state['schema'])}" for state in stored.values()]
    return "\n".join([f"migrate={why}; stored are", *(states or ["  no states"])])
