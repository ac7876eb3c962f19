"""Loading of a key group without state from a changelog, or from another number of groups."""

from __future__ import annotations

from collections.abc import Callable

from keyed.content.addresses import broadcast_prefixes, state_id_of
from keyed.content.contents import contents
from keyed.content.delta import Applying, Delta
from keyed.content.entry_hash import LiveHash, hash_text
from keyed.content.local_store import LocalStore
from keyed.engine.group_log import GroupLog, GroupMeta, encode_meta, encode_rows
from keyed.engine.held_rows import HELD_ROWS
from keyed.engine.replica import position_of


class Loader:
    """Loads one key group: first its local store, in which later changes of an entry win, and then the log from it.

    Args:
        log: The group's log, without a meta record.
        store: The group's local store.
        meta: The meta record of the group. The fields that depend on the entries are filled in.

    Attributes:
        broadcast: The number and hash of the entries of broadcast states, once the log is written.
    """

    def __init__(self, log: GroupLog, store: LocalStore, meta: GroupMeta) -> None:
        self.meta = meta
        self.broadcast = LiveHash()
        self._log = log
        self._store = store
        if store.position() is not None:
            store.reset()
        self._applying = Applying(store, meta.log_id, 0)

    def add(self, delta: Delta) -> None:
        """Write entries and rows, and remove entries that are ``None``: at most about a megabyte per call."""
        self._applying.add(delta)

    def write_log(self, written: Callable[[], object] = lambda: None) -> GroupMeta:
        """Write the log, which has no effect before `write_meta`.

        Args:
            written: Called after each part of the log, which may be committed separately.

        Returns:
            The meta record.
        """
        self._applying.flush()
        meta, live = self.meta, LiveHash()
        timers = size = held = 0
        broadcast = broadcast_prefixes(meta.states)
        held_rows = meta.states.get(HELD_ROWS, {}).get("id")
        for delta in contents(self._store, meta.states):
            live.add(delta)
            if broadcast:
                self.broadcast.add(Delta([entry for entry in delta.entries if entry[0] in broadcast]))
            if held_rows is not None:
                held += sum(state_id_of(prefix) == held_rows for prefix, _, _ in delta.entries)
            timers += delta.timers
            size += delta.size
            records = encode_rows(meta.commit, (), delta.log_blocks(), meta.attempt, meta.head)
            for record in records:
                meta.head = meta.attempt
                meta.last_row += 1
                meta.log_bytes += len(record)
                self._log.append(meta.last_row, record)
            written()
        meta.hash = hash_text(live.value)
        meta.counters |= {
            "live_entries": live.live - timers,
            "live_bytes": size,
            "timers_pending": timers,
            **({"rows_held": held} if held_rows is not None else {}),
            "log_bytes": meta.log_bytes,
            "log_rows": meta.last_row,
        }
        self._store.apply(position_of(meta.log_id, meta.head), meta.last_row, ())
        return meta

    def write_meta(self) -> None:
        """Write the meta record, which makes the state effective. Commit it together with those of all groups."""
        self._log.write_meta(encode_meta(self.meta))
