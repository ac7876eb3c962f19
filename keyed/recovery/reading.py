"""`read_changelog`: the committed changes of a job as typed values, for other programs (change data capture)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import error as StructError  # noqa: N812 - as other errors
from typing import Any

import attrs

from keyed.changelog.commit_fold import FoldedCommit, fold_groups
from keyed.changelog.model import Changelog, Commit, sequence_of
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.codec.state_schema import described_as, shown_tables
from keyed.content.addresses import expiry, split_value, state_id_of
from keyed.content.blocks import TableDelta
from keyed.content.entry_decoder import EntryDecoder
from keyed.errors import ChangelogError, CorruptionError
from keyed.recovery.cut import header_of, newest_sequence

_DUE_COLUMN = "__keyed_due"


@attrs.frozen
class StateChange:
    """One changed entry of a state.

    Attributes:
        commit: The marker: ``batch``, key group, clocks. For a ``snapshot`` the entry is a part of the complete
            state.
        state: Name of the state's table: of windows, that of the operator.
        key: One value, or a tuple of several; ``None`` in a broadcast state.
        namespace: Beside the key; ``None`` is the state itself.
        entry: As in `keyed.tables.entries.Entry.entry`.
        value: The value, element, map value, accumulator, or other columns of a table as a dict; ``None`` for a removed
            entry, and for a version that is a deletion.
        removed: True if the entry was removed, because a map may hold ``None``.
        expires: With a time to live, its end, in milliseconds of the state's clock.
    """

    commit: Commit
    state: str
    key: Any
    namespace: Any
    entry: Any
    value: Any
    removed: bool
    expires: int | None


def read_changelog(
    changelog: Changelog | str,
    state: str | None = None,
    *,
    from_: int = 0,
    until: int | None = None,
    value_type: Any = None,
    map_key_type: Any = None,
) -> Iterator[StateChange]:
    """Read the committed changes, batch by batch, up to the newest batch that all key groups have.

    Windows are read as accumulators; `keyed.tables.open_tables` has results.

    It ends after a complete batch. To continue later, give ``from_`` the number after that of the last change's batch.

    Args:
        changelog: The changelog, or the URL of one in an object store.
        state: Name of the one table to read; all by default, without timers and inner states.
        from_: Id of the batch to begin with. By default the beginning: a snapshot, if there is one.
        until: Id of the batch to end with.
        value_type: Type of the state's values, elements, map values or accumulators. By default plain values have their
            types, and a class is replaced by a `msgspec.Struct` with its fields.
        map_key_type: Type of the keys of a map state.

    Raises:
        ChangelogError: There is no such changelog or state.
        HistoryCompacted: ``from_`` or ``until`` was compacted away.
        StateSchemaChanged: A type is not compatible with the stored values.
        CorruptionError: The changelog is damaged.
    """
    if state is None and (value_type is not None or map_key_type is not None):
        raise ChangelogError("value_type and map_key_type are types of one state; give state= its name")
    log: Changelog = changelog_at(changelog)
    header = header_of(log)
    readers = {group: log.reader(group) for group in range(header.parallelism)}
    newest = newest_sequence(readers.values())
    end = newest if until is None else min(sequence_of(until), newest)
    commits = fold_groups(readers, header.log_id, max(sequence_of(from_) - 1, 0), end)
    return _changes(commits, _Decoders(header.operator, state, value_type, map_key_type)) if end > 0 else iter(())


def _changes(commits: Iterator[FoldedCommit], decoders: _Decoders) -> Iterator[StateChange]:
    for each in commits:
        commit, where = each.commit, each.place
        decoders.use(commit)
        for delta in each.deltas():
            for entry in delta.entries:
                try:
                    change = decoders.entry(commit, *entry)
                except (IndexError, StructError) as error:
                    raise CorruptionError(f"{entry!r:.200} is not an entry", where=where) from error
                if change is not None:
                    yield change
            for table in delta.tables:
                try:
                    yield from decoders.rows(commit, table)
                except KeyError as error:
                    raise CorruptionError(f"rows of a table lack the column {error}", where=where) from error
    decoders.check()


class _Decoders:
    """Decodes the entries of the requested states, by the descriptions in the commits."""

    def __init__(self, operator: str, only: str | None, value_type: Any, map_key_type: Any) -> None:
        self._operator = operator
        self._only = only
        self._types = value_type, map_key_type
        self._described: Any = None
        self._states: dict[int, EntryDecoder] = {}
        self._names: list[str] = []
        self._has_only = only is None

    def use(self, commit: Commit) -> None:
        """Use a commit's descriptions of the states."""
        described = commit.states
        if described == self._described:
            return
        tables = shown_tables(described, self._operator)
        self._described, self._states = described, {}
        self._names = sorted(tables)
        self._has_only = self._has_only or self._only in tables
        for name, stored in tables.items():
            if self._only in (None, name):
                state = described_as(described[stored], name)
                self._states[int(state["id"])] = decoder = EntryDecoder(state)
                value_type, map_key_type = self._types
                if value_type is not None:
                    decoder.use_value_type(value_type, f"value_type={value_type!r}")
                if map_key_type is not None:
                    decoder.use_key_type(map_key_type, f"map_key_type={map_key_type!r}")

    def check(self) -> None:
        """Check that one of the used commits has the requested state: it may be new, or have been dropped."""
        if not self._has_only:
            names = ", ".join(self._names) or "none"
            raise ChangelogError(f"there is no state {self._only!r} in the changelog; its states are: {names}")

    def entry(self, commit: Commit, prefix: bytes, sub: bytes, value: bytes | None) -> StateChange | None:
        """Return a changed entry; ``None`` if it is a timer, or of a state that was not requested.

        Entries of broadcast states, which every key group has, are returned for the first one only.
        """
        number = state_id_of(prefix)
        state = None if number is None else self._states.get(number)
        if state is None:
            return None
        if state.schema.kind == "broadcast" and commit.group:
            return None
        (key, namespace), expires = state.place(prefix), None
        if value is not None:
            due, value = split_value(prefix, value)
            expires = expiry(due) if due else None
        decoded = None if value is None else state.decode(value)
        name, entry = state.schema.name, state.decode_sub(sub)
        return StateChange(commit, name, key, namespace, entry, decoded, value is None, expires)

    def rows(self, commit: Commit, table: TableDelta) -> Iterator[StateChange]:
        """Yield changed rows of a table."""
        state = self._states.get(table.state_id)
        if state is None:
            return
        keys: list[str] = state.schema.key
        count = int(state.schema.value["stream_keys"])
        for rows, removed in ((table.removed, True), (table.upserts, False)):
            for row in () if rows is None else rows.to_pylist():
                key, entry = (tuple(row.pop(name) for name in names) for names in (keys[:count], keys[count:]))
                expires = row.pop(_DUE_COLUMN, None)
                yield StateChange(
                    commit,
                    state.schema.name,
                    key[0] if count == 1 else key,
                    None,
                    entry or None,
                    None if removed else row,
                    removed,
                    expires,
                )
