"""Reads the log of one key group out of its folder."""

from __future__ import annotations

from collections.abc import Iterator

from keyed.changelog.directory.group_folder import GroupFolder, Listing
from keyed.changelog.model import Blocks, Commit
from keyed.errors import ChangelogError, HistoryCompacted

_NEWEST = 2**63 - 1


class DirectoryReader:
    """The `keyed.changelog.model.ChangelogReader` of a key group.

    Args:
        folder: The group's folder.
    """

    def __init__(self, folder: GroupFolder) -> None:
        self._folder = folder

    def last(self) -> Commit | None:
        return self._folder.look()[1]

    def commits(self, after: int = 0, until: int | None = None) -> Iterator[tuple[Commit, Blocks]]:
        end = _NEWEST if until is None else until
        listing = self._folder.listing()
        self._check_history(listing, after, end)
        position = after
        while True:
            try:
                for commit, segment, _ in self._folder.commits(listing, position, end):
                    yield commit, segment.blocks()
                    position = commit.sequence
                return
            except FileNotFoundError as error:
                # Compaction has removed it; what was not read yet is in the base, which is good for a beginning only.
                again = self._folder.listing()
                if again == listing:
                    raise ChangelogError(f"{error.filename} is listed and cannot be opened") from error
                listing = again
                self._check_history(listing, position, end)

    def _check_history(self, listing: Listing, after: int, until: int) -> None:
        base = listing.base
        if 0 < after < base or until < base:
            raise HistoryCompacted(
                f"{self._folder.path}: what was before commit {base} is compacted, and after={after}, until={until} "
                f"asks for it; begin with 0 or at {base}, and give the changelog a longer compaction_lag"
            )
