"""Changelogs on real servers that throttle, lose answers, or are slow: a proxy before each server does that.

``KEYED_STORE_LATENCY`` sets the delay of the slow server in seconds.
"""

import os
from contextlib import ExitStack
from itertools import count

import pytest

from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.errors import ChangelogError
from keyed.recovery import verify
from keyed.testing.changelog_conformance import state_of
from tests.keyed.recovery.test_restore import run_count
from tests.support import azurite, gcs, minio
from tests.support.faulty import faulty

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("minio")]
LATENCY = float(os.environ.get("KEYED_STORE_LATENCY", "0.2"))
_numbers = count()


class Place:
    """A proxy before a server, and the URL and options for its clients."""

    def __init__(self, store, url, options):
        self.store, self.url, self.options = store, url, options

    def log(self, **others):
        """A new changelog."""
        return ObjectStoreChangelog(f"{self.url}/log {next(_numbers)}", self.options, auto_compact=False, **others)


@pytest.fixture(scope="module", params=["s3", "az", "gs"])
def place(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        try:
            if request.param == "s3":
                options = stack.enter_context(minio.minio(folder / "data"))
                store = stack.enter_context(faulty(options["endpoint"].removeprefix("http://")))
                yield Place(store, "s3://bucket", options | {"endpoint": store.url})
            elif request.param == "gs":
                store, options = stack.enter_context(gcs.gcs(folder / "log"))
                yield Place(store, "gs://bucket", options)
            else:
                options = stack.enter_context(azurite.azurite(folder / "data"))
                backend, _, account = options["endpoint"].removeprefix("http://").partition("/")
                store = stack.enter_context(faulty(backend))
                yield Place(store, "az://container", options | {"endpoint": f"{store.url}/{account}"})
        except (minio.NoServer, azurite.NoServer, gcs.NoServer) as error:
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
