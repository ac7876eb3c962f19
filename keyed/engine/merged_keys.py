"""Keys that an earlier version kept apart within a batch, although their bytes are equal: NaN, repeated hours.

Each of them wrote the same entry, so a commit has its address more than once, and the last one won. What its value
should be is lost, and the hash of the live entries in the commit's marker is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from keyed.content.addresses import key_of
from keyed.content.delta import Delta, deltas
from keyed.engine.segment import LogRow
from keyed.errors import KeysChanged


def check_not_merged(operator: str, commits: Iterable[Iterable[Delta]]) -> None:
    """Check that no commit changes an entry twice.

    Args:
        operator: Name of the operator, for the message.
        commits: The changes of each commit.

    Raises:
        KeysChanged: One does; names the key.
    """
    for changes in commits:
        seen = set()
        for prefix, sub, _ in (entry for delta in changes for entry in delta.entries):
            if (prefix, sub) in seen:
                raise KeysChanged(
                    f"operator {operator!r}: key {key_of(prefix)!r} was several keys to the version that wrote its "
                    "state, and is one now; the state that it should have is lost: start from a new checkpoint, "
                    "without restore_from="
                )
            seen.add((prefix, sub))


def deltas_by_commit(rows: Iterable[LogRow], where: str) -> Iterator[Iterator[Delta]]:
    """The changes in log rows, for each commit by itself."""
    for _, commit in groupby(rows, lambda row: row.commit):
        yield deltas((block for row in commit for block in row.changed), {}, where)
