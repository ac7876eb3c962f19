"""Faults of an object store: nothing is lost, nothing is there twice, errors have types."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import attrs
import pytest

from keyed import errors
from keyed.changelog.objects import bucket
from keyed.changelog.objects.object_changelog import ObjectStoreChangelog
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.keyed.changelog.objects.support import URL, log_on, made
from tests.support.s3 import SECRET, Answer, failure


def segment(sequence):
    return f"jobs/log/groups/00000/{sequence:020d}.segment"


def times(count, answer, kinds=("PUT", "GET", "HEAD", "LIST", "DELETE")):
    """A fault: the first so many requests of these kinds get an answer without being carried out."""
    left = [count]

    def fault(kind, key):
        if kind not in kinds or not left[0]:
            return None
        left[0] -= 1
        return answer

    return fault


def test_a_store_that_throttles_for_long_is_an_error_and_the_writer_goes_on(server):
    changelog, writer, sample = made(server, 10)
    commit, blocks = sample.commit()
    server.before = times(-1, failure(503, "SlowDown"))
    with pytest.raises(errors.ChangelogError, match="SlowDown; the store throttles"):
        writer.append(commit, blocks)
    server.before = times(0, None)
    writer.append(commit, blocks)
    assert state_of(changelog.reader(0)) == sample.state


@pytest.mark.parametrize("answer", [Answer(0), failure(503, "SlowDown"), failure(500, "InternalError")])
@pytest.mark.parametrize("lost", [1, 100])
def test_a_put_whose_answer_is_lost_is_found_to_be_ones_own(server, answer, lost):
    changelog, writer, sample = made(server, 10)
    left = [lost]

    def after(kind, key, done):
        if kind != "PUT" or not left[0]:
            return done
        left[0] -= 1
        return answer

    server.after = after
    appended = writer.append(*sample.commit())
    server.after = lambda _kind, _key, done: done
    assert changelog.reader(0).last() == appended
    writer.append(*sample.commit())
    assert [commit.sequence for commit, _ in changelog.reader(0).commits()] == [1, 2, 3]
    assert state_of(changelog.reader(0)) == sample.state


def test_credentials_that_expire_or_are_refused_are_errors_with_a_remedy(server):
    changelog, writer, sample = made(server, 10)
    server.before = times(-1, failure(400, "ExpiredToken"))
    with pytest.raises(errors.ChangelogError, match="ExpiredToken; the credentials have expired") as raised:
        writer.append(*sample.commit())
    with pytest.raises(errors.ChangelogError, match="ExpiredToken"):
        changelog.reader(0)
    server.before = times(-1, failure(403, "AccessDenied"))
    with pytest.raises(errors.ChangelogError, match="AccessDenied; check the credentials"):
        changelog.header()
    assert raised.value.__cause__ is None
    assert "storage_options=['access_key_id'" in repr(changelog)


def test_a_listing_that_breaks_off_is_an_error(server):
    changelog, _, sample = made(server, *[5] * 5)
    server.page = 2
    left = [2]

    def after(kind, _key, done):
        if kind == "LIST":
            left[0] -= 1
        return failure(403, "AccessDenied") if kind == "LIST" and left[0] < 0 else done

    server.after = after
    reader = changelog.reader(0)
    with pytest.raises(errors.ChangelogError, match="cannot be listed"):
        reader.last()
    server.after = lambda _kind, _key, done: done
    assert state_of(reader) == sample.state


@pytest.mark.parametrize("sequence", [2, 3])
def test_a_segment_that_somebody_deletes_is_missed(server, sequence):
    changelog, _, sample = made(server, *[5] * 4)
    del server.objects[segment(sequence)]
    with pytest.raises(errors.CorruptionError, match=f"segment of sequence {sequence} is missing"):
        state_of(changelog.reader(0))
    assert state_of(changelog.reader(0), sequence - 1) == sample.past[sequence - 1]


@pytest.mark.parametrize("left", [0, 1, 40, -1, -60])
def test_an_object_that_is_cut_short_is_damaged(server, left):
    changelog, _, _ = made(server, *[5] * 3)
    whole = server.objects[segment(3)]
    server.objects[segment(3)] = whole[:left]
    with pytest.raises(errors.CorruptionError, match=r"bucket/jobs/log/groups/00000/0*3\.segment"):
        changelog.reader(0).last()
    with pytest.raises(errors.CorruptionError):
        changelog.writer(0)


def test_an_object_that_is_deleted_while_it_is_read_is_an_error_of_ours(server, monkeypatch):
    monkeypatch.setattr("keyed.changelog.objects.object_changelog._CHUNK_BYTES", 100)
    changelog, _, sample = made(server, 50)
    assert state_of(changelog.reader(0)) == sample.state
    ((_, blocks),) = ((commit, blocks) for commit, blocks in changelog.reader(0).commits())
    del server.objects[segment(1)]
    with pytest.raises(errors.ChangelogError, match="was removed while it was read"):
        list(blocks)


def test_of_many_writers_of_a_sequence_one_wins(server):
    changelog, _, sample = made(server, 5)
    commit, blocks = sample.commit()
    writers = [changelog.writer(0) for _ in range(8)]

    def append(number):
        try:
            writers[number].append(attrs.evolve(commit, attempt=f"attempt {number}"), blocks)
        except errors.ChangelogDiverged:
            return None
        return f"attempt {number}"

    with ThreadPoolExecutor(8) as pool:
        won = [found for found in pool.map(append, range(8)) if found]
    last = changelog.reader(0).last()
    assert last is not None
    assert won == [last.attempt]


def test_a_writer_that_slept_through_a_compaction_is_fenced(server):
    changelog, zombie, sample = made(server, 5, 5)
    commit, blocks = sample.commit()
    writer = changelog.writer(0)
    writer.append(commit, blocks)
    for _ in range(3):
        writer.append(*sample.commit())
    changelog.compact()
    with pytest.raises(errors.ChangelogFenced):
        zombie.append(attrs.evolve(commit, attempt="zombie"), blocks)
    assert state_of(changelog.reader(0)) == sample.state
    changelog.compact()
    assert sorted(name for name in server.objects if "/groups/" in name) == [
        f"jobs/log/groups/00000/{5:020d}.base",
        segment(6),
    ]


def test_compaction_leaves_the_state_and_forgets_history(server):
    changelog, writer, sample = made(server, *[10] * 6)
    reader = changelog.reader(0)
    assert reader.last() is not None
    for sequence in range(1, 7):
        changelog.put_position(sequence, b"at")
    (done,) = changelog.compact()
    assert (done.base, done.newest) == (5, 6)
    assert state_of(reader) == state_of(changelog.reader(0)) == sample.state
    with pytest.raises(errors.HistoryCompacted, match="before commit 5 was compacted"):
        list(reader.commits(2))
    assert [sequence for sequence, _ in changelog.positions()] == [5, 6]
    writer.append(*sample.commit())
    last = reader.last()
    assert last is not None
    assert last.sequence == 7


def test_two_may_compact_at_once(server):
    changelog, _, sample = made(server, *[10] * 30)
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(changelog.compact) for _ in range(4)]:
            error = each.exception(300)
            assert error is None or "compact again" in str(error)
    (done,) = changelog.compact()
    assert (done.base, done.newest) == (29, 30)
    assert state_of(changelog.reader(0)) == sample.state


def test_a_bucket_that_does_not_exist_is_named(server):
    changelog = ObjectStoreChangelog("s3://elsewhere/log", server.options, timeout=300)
    with pytest.raises(errors.ChangelogError, match=r"s3://elsewhere/log.*NoSuchBucket; the bucket does not exist"):
        changelog.prepare("op", 1)


def test_a_server_that_does_not_answer_is_named(server):
    server.url = "http://127.0.0.1:1"
    changelog = log_on(server, timeout=1)
    with pytest.raises(errors.ChangelogError, match="no connection; check the endpoint"):
        changelog.header()


def test_a_server_that_ignores_the_condition_of_puts_is_refused(server):
    server.conditional = False
    for _ in range(2):
        with pytest.raises(errors.ChangelogError, match="use a store that has conditional puts"):
            log_on(server).prepare("op", 1)
    assert not server.objects


def test_a_prefix_with_other_objects_is_refused(server):
    server.objects["jobs/log/2026/part-0.parquet"] = b""
    with pytest.raises(errors.ChangelogError, match="holds '2026', so it is not a new prefix"):
        log_on(server).prepare("op", 1)
    assert len(server.objects) == 1
    server.objects = {"jobs/log/groups/00000/1": b""}
    with pytest.raises(errors.ChangelogError, match="whose 'header' is missing"):
        log_on(server).prepare("op", 1)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket",
        "s3://bucket/",
        "s3://KEY:sesame@bucket/log",
        "s3://bucket/log?sig=sesame",
        "s3://bucket/../log",
        7,
    ],
)
def test_a_url_of_another_form_is_refused_and_not_shown(url):
    with pytest.raises(errors.DefinitionError, match=r"ObjectStoreChangelog\(url\)") as raised:
        ObjectStoreChangelog(url)
    assert "sesame" not in str(raised.value)


def test_options_that_the_client_does_not_know_are_refused(server):
    changelog = ObjectStoreChangelog(URL, {"acces_key_id": SECRET})
    with pytest.raises(errors.DefinitionError, match=r"not \['acces_key_id'\]") as raised:
        changelog.header()
    assert SECRET not in str(raised.value)
    with pytest.raises(errors.DefinitionError, match="storage_options"):
        ObjectStoreChangelog(URL, {"endpoint": object()})


def test_a_process_that_was_forked_from_a_user_of_the_store_is_told(server, monkeypatch):
    changelog, _, _ = made(server, 5)
    monkeypatch.setattr(bucket, "_owner", os.getpid() + 1)
    with pytest.raises(errors.ChangelogError, match="spawn"):
        changelog.header()


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(errors.ExtraNotInstalled, match=r"package obstore, .*keyed-streams\[s3\]"):
        ObjectStoreChangelog(URL).header()


#: Answers in place of one: none, a part of it, or those of a store that fails for a moment.
BROKEN = {
    "no answer": lambda _: Answer(-1),
    "closed": lambda _: Answer(0),
    "half a head": lambda done: attrs.evolve(done, cut=20),
    "half a body": lambda done: attrs.evolve(done, cut=-3),
}
FAILED = {
    "throttled": lambda _: failure(503, "SlowDown"),
    "too many": lambda _: failure(429, "TooManyRequests"),
    "failed": lambda _: failure(500, "InternalError"),
    "conflict": lambda _: failure(409, "ConditionalRequestConflict"),
    "slow upload": lambda _: failure(400, "RequestTimeout"),
}
FAULTS = BROKEN | FAILED


def requested(server, **options):
    """A changelog on a server whose client waits a moment for each answer."""
    client = {**server.options, "timeout": "500ms"}
    return ObjectStoreChangelog(URL, client, auto_compact=False, compaction_lag=0, **options)


@pytest.mark.parametrize(
    ("fault", "kind", "carried_out"),
    [(fault, kind, True) for fault in BROKEN for kind in ("PUT", "GET", "HEAD", "LIST", "DELETE")]
    + [(fault, kind, False) for fault in ("no answer", "closed", *FAILED) for kind in ("PUT", "DELETE")]
    + [(fault, "PUT", True) for fault in FAILED],
)
def test_a_request_without_a_whole_answer_is_repeated(server, fault, kind, carried_out):
    changelog = requested(server, timeout=300_000)
    left: list[Any] = [FAULTS[fault]]

    def before(each, _key):
        return None if each != kind or carried_out or not left else left.pop()(Answer(200))

    def after(each, _key, done):
        return done if each != kind or not carried_out or not left else left.pop()(done)

    server.before, server.after = before, after
    header = changelog.prepare("op", 1)
    sample, writer = SampleGroup(Random(1)), changelog.writer(0)
    for number in range(1, 4):
        for write in (
            partial(changelog.put_position, number, b"at"),
            partial(changelog.keep, f"data-{number}", b"data"),
            lambda: writer.append(*sample.commit()),
        ):
            if number == 2:
                left[:] = [FAULTS[fault]]
            write()
    assert changelog.header() == header
    assert [sequence for sequence, _ in changelog.positions()] == [1, 2, 3]
    reader = changelog.reader(0)
    assert state_of(reader) == sample.state
    assert [commit.sequence for commit, _ in reader.commits()] == [1, 2, 3]
    changelog.forget(["data-1"])
    changelog.compact()
    assert not left
    assert state_of(changelog.reader(0)) == sample.state
    assert [name for name, _ in changelog.kept()] == ["data-2", "data-3"]


@pytest.mark.parametrize("fault", ["no answer", "closed", "throttled"])
def test_repetitions_end_after_the_timeout_and_are_counted(server, fault):
    changelog = requested(server, timeout=1500)
    changelog.prepare("op", 1)
    server.before = times(-1, FAULTS[fault](Answer(200)))
    server.requests.clear()
    with pytest.raises(errors.ChangelogError, match=r"cannot be read: .*\((\d+) attempts in [\d.]+ s\)") as raised:
        changelog.header()
    assert f"({server.requests['GET']} attempts" in str(raised.value)
    # Pauses double from half a tenth of a second on.
    assert 2 <= server.requests["GET"] <= 6


@pytest.mark.parametrize("refusal", [(403, "AccessDenied"), (400, "InvalidRequest"), (501, "NotImplemented")])
def test_a_refusal_is_not_repeated(server, refusal):
    changelog = requested(server)
    server.before = times(-1, failure(*refusal))
    with pytest.raises(errors.ChangelogError, match=refusal[1]):
        changelog.header()
    assert server.requests["GET"] == 1


def test_a_listing_resumes_where_it_broke_off(server):
    changelog = requested(server)
    changelog.prepare("op", 1)
    for number in range(200):
        changelog.keep(f"data-{number:03}", b"")
    server.page, server.requests["LIST"], pages = 50, 0, []

    def after(kind, _key, done):
        pages.extend([kind] if kind == "LIST" else [])
        return Answer(0) if kind == "LIST" and len(pages) == 3 else done

    server.after = after
    assert len(list(changelog.kept())) == 200
    assert len(pages) == 4 + 1
