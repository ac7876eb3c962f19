"""Reads the log of one key group from an object store."""

from __future__ import annotations

from keyed.changelog.directory.directory_reader import DirectoryReader
from keyed.changelog.directory.group_folder import Listing
from keyed.changelog.model import Commit
from keyed.changelog.objects.object_group import ObjectGroup


class ObjectReader(DirectoryReader):
    """The `keyed.changelog.model.ChangelogReader` of a key group.

    It lists only objects after the newest known commit, or after the start of the read.

    Args:
        group: The objects of the key group.
    """

    def __init__(self, group: ObjectGroup) -> None:
        super().__init__(group)
        self._group = group
        self._newest: Commit | None = None
        #: The listing of `last` that is not read yet, and the sequence after which it was listed.
        self._listed: tuple[int, Listing] | None = None

    def last(self) -> Commit | None:
        known = self._newest
        after = 0 if known is None else known.sequence
        listing, newest = self._group.look(after, known)
        self._newest = newest
        if newest is not known:
            self._listed = after, listing
        return newest

    def _listing(self, after: int, until: int) -> Listing:
        listed, self._listed = self._listed, None
        if listed is not None and listed[0] <= after and self._newest is not None and until <= self._newest.sequence:
            return listed[1]
        if not 0 < after < until:
            return self._group.listing()
        listing = self._group.listing(after)
        # The next commit may be in an object with earlier ones, whose name is before those that were listed.
        ends = self._newest is not None and self._newest.sequence == after
        first = next(iter(listing.segments), 0)
        return listing if first == after + 1 or (ends and not first) else self._group.listing()
