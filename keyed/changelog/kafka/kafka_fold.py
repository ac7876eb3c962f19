"""Records made into blocks: those of a commit, or what compaction left, folded until it is a state again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from keyed.changelog.kafka.kafka_records import Keys, sequence_of
from keyed.changelog.model import Blocks, Commit
from keyed.content.blocks import Block, Change
from keyed.content.entry_hash import hash_sum, hash_text
from keyed.content.table_entries import TableEntries
from keyed.errors import CorruptionError

if TYPE_CHECKING:
    from confluent_kafka import Message

#: Changes or rows in a block.
_BLOCK = 10_000
#: Prefixes up to this kind are of states, and have the state's id; those above are of timers.
_STATE_KINDS = 3


def tables_of(states: dict[str, Any] | None, where: str) -> dict[bytes, TableEntries]:
    """What converts the rows of the tables among described states, by state id as it stands in a prefix.

    Raises:
        CorruptionError: A description is malformed.
    """
    try:
        tables = [state for state in (states or {}).values() if state["schema"]["kind"] == "table"]
        return {state["id"].to_bytes(2, "big"): TableEntries(state, where) for state in tables}
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise CorruptionError(f"{states!r:.200} does not describe states ({error!r})", where=where) from error


def blocks_of(messages: Iterable[Message], keys: Keys, tables: Mapping[bytes, TableEntries]) -> Iterator[Block]:
    """The blocks that say what records say.

    Args:
        messages: The records.
        keys: The keys of the operator's records.
        tables: What converts the rows of tables.

    Raises:
        CorruptionError: A record is malformed.
    """
    changes: list[Change] = []
    rows: dict[bytes, dict[tuple[bytes, bytes], Change]] = {state: {} for state in tables}
    for message in messages:
        prefix, sub = keys.address(message.key() or b"")
        if tables and prefix[0] <= _STATE_KINDS and (state := prefix[1:3]) in rows:
            part = rows[state]
            part[prefix, sub] = (prefix, sub, message.value())
            if len(part) == _BLOCK:
                yield tables[state].block(list(part.values()))
                rows[state] = {}
        else:
            changes.append((prefix, sub, message.value()))
            if len(changes) == _BLOCK:
                yield changes
                changes = []
    if changes:
        yield changes
    for state, part in rows.items():
        if part:
            yield tables[state].block(list(part.values()))


class KafkaFold:
    """The records of a partition from its start on, of each key the last one.

    Args:
        keys: The keys of the operator's records.
        where: For messages.
    """

    def __init__(self, keys: Keys, where: str) -> None:
        self._keys = keys
        self._where = where
        self._live: dict[bytes, Message] = {}
        self._base = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(self, messages: Iterable[Message]) -> None:
        """Add the records that come next."""
        live = self._live
        for message in messages:
            key = message.key() or b""
            if message.value() is None:
                live.pop(key, None)
            else:
                live[key] = message

    def state(self, commit: Commit, base: int) -> Blocks | None:
        """The state after a commit, if it is all there.

        It is not if compaction already took entries that records after the commit replace.

        Args:
            commit: The marker that came after the records.
            base: The sequence of the newest snapshot: what is older is of no account.

        Raises:
            CorruptionError: It is all there, and is not what the job had.
        """
        if base > self._base:
            self._base = base
            self._live = {
                key: message
                for key, message in self._live.items()
                if sequence_of(message.headers(), self._where) >= base
            }
        if len(self._live) != commit.entries:
            return None
        tables = tables_of(commit.states, self._where)
        # Rows of tables are hashed as rows; who loads them checks that.
        if not tables:
            entries = (self._keys.address(key) for key in self._live)
            values = (message.value() for message in self._live.values())
            found = hash_text(hash_sum((*entry, value) for entry, value in zip(entries, values, strict=True)))
            if found != commit.hash:
                raise CorruptionError(
                    f"the {commit.entries} entries after commit {commit.sequence} have hash {found}, and its marker "
                    f"says {commit.hash}",
                    where=self._where,
                )
        return blocks_of(self._live.values(), self._keys, tables)
