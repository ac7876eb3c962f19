"""Changelogs in object stores on Azurite, Microsoft's server of Azure's protocol, which npm installs if need be."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random

import pytest

from keyed.changelog.objects.bucket import Bucket
from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.testing.changelog_conformance import ChangelogConformance, SampleGroup, state_of
from tests.support.azurite import NoServer, azurite

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("azurite")]
_numbers = count()


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    try:
        with azurite(tmp_path_factory.mktemp("azurite")) as made:
            yield made
    except NoServer as error:
        pytest.skip(str(error))


def log_on(options, **others):
    """A new changelog on the server."""
    return ObjectStoreChangelog(f"az://container/log {next(_numbers)}", options, auto_compact=False, **others)


class TestObjectStoreChangelog(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def _options(self, options):
        self.options = options

    def make_changelog(self, path):
        return log_on(self.options)


def test_of_eight_puts_of_a_name_one_wins(options):
    bucket = Bucket("az", "container", log_on(options).storage_options, 60)
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            key = f"race/{number}"
            contents = [f"writer {writer} ".encode() * 5000 for writer in range(8)]
            won = list(pool.map(lambda content, key=key: bucket.put(key, content), contents))
            assert won.count(True) == 1
            assert bucket.get(key) == contents[won.index(True)]


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
