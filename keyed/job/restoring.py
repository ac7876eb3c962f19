"""Restore points and migrations: the state of a changelog at a batch, under the current declarations."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import attrs

from keyed.base.arguments import without_credentials
from keyed.changelog.model import Changelog
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.errors import DefinitionError


@attrs.frozen
class StateMigration:
    """Declared changes of an operator's states since they were stored, beyond compatible ones.

    Given to a `RestorePoint`, or declared by the class, ``migration = StateMigration(...)``, which applies it at a
    restore without one, and to a checkpoint in its first batch. It may stay.

    Attributes:
        renamed: New name by old name of a state.
        added: Fields added to the class of a state's values, ``{state: {field: value}}``, by the state's new name.
            Stored values get ``value``: None, or a bool, int, float, str, bytes, datetime, date, time, timedelta,
            Decimal or UUID. A field with a default needs no migration.
        dropped: Names of states whose entries are left out.
        converted: New type of values, elements or accumulators by the state's new name, ``{"total": float}``. A value
            that would change, as 0.5 as an int, raises `StateSchemaChanged` with its key.

    Raises:
        DefinitionError: A dropped state is also renamed, or ``dropped`` is a text.
    """

    renamed: Mapping[str, str] = attrs.field(factory=dict)
    added: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    dropped: Collection[str] = ()
    converted: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.dropped, str):
            raise DefinitionError(f"dropped={self.dropped!r} is a text; give the names of states, [{self.dropped!r}]")
        if both := [name for name in self.dropped if name in self.renamed]:
            raise DefinitionError(f"the state {both[0]!r} is in dropped= and in renamed=; leave it out of one of them")

    def check_class(self, name: str, declared: Collection[str]) -> None:
        """Check the migration of a class against the states that it declares.

        Args:
            name: Name of the class.
            declared: Names of the states.

        Raises:
            DefinitionError: The states are not the ones after the migration.
        """
        new = {"added": self.added, "converted": self.converted, "renamed": self.renamed.values()}
        if missing := [(option, state) for option, names in new.items() for state in names if state not in declared]:
            option, state = missing[0]
            raise DefinitionError(
                f"{name}.migration: {option}= names the state {state!r}, which the class does not declare; it has "
                f"{', '.join(sorted(declared)) or 'none'}"
            )
        if kept := [state for state in (*self.dropped, *self.renamed) if state in declared]:
            raise DefinitionError(
                f"{name}.migration drops or renames the state {kept[0]!r}, which the class declares, and would do so "
                "at every start; leave out one of the two, or give the migration to a RestorePoint"
            )


@attrs.frozen
class RestorePoint:
    """A state to start with, for ``restore_from=`` of `KeyedStream.process`.

    Attributes:
        changelog: The changelog of this operator in an earlier query, or the URL of one in an object store.
        as_of: Id of the batch, or a time with a zone for the newest batch whose processing time is not after it. By
            default the newest batch that all key groups have.
        migrate: Changes of the states' declarations that are not compatible.
        standby: Folder of state tables that follow the changelog (`keyed.tables.open_tables`), wherever the key groups
            run: only missing batches are read from the changelog.
    """

    changelog: Changelog = attrs.field(converter=changelog_at)
    as_of: int | datetime | None = None
    migrate: StateMigration = attrs.field(factory=StateMigration)
    standby: str | None = attrs.field(default=None, converter=attrs.converters.optional(os.fspath))

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.changelog, Changelog):
            raise DefinitionError(f"restore_from={without_credentials(repr(self.changelog))} is not a changelog")
        if isinstance(self.as_of, datetime):
            if self.as_of.tzinfo is None:
                raise DefinitionError(f"as_of={self.as_of!r} has no time zone; add one, for example tzinfo=UTC")
        elif self.as_of is not None and (type(self.as_of) is not int or self.as_of < 0):
            raise DefinitionError(f"as_of={self.as_of!r} must be the id of a batch, from 0, or a datetime")
        if not isinstance(self.migrate, StateMigration):
            raise DefinitionError(f"migrate={self.migrate!r} must be a StateMigration")
