"""The log of a query's positions in its changelogs."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from keyed.errors import ChangelogDiverged, ChangelogFenced, CheckpointError
from keyed.runtimes.spark.checkpoint.begin import Begin, PositionLog, SparkPosition, decode_position
from keyed.runtimes.spark.checkpoint.folder import open_checkpoint
from keyed.runtimes.spark.query import exports
from keyed.testing import MemoryChangelog

TICK = '{"offset":1,"timestamp":1000}'


@pytest.fixture
def folder(tmp_path):
    return open_checkpoint(str(tmp_path))


@pytest.fixture
def changelogs():
    made = {name: MemoryChangelog() for name in ("a", "b")}
    for name, changelog in made.items():
        changelog.prepare(name, 1)
    return made


def commit(folder, batch, *lines):
    folder.write(f"offsets/{batch}", "\n".join(["v1", "{}", *lines]).encode())


def offsets(batch):
    return f'{{"topic":{{"0":{batch}}}}}'


def log_of(folder, changelogs, sequences, first_batch=0, ticks=True):
    return PositionLog(
        folder,
        changelogs,
        ticks=ticks,
        first_batch=first_batch,
        queries=["query"],
        sequences=lambda batch: dict.fromkeys(changelogs, sequences[batch]),
    )


def logged(changelog):
    return {sequence: decode_position(record) for sequence, record in changelog.positions()}


@pytest.mark.parametrize("ticks", [False, True])
@pytest.mark.parametrize("first_batch", [0, 7])
def test_each_batch_is_logged_under_its_sequence(folder, changelogs, ticks, first_batch):
    sequences = {batch: batch + 1 + first_batch for batch in range(4)}
    log = log_of(folder, changelogs, sequences, first_batch, ticks)
    for batch in range(4):
        commit(folder, batch, offsets(batch), "-", *([TICK] if ticks else []))
        log.log(batch)
        log.log(batch)
        # The next run logs its first one again.
        log_of(folder, changelogs, sequences, first_batch, ticks).log(batch)
    for changelog in changelogs.values():
        assert logged(changelog) == {
            sequences[batch]: SparkPosition(first_batch + batch, [offsets(batch), "-"], ["query"]) for batch in range(4)
        }


@pytest.mark.parametrize("forget", [False, True], ids=["running", "started again"])
def test_a_batch_in_which_nothing_was_committed_leaves_the_position_of_the_one_before(folder, changelogs, forget):
    # Batches 2 and 3: no row came to the key groups, or the input had ended.
    sequences = {0: 1, 1: 2, 2: 2, 3: 2, 4: 3}
    log = log_of(folder, changelogs, sequences)
    for batch in range(5):
        commit(folder, batch, offsets(batch), TICK)
        if forget:
            log = log_of(folder, changelogs, sequences)
        log.log(batch)
    for changelog in changelogs.values():
        positions = logged(changelog).items()
        assert [(number, position.batch) for number, position in positions] == [(1, 0), (2, 1), (3, 4)]


def test_the_files_of_batches_in_which_nothing_was_committed_are_kept(folder, changelogs):
    sequences = {0: 1, 1: 1, 2: 2}
    log = log_of(folder, changelogs, sequences)
    for batch in range(3):
        folder.write(f"sources/0/{batch}", b'v1\n{"path":"%d","timestamp":1,"batchId":%d}' % (batch, batch))
        commit(folder, batch, f'{{"logOffset":{batch}}}', TICK)
        log.log(batch)
    names = [name for name, _ in changelogs["a"].kept()]
    assert names == ["files-0-0-0-0", "files-0-1-2-0"]


def test_the_positions_of_another_course_are_refused(folder, changelogs):
    commit(folder, 0, offsets(0), TICK)
    log_of(folder, changelogs, {0: 1}).log(0)
    commit(folder, 0, offsets(9), TICK)
    with pytest.raises(ChangelogDiverged):
        log_of(folder, changelogs, {0: 1}).log(0)


def test_a_batch_that_the_checkpoint_has_forgotten_is_named(folder, changelogs):
    with pytest.raises(CheckpointError, match="no offsets of batch 3"):
        log_of(folder, changelogs, {3: 4}).log(3)


def test_a_writer_that_a_flush_by_hand_has_fenced_is_opened_anew(folder):
    class Fenced(MemoryChangelog):
        fenced = True

        def put_position(self, sequence, data):
            if self.fenced:
                self.fenced = False
                raise ChangelogFenced("another one has written")
            super().put_position(sequence, data)

    changelog = Fenced()
    changelog.prepare("a", 1)
    commit(folder, 0, offsets(0), TICK)
    log_of(folder, {"a": changelog}, {0: 1}).log(0)
    assert logged(changelog) == {1: SparkPosition(0, [offsets(0)], ["query"])}


def test_offsets_that_spark_writes_in_another_way_are_refused(folder):
    folder.write("offsets/0", b'v2\n{}\n{"0":"x"}')
    with pytest.raises(CheckpointError, match=r"version 'v2'.*formatVersion"):
        folder.offsets(0)


def test_a_batch_does_not_wait_for_ever_for_a_start_that_failed(folder, changelogs, monkeypatch):
    monkeypatch.setattr(exports, "_START", 0.01)
    session = SimpleNamespace(conf={})
    export = exports.Exports(cast("Any", session), folder, changelogs, ticks=True)
    commit(folder, 0, offsets(0), TICK)
    # The batch runs while the start has not ended.
    with pytest.raises(CheckpointError, match=r"its start has not completed in 0.01 s; start it again"):
        export.start(Begin(), 1, [["a"]], lambda: cast("Any", export.before_batch(1)))
