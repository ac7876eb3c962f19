"""A changelog in memory, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

import attrs

from keyed.base.ids import random_id
from keyed.changelog.model import Blocks, Commit, LogHeader, batch_id, why_not_next
from keyed.content.blocks import Block, records_of
from keyed.errors import ChangelogDiverged, ChangelogError

_Log = list[tuple[Commit, list[Block]]]


class MemoryChangelog:
    """A `keyed.changelog.Changelog` in the memory of the process, without compaction.

    A copy of it is the same changelog, like a copy of a path.
    """

    def __init__(self) -> None:
        self._header: LogHeader | None = None
        self._groups: list[_Log] = []
        self._positions: dict[int, bytes] = {}
        self._kept: dict[str, bytes] = {}

    def __str__(self) -> str:
        return "changelog in memory"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def prepare(self, operator: str, parallelism: int) -> LogHeader:
        """See `Changelog.prepare`."""
        if self._header is None:
            self._groups = [[] for _ in range(parallelism)]
            self._header = LogHeader(random_id(), operator, parallelism, 0)
        header = self._header
        if (header.operator, header.parallelism) != (operator, parallelism):
            raise ChangelogError(
                f"the changelog belongs to operator {header.operator!r} with {header.parallelism} key groups, and the "
                f"query has {operator!r} with {parallelism}; give another one, and restore_from= this one"
            )
        return header

    def header(self) -> LogHeader | None:
        """See `Changelog.header`."""
        return self._header

    def writer(self, group: int) -> _Writer:
        """See `Changelog.writer`."""
        log = self._group(group)
        assert self._header is not None
        return _Writer(log, self._header.log_id)

    def reader(self, group: int) -> _Reader:
        """See `Changelog.reader`."""
        return _Reader(self._group(group))

    def _group(self, group: int) -> _Log:
        if not 0 <= group < len(self._groups):
            raise ChangelogError(f"there is no key group {group} in the changelog; it has {len(self._groups)}")
        return self._groups[group]

    def put_position(self, sequence: int, data: bytes) -> None:
        """See `Changelog.put_position`."""
        if self._positions.setdefault(sequence, data) != data:
            raise ChangelogDiverged(
                f"the changelog has another position for batch {batch_id(sequence)}; give an empty one"
            )

    def positions(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        """See `Changelog.positions`."""
        return iter(sorted(item for item in self._positions.items() if item[0] > after))

    def keep(self, name: str, data: bytes) -> None:
        """See `Changelog.keep`."""
        if self._kept.setdefault(name, data) != data:
            raise ChangelogDiverged(f"the changelog holds other data under {name!r}; give an empty one")

    def forget(self, names: Iterable[str]) -> None:
        """See `Changelog.forget`."""
        for name in names:
            self._kept.pop(name, None)

    def kept(self) -> Iterator[tuple[str, bytes]]:
        """See `Changelog.kept`."""
        return iter(sorted(self._kept.items()))


@attrs.frozen
class _Reader:
    log: _Log

    def last(self) -> Commit | None:
        return self.log[-1][0] if self.log else None

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[tuple[Commit, Blocks]]:
        for commit, blocks in [*self.log]:
            if commit.sequence > after and (until is None or commit.sequence <= until):
                yield commit, iter(blocks)


@attrs.frozen
class _Writer(_Reader):
    log_id: str

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        for other, _ in self.log:
            if (other.sequence, other.attempt) == (commit.sequence, commit.attempt):
                return other
        if (reason := why_not_next(commit, self.last())) is not None:
            raise ChangelogDiverged(reason)
        content = [*blocks]
        commit = attrs.evolve(commit, log_id=self.log_id, records=sum(map(records_of, content)))
        self.log.append((commit, content))
        return commit

    def close(self) -> None:
        """Do nothing: nothing is held."""
