"""Reads the log of one key group from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from keyed.changelog.directory.group_folder import AnyGroupFiles, Listing
from keyed.changelog.model import Blocks, Commit
from keyed.errors import ChangelogError, HistoryCompacted

_NEWEST = 2**63 - 1


class DirectoryReader:
    """The `keyed.changelog.model.ChangelogReader` of a key group.

    Args:
        folder: The group's folder.
    """

    def __init__(self, folder: AnyGroupFiles) -> None:
        self._folder = folder
        #: The newest commit at the last read, and its file: while that exists and the next one does not, nothing is
        #: new.
        self._last: tuple[Commit, PurePath] | None = None

    def last(self) -> Commit | None:
        if self._last is not None:
            commit, path = self._last
            if self._folder.exists(path) and not self._folder.exists(self._folder.segment(commit.sequence + 1)):
                return commit
        listing, last = self._folder.look()
        self._last = None if last is None else (last, self._folder.path_of(listing, last.sequence))
        return last

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[tuple[Commit, Blocks]]:
        end = _NEWEST if until is None else until
        listing = self._listing(after, end)
        self._check_history(listing, after, end)
        position = after
        while True:
            try:
                for stored, _, _ in self._folder.commits(listing, position, end):
                    yield stored.commit, stored.blocks()
                    position = stored.commit.sequence
                return
            except FileNotFoundError as error:
                # Compaction has removed it. Commits that were not read yet are in the base, where only reading from the
                # start can begin.
                again = self._folder.listing()
                if again == listing:
                    raise ChangelogError(f"{error.filename} is listed, but cannot be opened") from error
                listing = again
                self._check_history(listing, position, end)

    def _listing(self, after: int, until: int) -> Listing:
        """Return a listing for reading the commits after a sequence, up to another one."""
        return self._folder.listing()

    def _check_history(self, listing: Listing, after: int, until: int) -> None:
        base = listing.base
        if 0 < after < base or until < base:
            raise HistoryCompacted(
                f"{self._folder.path}: the history before commit {base} was compacted, and after={after}, "
                f"until={until} needs it; begin with 0 or at {base}, and give the changelog a longer compaction_lag"
            )
