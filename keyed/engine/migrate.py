"""Execution of declared migrations (`keyed.StateMigration`), on the descriptions of states and on their entries.

A restore migrates the entries that it reads. The migration of a class is also applied in place, in the first batch on a
checkpoint that needs it: its changes are part of that batch.

A class that is stored by name is a map, one that is stored by position an array (`keyed.codec.values`). A field is
added to either without the original class, which need not exist any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isnan
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from keyed.codec.fingerprints import describe_type, field_names, format_type, why_incompatible
from keyed.codec.state_schema import StateSchema
from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.codec.values import WIDE, pack, unpack_any, value_codec
from keyed.content.addresses import NULL, describe_entry, split_value, state_id_of
from keyed.content.blocks import Change, TableDelta
from keyed.content.contents import contents
from keyed.content.delta import Delta
from keyed.content.local_store import ReadStore
from keyed.engine.changes import Changes
from keyed.errors import CorruptionError, DefinitionError, EncodingError, StateSchemaChanged
from keyed.job.functions import Function
from keyed.job.restoring import StateMigration

_PLAIN = ("None", "bool", "int", "float", "str", "bytes", "datetime", "date", "time", "timedelta", "Decimal", "UUID")


def with_fields(fingerprint: Any, fields: Mapping[str, Any]) -> tuple[Any, Callable[[bytes], bytes]]:
    """Return a type with added fields, and a function that adds them to a value.

    Args:
        fingerprint: Type of the stored values (`keyed.codec.fingerprints`).
        fields: Value by the name of each new field: None, or a bool, int, float, str, bytes, datetime, date, time,
            timedelta, Decimal or UUID. If the class is stored by position, they follow its existing fields.

    Returns:
        The fingerprint with the fields, and a function from encoded value to encoded value, which raises
        `CorruptionError` for other values.

    Raises:
        StateSchemaChanged: The stored values are not of a class, or the class has the field.
        EncodingError: A value cannot be encoded.
    """
    kind = fingerprint["kind"] if isinstance(fingerprint, dict) else fingerprint
    if kind not in ("fields", "array"):
        raise StateSchemaChanged(f"fields can be added to values of a class, and these are {format_type(fingerprint)}")
    present = fingerprint["fields"] if kind == "fields" else [name for name, _, _ in fingerprint["fields"]]
    if known := [name for name in fields if name in present]:
        raise StateSchemaChanged(f"the field {known[0]} exists already: {format_type(fingerprint)}")
    types = {name: describe_type(type(value)) for name, value in fields.items()}
    for name, type_ in types.items():
        if type_ not in _PLAIN:
            raise StateSchemaChanged(f"the field {name} cannot be given {fields[name]!r}: give {', '.join(_PLAIN)}")
    if kind == "fields":
        added = fingerprint["fields"] | {name: {"type": type_, "required": True} for name, type_ in types.items()}
    else:
        added = [*fingerprint["fields"], *([name, type_, True] for name, type_ in types.items())]
    return {**fingerprint, "fields": added}, _converter(fields, tagged=_has_untyped(fingerprint))


def as_type(kind: str, fingerprint: Any, type_: Any) -> tuple[Any, Callable[[bytes], bytes]]:
    """Return the description of another type, and a function that converts a value to it.

    Args:
        kind: Kind of the state.
        fingerprint: Type of the stored values.
        type_: The new type.

    Returns:
        The fingerprint, and a function from encoded value to encoded value, which raises `StateSchemaChanged` for a
        value that would not be equal afterwards.

    Raises:
        StateSchemaChanged: No value of the one type can be one of the other, or the state has no values by themselves.
        EncodingError: The type cannot be encoded.
    """
    codec = value_codec(type_)
    change = f"{format_type(fingerprint)} as {format_type(codec.fingerprint)}"
    if kind == "table":
        raise StateSchemaChanged("the columns of a table cannot be converted; declare a table of another name")
    if _has_untyped(fingerprint) != _has_untyped(codec.fingerprint):
        raise StateSchemaChanged(f"{change}: values with and without a declared type are stored differently")
    both = fingerprint, codec.fingerprint
    if fingerprint != codec.fingerprint and all(each in _PLAIN for each in both if isinstance(each, str)):
        is_number = [each in ("int", "float") for each in both if isinstance(each, str)]
        if len(is_number) == 2 and not all(is_number):
            raise StateSchemaChanged(f"{change}: only int and float are converted; keep the state, and add another")

    def convert(data: bytes) -> bytes:
        value: Any = None
        try:
            if codec.fingerprint == "int" and isinstance(value := unpack_any(data), float) and value.is_integer():
                return codec.encode(int(value))
            converted = codec.encode(codec.decode(data))
            if _has_all(unpack_any(data), unpack_any(converted)):
                return converted
        except (CorruptionError, EncodingError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise StateSchemaChanged(f"{change}: {error}") from error
        raise StateSchemaChanged(f"{change}: {unpack_any(data)!r:.200} would change")

    return codec.fingerprint, convert


def _has_all(old: Any, new: Any) -> bool:
    """Return true if a value has all of another one: numbers are compared by value, a class may have more fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and _has_all(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) <= len(new) and all(map(_has_all, old, new))
    if isinstance(old, Ext) or isinstance(new, Ext):
        return isinstance(old, Ext) and isinstance(new, Ext) and (old.code, old.data) == (new.code, new.data)
    return bool(old == new) or (isinstance(old, float) and isinstance(new, float) and isnan(old) and isnan(new))


def _converter(fields: Mapping[str, Any], *, tagged: bool) -> Callable[[bytes], bytes]:
    """Return ``tagged``: whether the type has untyped parts, and its values are written by `keyed.codec.tagged`."""

    def extended(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, **fields}
        if isinstance(value, list | tuple):
            return [*value, *fields.values()]
        raise CorruptionError(f"an encoded value is not an instance of a class: {value!r:.200}")

    def convert(data: bytes) -> bytes:
        if tagged:
            return encode_tagged(extended(decode_tagged(data)))
        try:
            value = unpack_any(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CorruptionError(f"an encoded value is malformed ({error})") from error
        if isinstance(value, Ext) and value.code == WIDE:
            return pack(Ext(WIDE, encode_tagged(extended(decode_tagged(bytes(value.data))))))
        return pack(extended(value))

    return convert


def _has_untyped(fingerprint: Any) -> bool:
    if isinstance(fingerprint, dict):
        return any(map(_has_untyped, fingerprint.values()))
    if isinstance(fingerprint, list):
        return any(map(_has_untyped, fingerprint))
    return bool(fingerprint == "object")


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
