"""The changelog in memory does what every changelog does."""

from keyed.testing import MemoryChangelog
from keyed.testing.changelog_conformance import ChangelogConformance


class TestMemoryChangelog(ChangelogConformance):
    def make_changelog(self, path):
        return MemoryChangelog()
