"""Descriptions of an operator's states, as JSON in the checkpoint, and their comparison with a changed program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs

from keyed.codec.fingerprints import describe_type, field_names, format_type, why_incompatible
from keyed.errors import CorruptionError, StateSchemaChanged

KINDS = ("value", "list", "map", "reducing", "aggregating", "table", "versioned", "broadcast")
#: The types that are converted to each other.
_NUMBERS = ("int", "float")
#: The kinds whose entries have keys of their own.
MAPS = ("map", "broadcast")


@attrs.frozen
class StateSchema:
    """The description of one state.

    Attributes:
        name: Name of the state.
        kind: One of `KINDS`.
        key: Fingerprint of the type of the keys of a map or broadcast state; the key columns of a table; None for
            others.
        value: Fingerprint of the type of values, elements, map values or accumulators; for a table, a fingerprint of
            its columns as of a class whose fields have defaults.
        ttl: None, or a dict with ``time_domain`` (``"processing_time"`` or ``"event_time"``), ``milliseconds`` and
            further settings to print.
        named_by: Name of the state that maps namespaces of this one to their names; None if they have no names.
        shown_as: Data with which the class named by ``view`` shows the state as the one table of its operator; ``view``
            is empty if the state is not a table. None if the state is a table of its own.
        meaning: The parts of an operator's program on which the content depends, by name; None if it has none.
    """

    name: str
    kind: str
    key: Any
    value: Any
    ttl: dict[str, Any] | None = None
    named_by: str | None = None
    shown_as: Mapping[str, Any] | None = None
    meaning: Mapping[str, str] | None = None

    @classmethod
    def of(cls, name: str, kind: str, key: Any, value: Any, ttl: Any = None) -> Self:
        """Describe a declaration, without ``named_by``, ``shown_as`` and ``meaning``.

        Args:
            name: Name of the state.
            kind: One of `KINDS`.
            key: The type of the keys of a map or broadcast state; ignored for others.
            value: The type of the values.
            ttl: None or a `keyed.job.state.StateTtl`.

        Raises:
            EncodingError: A type cannot be encoded.
        """
        assert kind in KINDS, f"state kind {kind!r} is not one of {KINDS}"
        map_key = describe_type(key) if kind in MAPS else None
        return cls(name, kind, map_key, describe_type(value), _describe_ttl(ttl))

    @classmethod
    def of_table(cls, name: str, key: list[str], columns: Any, ttl: Any = None) -> Self:
        """Describe a table: its key columns, and the fingerprint of its columns (`keyed.table_state.layout.Layout`)."""
        return cls(name, "table", key, columns, _describe_ttl(ttl))

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON."""
        described = {"name": self.name, "kind": self.kind, "key": self.key, "value": self.value, "ttl": self.ttl}
        extra = {"named_by": self.named_by, "shown_as": self.shown_as, "meaning": self.meaning}
        return described | {name: value for name, value in extra.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Create the description from the JSON of `to_json`.

        Raises:
            CorruptionError: The JSON is malformed.
        """
        try:
            extra = data.get("named_by"), data.get("shown_as"), data.get("meaning")
            schema = cls(data["name"], data["kind"], data["key"], data["value"], data["ttl"], *extra)
            assert schema.kind in KINDS
            assert schema.named_by is None or isinstance(schema.named_by, str)
            assert schema.shown_as is None or isinstance(schema.shown_as["view"], str)
            assert schema.meaning is None or all(isinstance(text, str) for text in schema.meaning.values())
            assert isinstance(schema.name, str)
            str(schema)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CorruptionError(f"the description of a state is malformed ({error!r}): {data!r:.200}") from error
        return schema

    def subject(self, operator: str) -> str:
        """Return the state as messages name it: if it is part of a library's operator, by the name of that."""
        if self.shown_as is None:
            return f"the state {self.name!r}"
        return str(self.shown_as.get("subject", f"the state of the operator {operator!r}"))

    def __str__(self) -> str:
        types = format_type(self.value)
        if self.kind in MAPS:
            types = f"{format_type(self.key)} -> {types}"
        if self.kind == "table":
            types = f"{types} by {', '.join(self.key)}"
        ttl = f", {self.ttl['milliseconds']} ms of {self.ttl['time_domain']} to live" if self.ttl else ""
        if self.kind == "versioned" and self.ttl:
            ttl = f", {self.ttl['milliseconds']} ms of history"
        if self.shown_as is None:
            return f"{self.kind} state {self.name!r} of {types}{ttl}"
        kept = ""
        if self.shown_as["view"]:
            results = ", ".join(str(column[0]) for column in self.shown_as["results"])
            kept = f"windows as {self.shown_as['layout']} with {results}: "
        return f"{kept}{self.kind} state of {types}{ttl}"


def _describe_ttl(ttl: Any) -> dict[str, Any] | None:
    if ttl is None:
        return None
    return {
        "milliseconds": ttl.milliseconds,
        "time_domain": ttl.time_domain.value,
        "update": ttl.update.value,
        "visibility": ttl.visibility.value,
    }


#: Windows store the states of their process function under this and the name that the user gave them.
_OF_PROCESS = "process_"


def is_shown_as_another(described: Mapping[str, Any]) -> bool:
    """Return true if a described state is not a table by itself."""
    return "shown_as" in described["schema"]


def shown_tables(states: Mapping[str, Any], operator: str) -> dict[str, str]:
    """Return the states that users see, by the names of their tables.

    A table has the name that the user gave the state. The one table of a library's operator has the operator's name;
    the operator's other states are not tables.

    Args:
        states: Descriptions of the states with their ids, by their stored names, as commits have them.
        operator: Name of the operator.
    """
    views = {
        state: described["schema"]["shown_as"]["view"] if is_shown_as_another(described) else None
        for state, described in states.items()
    }
    of_operator = [(operator, state) for state, view in views.items() if view]
    tables = dict(of_operator)
    for state, view in views.items():
        if view is None:
            name = state.removeprefix(_OF_PROCESS) if of_operator else state
            tables[state if name in tables else name] = state
    return tables


def described_as(described: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the description of a state with the name of its table, for readers and messages."""
    return {**described, "schema": {**described["schema"], "name": table}}


def check_compatible(operator: str, old: Iterable[StateSchema], new: Iterable[StateSchema]) -> None:
    """Check that the stored states of an operator can be read with its present declarations.

    Compatible are: the same states; new states; unions, enums and literals with more members; attrs classes,
    dataclasses and Structs with more fields that have defaults, in any order; named tuples with such fields at the end;
    renamed classes; another length of the time to live.

    Args:
        operator: Name of the operator.
        old: The states that are stored.
        new: The states that are declared.

    Raises:
        StateSchemaChanged: A state is no longer declared, or its kind, types, or clock of its time to live changed.
    """
    declared = {schema.name: schema for schema in new}
    before = {schema.name: schema for schema in old}
    # A state with a changed definition says more than the other states of the definition.
    for stored in sorted(before.values(), key=lambda each: (declared.get(each.name) or each).meaning == each.meaning):
        schema = declared.get(stored.name)
        reason = "it is no longer declared, and its values would be lost" if schema is None else _why(stored, schema)
        if reason is not None:
            remedy = _remedy(stored, schema, before, declared)
            if schema is None and stored.shown_as is not None:
                # Another layout has a different state.
                schema = next((each for each in declared.values() if (each.shown_as or {}).get("view")), None)
            described = {name: {"schema": each.to_json()} for name, each in {**declared, **before}.items()}
            names = {state: table for table, state in shown_tables(described, "").items() if table}
            earlier, now = (
                each and attrs.evolve(each, name=names.get(each.name, each.name)) for each in (stored, schema)
            )
            assert earlier is not None
            raise StateSchemaChanged(
                f"{earlier.subject(operator)} does not fit what is stored: {reason}.\n"
                f"  stored:   {earlier}\n"
                f"  declared: {now or 'nothing'}\n"
                f"{_other_kind_of_function(stored, declared)}{remedy}; or start with a new checkpoint"
            )


def _other_kind_of_function(stored: StateSchema, declared: Mapping[str, StateSchema]) -> str:
    """Return the remedy if a function over rows replaced a vectorized one, or the other way round."""
    is_table = stored.kind == "table"
    if not declared or any((schema.kind == "table") is is_table for schema in declared.values()):
        return ""
    kind, path = ("whole columns", "vectorized") if is_table else ("rows", "row")
    remedy = f'windows continue with .path("{path}"), joins with path="{path}"'
    return f"It was kept by a function over {kind}, and this one is not: {remedy}. "


def _remedy(
    stored: StateSchema, new: StateSchema | None, before: Mapping[str, StateSchema], declared: Mapping[str, StateSchema]
) -> str:
    """Return what to do about a state that does not fit its new declaration, or has none."""
    name = stored.name
    if stored.shown_as is not None:
        return "Define it as it was"
    if new is not None and new.meaning is not None:
        lost = [each.name for each in before.values() if each is stored or each.shown_as == {"view": ""}]
        return (
            "Define it as it was; or drop what it keeps: restore from a changelog, restore_from=keyed.RestorePoint("
            f"changelog, migrate=keyed.StateMigration(dropped={lost!r}))"
        )
    if any(each.shown_as and each.shown_as["view"] for each in before.values()):
        # A library's operator has the states, so the user's class cannot declare their migration.
        return f"Declare it as it was; or restore from a changelog with migrate=keyed.StateMigration(...) of {name!r}"
    if new is None:
        likely = [each for other, each in declared.items() if other not in before and _why(stored, each) is None]
        renamed = "Declare it again"
        if len(likely) == 1:
            renamed = f"{name!r} is gone, and {likely[0].name!r} is new and has the same type: if it was renamed, "
            renamed += f"declare {_on_the_class('renamed', {name: likely[0].name})}"
        return f"{renamed}; to drop its values, declare {_on_the_class('dropped', [name])}"
    if _why(stored, attrs.evolve(new, value=stored.value)) is None and stored.kind != "table":
        old_fields, fields = field_names(stored.value), field_names(new.value)
        if old_fields and (added := [field for field in fields if field not in old_fields]):
            values = ", ".join(f"{field!r}: ..." for field in added)
            return f"Declare the values of the new fields, {_on_the_class('added', f'{{{name!r}: {{{values}}}}}')}"
        types = stored.value, new.value
        if bool(old_fields) is bool(fields) and all(not isinstance(type_, str) or type_ in _NUMBERS for type_ in types):
            converted = f"{{{name!r}: {format_type(new.value)}}}"
            return f"Declare the conversion, {_on_the_class('converted', converted)}"
    return f"Declare the new state under another name, and this one as it was or {_on_the_class('dropped', [name])}"


def _on_the_class(option: str, change: object) -> str:
    return f"migration = keyed.StateMigration({option}={change}) on the class"


def _why(old: StateSchema, new: StateSchema) -> str | None:
    if old.kind != new.kind:
        return f"{old.kind} state became {new.kind} state"
    if old.meaning is not None and new.meaning is not None:
        parts = sorted({*old.meaning, *new.meaning})
        texts = [(part, old.meaning.get(part, "none"), new.meaning.get(part, "none")) for part in parts]
        changed = [f"{part} from {before!r} to {after!r}" for part, before, after in texts if before != after]
        if changed:
            return f"its definition has changed its {' and its '.join(changed)}"
    clocks = [schema.ttl["time_domain"] if schema.ttl else None for schema in (old, new)]
    if clocks[0] != clocks[1]:
        names = [clock or "none" for clock in clocks]
        return f"the clock of its time to live changed from {names[0]} to {names[1]}, which stores values differently"
    if old.kind in MAPS and (reason := why_incompatible(old.key, new.key, as_key=True)):
        return f"the type of its keys changed: {reason}"
    if old.kind == "table" and old.key != new.key:
        return f"its key changed from {', '.join(old.key)} to {', '.join(new.key)}"
    if old.kind == "table" and old.value["stream_keys"] != new.value["stream_keys"]:
        return "the columns of key_by changed, so its rows would belong to other key groups"
    if reason := why_incompatible(old.value, new.value):
        return f"the type of its values changed: {reason}"
    return None
