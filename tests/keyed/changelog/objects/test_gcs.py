"""Changelogs in object stores on fake-gcs-server, a server of Google's protocol, which Go builds if need be."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random

import pytest

from keyed.changelog.objects.bucket import Bucket
from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.errors import ChangelogError
from keyed.testing.changelog_conformance import ChangelogConformance, SampleGroup, state_of
from tests.support.gcs import NoServer, gcs

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("gcs")]
_numbers = count()


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    try:
        with gcs(tmp_path_factory.mktemp("gcs") / "log") as (_, made):
            yield made
    except NoServer as error:
        pytest.skip(str(error))


def log_on(options, **others):
    """A new changelog on the server."""
    return ObjectStoreChangelog(f"gs://bucket/log {next(_numbers)}", options, auto_compact=False, **others)


class TestObjectStoreChangelog(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def _options(self, options):
        self.options = options

    def make_changelog(self, path):
        return log_on(self.options)


def test_of_eight_puts_of_a_name_one_wins(options):
    bucket = Bucket("gs", "bucket", log_on(options).storage_options, 60)
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            key = f"race/{number}"
            contents = [f"writer {writer} ".encode() * 5000 for writer in range(8)]
            won = list(pool.map(lambda content, key=key: bucket.put(key, content), contents))
            assert won.count(True) == 1
            assert bucket.get(key) == contents[won.index(True)]


def test_listings_start_behind_a_name(options):
    bucket = Bucket("gs", "bucket", log_on(options).storage_options, 60)
    for number in range(5):
        bucket.put(f"listed/{number}", b"x")
    assert bucket.sizes("listed", after="listed/2") == {"3": 1, "4": 1}


def test_compaction(options):
    changelog = log_on(options, compaction_lag=0)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(4))
    writer = changelog.writer(0)
    for _ in range(20):
        writer.append(*sample.commit())
    (done,) = changelog.compact()
    assert (done.base, done.newest) == (19, 20)
    assert state_of(changelog.reader(0)) == sample.state
    changelog.keep("a", b"one")
    changelog.forget(["a", "never"])
    assert list(changelog.kept()) == []


def test_a_bucket_that_does_not_exist_is_named(options):
    with pytest.raises(ChangelogError, match="gs://nowhere"):
        ObjectStoreChangelog("gs://nowhere/log", options).prepare("op", 1)
