"""Changelogs on real servers of object stores, directly and behind a proxy that throttles, loses answers, or is slow.

S3's is MinIO, which Go builds if need be; Google's fake-gcs-server, which Go builds too; Azure's Azurite, which npm
installs. ``KEYED_STORE_LATENCY`` sets the delay of the slow server in seconds, ``KEYED_KILLS`` the number of kills.
"""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from random import Random

import pytest

from keyed.changelog.objects.bucket import Bucket
from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.errors import ChangelogError
from keyed.recovery import verify
from keyed.testing.changelog_conformance import ChangelogConformance, SampleGroup, state_of
from tests.keyed.recovery.test_restore import run_count
from tests.support.azurite import azurite
from tests.support.faulty import faulty
from tests.support.gcs import gcs
from tests.support.minio import minio
from tests.support.programs import NoServer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("minio")]
LATENCY = float(os.environ.get("KEYED_STORE_LATENCY", "0.2"))
KILLS = int(os.environ.get("KEYED_KILLS", "30"))
_numbers = count()


class Place:
    """A server, the proxy before it, and the URL and options for clients of the proxy."""

    def __init__(self, store, scheme, bucket, options):
        self.store, self.scheme, self.bucket, self.options = store, scheme, bucket, options

    def log(self, **others):
        """A new changelog."""
        url = f"{self.scheme}://{self.bucket}/log {next(_numbers)}"
        return ObjectStoreChangelog(url, self.options, auto_compact=False, **others)

    def objects(self):
        """The objects beside the changelogs."""
        return Bucket(self.scheme, self.bucket, self.log().storage_options, 60)


@pytest.fixture(scope="module", params=["s3", "az", "gs"])
def place(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        try:
            if request.param == "s3":
                options = stack.enter_context(minio(folder / "data"))
                store = stack.enter_context(faulty(options["endpoint"].removeprefix("http://")))
                yield Place(store, "s3", "bucket", options | {"endpoint": store.url})
            elif request.param == "gs":
                store, options = stack.enter_context(gcs(folder / "log"))
                yield Place(store, "gs", "bucket", options)
            else:
                options = stack.enter_context(azurite(folder / "data"))
                backend, _, account = options["endpoint"].removeprefix("http://").partition("/")
                store = stack.enter_context(faulty(backend))
                yield Place(store, "az", "container", options | {"endpoint": f"{store.url}/{account}"})
        except NoServer as error:
            pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _healthy(place):
    """No faults at the start of a test."""
    place.store.latency = 0.0
    place.store.throttled = place.store.lost = lambda _kind: False
    place.store.requests.clear()


def every(number, kinds=("PUT", "GET", "HEAD", "LIST")):
    """Every so many requests of these kinds."""
    seen = count(1)
    return lambda kind: kind in kinds and next(seen) % number == 0


def checked(place, changelog, rows=100):
    """A job with three key groups has a sound changelog, with the counts of all rows."""
    run_count(range(rows), changelog, parallelism=3)
    place.store.throttled = place.store.lost = lambda _kind: False
    assert [group.problem for group in verify(changelog)] == ["", "", ""]
    sequences = [[commit.sequence for commit, _ in changelog.reader(group).commits()] for group in range(3)]
    assert sequences == [list(range(1, rows // 10 + 1))] * 3
    state = [state_of(changelog.reader(group)) for group in range(3)]
    assert sum(map(len, state)) > 0


def test_a_server_that_throttles_every_third_request(place):
    place.store.throttled = every(3)
    checked(place, place.log())


def test_a_server_whose_answers_to_puts_are_lost(place):
    place.store.lost = every(3, ("PUT",))
    checked(place, place.log())


def test_a_server_that_throttles_for_good_is_an_error(place):
    place.store.throttled = lambda _kind: True
    with pytest.raises(ChangelogError, match="the store throttles; use longer triggers"):
        place.log(timeout=1000).prepare("op", 1)


def test_a_slow_server_gets_no_more_puts_and_gets_than_a_fast_one(place):
    requests = []
    for latency in (0.0, LATENCY):
        place.store.requests.clear()
        place.store.latency = latency
        run_count(range(50), place.log(), parallelism=2)
        requests.append(place.store.requests.copy())
    fast, slow = requests
    assert (fast["PUT"], fast["GET"]) == (slow["PUT"], slow["GET"])
    # What was looked up is remembered for a moment: in the time of slow requests it is looked up again.
    assert slow["HEAD"] <= 2 * 2 * 5
    assert slow["LIST"] <= 2 * fast["LIST"]


class TestObjectStoreChangelog(ChangelogConformance):
    @pytest.fixture(autouse=True)
    def _place(self, place):
        self.place = place

    def make_changelog(self, path):
        return self.place.log()


def test_of_eight_puts_of_a_name_one_wins(place):
    bucket = place.objects()
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            key = f"race/{number}"
            contents = [f"writer {writer} ".encode() * 5000 for writer in range(8)]
            won = list(pool.map(lambda content, key=key: bucket.put(key, content), contents))
            assert won.count(True) == 1
            assert bucket.get(key) == contents[won.index(True)]


def test_listings_start_behind_a_name(place):
    if place.scheme == "az":
        pytest.skip("Azurite ignores where a listing starts")
    bucket = place.objects()
    for number in range(5):
        bucket.put(f"listed/{number}", b"x")
    assert bucket.sizes("listed", after="listed/2") == {"3": 1, "4": 1}


def test_compaction(place):
    changelog = place.log(compaction_lag=0)
    changelog.prepare("op", 1)
    sample = SampleGroup(Random(4), keys=2000)
    writer = changelog.writer(0)
    for _ in range(20):
        writer.append(*sample.commit(500))
    (done,) = changelog.compact()
    assert (done.base, done.newest) == (19, 20)
    assert state_of(changelog.reader(0)) == sample.state
    changelog.keep("a", b"one")
    changelog.forget(["a", "never"])
    assert list(changelog.kept()) == []


def test_wrong_credentials_and_a_bucket_that_does_not_exist_are_named(place):
    changelog = place.log()
    if place.scheme == "s3":
        changelog.prepare("op", 1)
        wrong = ObjectStoreChangelog(changelog.url, place.options | {"secret_access_key": "sesame"})
        with pytest.raises(ChangelogError, match="SignatureDoesNotMatch; check the credentials"):
            wrong.header()
    with pytest.raises(ChangelogError, match=f"{place.scheme}://nowhere"):
        ObjectStoreChangelog(f"{place.scheme}://nowhere/log", place.options).prepare("op", 1)


def test_kills_of_a_writer_lose_nothing(place):
    changelog = place.log()
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
