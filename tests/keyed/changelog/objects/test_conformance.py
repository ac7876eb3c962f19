"""The changelog in an object store does what every changelog does, on a small server with the protocol of S3."""

import pytest

from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.testing.changelog_conformance import ChangelogConformance
from tests.support.s3 import s3_server


class TestObjectStoreChangelog(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def _server(self):
        with s3_server() as self.server:
            yield

    def make_changelog(self, path):
        return ObjectStoreChangelog("s3://bucket/jobs/log", self.server.options, auto_compact=False)


@pytest.mark.slow
class TestShortPages(TestObjectStoreChangelog):
    """The same with listings of two names a page."""

    def make_changelog(self, path):
        self.server.page = 2
        return super().make_changelog(path)
