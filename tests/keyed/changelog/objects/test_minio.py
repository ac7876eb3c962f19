"""Changelogs in object stores on a real server of S3's protocol, MinIO, which is built if need be."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random

import attrs
import pytest

from keyed.changelog.objects.bucket import Bucket
from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.errors import ChangelogDiverged, ChangelogError
from keyed.testing.changelog_conformance import ChangelogConformance, SampleGroup, state_of
from tests.support.minio import NoServer, minio

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("minio")]
KILLS = int(os.environ.get("KEYED_KILLS", "30"))
_numbers = count()


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    try:
        with minio(tmp_path_factory.mktemp("minio") / "data") as made:
            yield made
    except NoServer as error:
        pytest.skip(str(error))


def log_on(options, **others):
    """A new changelog on the server."""
    return ObjectStoreChangelog(f"s3://bucket/log {next(_numbers)}", options, auto_compact=False, **others)


class TestObjectStoreChangelog(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def _options(self, options):
        self.options = options

    def make_changelog(self, path):
        return log_on(self.options)


def test_of_eight_puts_of_a_name_one_wins(options):
    bucket = Bucket("s3", "bucket", log_on(options).storage_options, 60)
    with ThreadPoolExecutor(8) as pool:
        for number in range(200):
            key = f"race/{number}"
            contents = [f"writer {writer} ".encode() * 5000 for writer in range(8)]
            won = list(pool.map(lambda content, key=key: bucket.put(key, content), contents))
            assert won.count(True) == 1
            assert bucket.get(key) == contents[won.index(True)]


def test_of_two_writers_each_sequence_is_there_once(options):
    changelog = log_on(options)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(3))

    def append(writer, commit, blocks):
        try:
            return writer.append(commit, blocks).attempt
        except ChangelogDiverged:
            return None

    writers = [changelog.writer(0) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(30):
            last = changelog.reader(0).last()
            commit, blocks = sample.commit()
            commit = attrs.evolve(commit, previous="" if last is None else last.attempt)
            rivals = [attrs.evolve(commit, attempt=f"{commit.attempt}-{number}") for number in range(4)]
            won = [each for each in pool.map(append, writers, rivals, [blocks] * 4) if each]
            newest = changelog.reader(0).last()
            assert newest is not None
            assert won == [newest.attempt]
    assert state_of(changelog.reader(0)) == sample.state


def test_compaction_and_wrong_credentials(options):
    changelog = log_on(options, compaction_lag=0)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(4), keys=2000)
    writer = changelog.writer(0)
    for _ in range(20):
        writer.append(*sample.commit(500))
    (done,) = changelog.compact()
    assert (done.base, done.newest) == (19, 20)
    assert state_of(changelog.reader(0)) == sample.state
    wrong = ObjectStoreChangelog(changelog.url, options | {"secret_access_key": "sesame"})
    with pytest.raises(ChangelogError, match="SignatureDoesNotMatch; check the credentials"):
        wrong.header()


def test_kills_of_a_writer_lose_nothing(options):
    changelog = log_on(options)
    changelog.prepare("op", 1)
    chance = Random(5)
    environment = os.environ | {"KEYED_S3": repr((changelog.url, dict(changelog.storage_options)))}
    seen = 0
    for _ in range(KILLS):
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.keyed.changelog.objects.appender"], env=environment, stdout=subprocess.PIPE
        )
        assert program.stdout is not None
        for _ in range(chance.randint(1, 6)):
            line = program.stdout.readline()
            assert line
            seen = int(line)
        program.send_signal(signal.SIGKILL)
        program.communicate()
        last = changelog.reader(0).last()
        assert last is not None
        # What it had reported is there; one commit more may be.
        assert seen <= last.sequence
    commits = [commit.sequence for commit, _ in changelog.reader(0).commits()]
    assert commits == list(range(1, len(commits) + 1))
    sample = SampleGroup(Random(7))
    for _ in commits:
        sample.commit()
    assert state_of(changelog.reader(0)) == sample.state
