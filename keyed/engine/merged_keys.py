"""Keys that an earlier version kept apart within a batch, although their bytes are equal: NaN, repeated hours.

Each of them wrote the same entry, so a commit has its address more than once, and the last one won. What its value
should be is lost, and the hash of the live entries in the commit's marker is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from keyed.content.addresses import key_of
from keyed.content.blocks import Block, TableChange
from keyed.engine.segment import CHANGES, LogRow
from keyed.errors import KeysChanged


def check_not_merged(operator: str, commits: Iterable[Iterable[Block]]) -> None:
    """Check that no commit changes an entry twice.

    Args:
        operator: Name of the operator, for the message.
        commits: The blocks of each commit.

    Raises:
        KeysChanged: One does; names the key.
    """
    for blocks in commits:
        seen = set()
        for block in blocks:
            for prefix, sub, _ in block if isinstance(block, list) else ():
                if (prefix, sub) in seen:
                    raise KeysChanged(
                        f"operator {operator!r}: key {key_of(prefix)!r} was several keys to the version that wrote its "
                        "state, and is one now; the state that it should have is lost: start from a new checkpoint, "
                        "without restore_from="
                    )
                seen.add((prefix, sub))


def blocks_by_commit(rows: Iterable[LogRow]) -> Iterator[list[Block]]:
    """The changes in log rows, a list for each commit."""
    commit, blocks = 0, list[Block]()
    for row in rows:
        if row.commit != commit:
            yield blocks
            commit, blocks = row.commit, []
        blocks += [block for kind, block in row.blocks if kind == CHANGES and not isinstance(block, TableChange)]
    yield blocks
