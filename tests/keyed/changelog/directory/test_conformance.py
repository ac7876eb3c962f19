"""The directory log does what every changelog does."""

from keyed.changelog.directory import DirectoryChangelog
from keyed.testing.changelog_conformance import StagingChangelogConformance


class TestDirectoryChangelog(StagingChangelogConformance):
    def make_changelog(self, path):
        return DirectoryChangelog(path / "log", auto_compact=False)
