"""The start of a query on a checkpoint."""

import logging

import attrs
import pytest

from keyed import RestorePoint
from keyed.errors import ChangelogError, CheckpointError, CorruptionError
from keyed.recovery.cut import cut_of
from keyed.runtimes.local.local_position import LocalPosition
from keyed.runtimes.local.local_position import encode_position as encode_local
from keyed.runtimes.spark.checkpoint.begin import (
    Begin,
    SparkPosition,
    begin,
    begin_at,
    decode_position,
    encode_position,
    read_begin,
    take_position,
)
from keyed.runtimes.spark.checkpoint.folder import open_checkpoint
from keyed.testing import MemoryChangelog
from tests.keyed.changelog.test_commit_fold import commit

SOURCES = ['{"topic":{"0":5}}', '{"sourceVersion":1,"index":2}']
TICK = '{"offset":1,"timestamp":1000}'
POSITION = SparkPosition(batch=41, sources=SOURCES, queries=["earlier"])


@pytest.fixture
def folder(tmp_path):
    return open_checkpoint(str(tmp_path / "ck"))


def changelog_at(sequence, positions=None, operator="op"):
    """A changelog that ends with a commit, and has some positions."""
    changelog = MemoryChangelog()
    changelog.prepare(operator, 1)
    for number in range(sequence - 2, sequence + 1):
        changelog.writer(0).append(commit(number, snapshot=True, records=0, entries=0, hash=""), [])
    for number, record in (positions or {}).items():
        changelog.put_position(number, record)
    return changelog


def ids_apart(record):
    """A record without the ids of queries, which are random."""
    assert record.queries
    return attrs.evolve(record, queries=[])


def points(**changelogs):
    return {operator: RestorePoint(changelog) for operator, changelog in changelogs.items()}


def begun(folder, restore_from, *, ticks=True):
    """Return the kind of start of a query, and the cut of changelogs."""
    record = begin(folder, restore_from, ticks=ticks)
    if record is not None:
        return record, None
    cut = cut_of(restore_from)
    return begin_at(folder, cut, ticks=ticks), cut


def first_batch(folder, ticks_alone=True):
    """Let Spark run the first batch."""
    lines = ["v1", '{"batchTimestampMs":7,"conf":{}}', *([] if ticks_alone else ["-", "-"]), TICK]
    folder.write("offsets/0", "\n".join(lines).encode())
    folder.write("commits/0", b"v1\n{}")


def test_a_new_query_begins_with_nothing(folder):
    for ticks in (True, False):
        record, cut = begun(folder, {}, ticks=ticks)
        assert (ids_apart(record), cut) == (Begin(ticks=ticks), None)
        # The id stays, although no batch is done yet: the folders of sinks may have it.
        assert read_begin(folder) == begun(folder, {}, ticks=ticks)[0] == record


def test_a_query_that_was_begun_with_plain_spark_is_known_from_now_on(folder):
    first_batch(folder, ticks_alone=False)
    assert read_begin(folder) is None
    record, cut = begun(folder, {}, ticks=False)
    assert (ids_apart(record), cut) == (Begin(ticks=False), None)
    assert begun(folder, {}) == (record, None)


def test_a_query_goes_on_from_its_checkpoint_whatever_it_could_be_restored_from(folder):
    first_batch(folder, ticks_alone=False)
    record, cut = begun(folder, {})
    assert (ids_apart(record), cut) == (Begin(), None)
    assert begun(folder, points(op=changelog_at(9))) == (record, None)


@pytest.mark.parametrize("ticks", [False, True])
def test_a_restored_query_goes_on_where_the_earlier_one_was(folder, ticks):
    found = points(op=changelog_at(43, {42: encode_position(POSITION), 43: encode_position(POSITION)}))
    record, cut = begun(folder, found, ticks=ticks)
    assert cut is not None
    assert (cut.sequence, cut.operators["op"].sequence) == (43, 43)
    assert record.queries[:-1] == POSITION.queries
    assert ids_apart(record) == Begin(first_batch=42, sequence=43, sources=SOURCES, with_position=True, ticks=ticks)
    first_batch(folder)
    after = take_position(folder, record)
    assert after.queries == record.queries
    assert ids_apart(after) == Begin(first_batch=42, sequence=43, sources=None, with_position=True, ticks=ticks)
    assert folder.offsets(0) == [*SOURCES, *(["-"] if ticks else [])]
    assert begun(folder, found) == begun(folder, {}) == (after, None)


def test_a_restore_that_begins_anew_at_a_newer_cut_is_the_same_query(folder):
    changelog = changelog_at(43, {42: encode_position(POSITION), 43: encode_position(POSITION)})
    first, _ = begun(folder, {"op": RestorePoint(changelog, as_of=41)})
    second, _ = begun(folder, points(op=changelog))
    assert (first.sequence, second.sequence) == (42, 43)
    assert first.queries[-1] == second.queries[-1]


def test_a_crash_between_the_first_batch_and_its_position_is_made_up_for(folder):
    record, _ = begun(folder, points(op=changelog_at(43, {43: encode_position(POSITION)})))
    first_batch(folder)
    found, cut = begun(folder, {})
    assert (found, cut) == (record, None)
    take_position(folder, found)
    # And between the two files.
    take_position(folder, found)
    assert folder.offsets(0) == [*SOURCES, "-"]


def test_a_restore_that_has_not_happened_is_not_forgotten(folder):
    # The next start would run over empty state, with a source that may stand anywhere.
    found = points(op=changelog_at(43, {43: encode_position(POSITION)}))
    begun(folder, found)
    with pytest.raises(CheckpointError, match=r"to begin after batch 42 .* give restore_from= again"):
        begun(folder, {})
    assert begun(folder, found)[1] is not None


def test_a_checkpoint_in_which_another_query_has_begun_is_not_restored_into(folder):
    begun(folder, {})
    folder.write("offsets/0", b"v1\n{}\n-\n-")
    with pytest.raises(CheckpointError, match="has begun its first batch in the checkpoint"):
        begun(folder, points(op=changelog_at(43, {43: encode_position(POSITION)})))


def test_a_position_that_is_lost_is_told(folder):
    with pytest.raises(CorruptionError, match="a position of the sources after batch 41 and none after batch 42"):
        begun(folder, points(op=changelog_at(43, {42: encode_position(POSITION)})))


LOCAL = encode_local(LocalPosition(["op"], 43, queries=["earlier"]))


@pytest.mark.parametrize(("positions", "earlier"), [({}, []), ({43: LOCAL}, ["earlier"])])
def test_without_a_position_state_alone_is_restored_and_that_is_said(folder, caplog, positions, earlier):
    with caplog.at_level(logging.WARNING):
        record, cut = begun(folder, points(op=changelog_at(43, positions)))
    assert cut is not None
    assert ids_apart(record) == Begin(first_batch=43, sequence=43, sources=None, with_position=False)
    # A query of the local runtime goes on here, in the folders of its sinks.
    assert record.queries[:-1] == earlier
    assert "batch 42 is restored without a position" in caplog.text
    first_batch(folder, ticks_alone=False)
    assert begun(folder, {}) == (record, None)


def test_the_position_may_be_in_the_changelog_of_one_operator_alone(folder):
    found = points(a=changelog_at(43, operator="a"), b=changelog_at(44, {43: encode_position(POSITION)}, operator="b"))
    record, cut = begun(folder, found)
    assert cut is not None
    assert (cut.sequence, record.sources) == (43, SOURCES)


def test_what_cannot_be_restored_leaves_no_trace(folder):
    with pytest.raises(ChangelogError, match="does not exist yet"):
        begun(folder, points(op=MemoryChangelog()))
    assert ids_apart(begun(folder, {})[0]) == Begin()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"other": 1}', b"\xff"])
def test_a_damaged_record_is_named(folder, content):
    folder.write("keyed-begin", content)
    with pytest.raises(CorruptionError, match="keyed-begin"):
        begun(folder, {})


def test_positions_come_back_and_damage_is_named():
    record = encode_position(POSITION)
    assert decode_position(record) == POSITION
    for at in range(4, len(record)):
        for damaged in (record[:at], record[:at] + bytes((record[at] ^ 4,)) + record[at + 1 :]):
            with pytest.raises(CorruptionError):
                decode_position(damaged)


def test_a_record_of_another_version_is_refused(folder):
    folder.write("keyed-begin", b'{"queries": ["q"], "version": 2}')
    first_batch(folder)
    with pytest.raises(CorruptionError, match=r"record has version 2, and this program reads version 1.*keyed-begin"):
        begun(folder, {})


def test_a_query_from_a_past_batch_is_another_one(folder):
    changelog = changelog_at(43, {42: encode_position(POSITION), 43: encode_position(POSITION)})
    record, _ = begun(folder, {"op": RestorePoint(changelog, as_of=41)})
    assert "earlier" not in record.queries
