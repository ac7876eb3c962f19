"""Compaction: the same state, less history, at any moment and beside any writer and reader."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count, pairwise
from random import Random

import attrs
import pytest

from keyed.changelog.directory import DirectoryChangelog, compaction, group_folder
from keyed.changelog.directory.compaction import BackgroundCompaction, CompactionLimits
from keyed.changelog.directory.disk import file_sizes
from keyed.errors import ChangelogDiverged, ChangelogFenced, CorruptionError, DefinitionError, HistoryCompacted
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.keyed.changelog.directory.support import check, compact_all, files_of, made
from tests.support import waiting
from tests.support.waiting import logged

SECOND = 1000


def settle(background):
    """Wait until no compaction runs."""
    waiting.until(lambda: not background.work.is_running)


def sequences(changelog, after=0):
    return [commit.sequence for commit, _ in changelog.reader(0).commits(after)]


@pytest.mark.parametrize("seed", range(8))
def test_the_state_is_the_same(tmp_path, seed):
    number = Random(seed)
    changelog, sample = made(tmp_path, keys=number.choice((3, 50, 2000)), seed=seed)
    writer = changelog.writer(0)
    for _ in range(6):
        for _ in range(number.randint(0, 4)):
            writer.append(*sample.commit(number.choice((0, 1, 30, 3000))))
        if number.random() < 0.3:
            writer.append(*sample.snapshot(number.randint(1, 3)))
        before = changelog.reader(0).last()
        done = compact_all(changelog, sample)
        assert state_of(changelog.reader(0)) == sample.state
        assert len(files_of(changelog)) == 1
        assert (done.base, done.newest) == (sample.last.sequence - 1, sample.last.sequence)
        if before is not None:
            (found, _), _ = changelog.reader(0).commits()
            assert found == attrs.evolve(before, snapshot=True, records=before.entries)


def test_a_base_is_in_order_and_in_blocks(tmp_path):
    changelog, sample = made(tmp_path, *[20_000] * 3, keys=30_000)
    for _ in range(2):
        compact_all(changelog, sample)
        (commit, blocks), _ = ((commit, list(blocks)) for commit, blocks in changelog.reader(0).commits())
        addresses = [change[:2] for block in blocks for change in block]
        assert all(before < after for before, after in pairwise(addresses))
        assert len(addresses) == commit.records == len(sample.state)
        assert len(blocks) > 1
        changelog.writer(0).append(*sample.commit(100))


def test_a_large_log_is_folded_in_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "_STEP_BYTES", 10_000)
    folded = []
    fold = compaction._fold

    def told(*arguments):
        folded.append(arguments[2])
        fold(*arguments)

    monkeypatch.setattr(compaction, "_fold", told)
    changelog, sample = made(tmp_path, *[100] * 10)
    changelog.compact()
    assert len(folded) > 2
    assert folded[-1] == 9
    assert state_of(changelog.reader(0)) == sample.state


def test_history_reaches_back_to_the_lag(tmp_path):
    changelog, sample = made(tmp_path, *[10] * 9, compaction_lag=3 * SECOND)
    (done,) = changelog.compact()
    # The newest commit is of second 9, so the state of second 6 can still be given.
    assert (done.base, done.newest) == (6, 9)
    assert sequences(changelog) == [6, 7, 8, 9]
    assert sequences(changelog, 6) == [7, 8, 9]
    for until in (6, 7, 8, 9):
        assert state_of(changelog.reader(0), until) == sample.past[until]
    for after, end in ((5, None), (1, None), (0, 5), (0, 1), (3, 8)):
        with pytest.raises(HistoryCompacted, match="compaction_lag"):
            list(changelog.reader(0).commits(after, end))


def test_history_is_limited_in_bytes(tmp_path):
    changelog, sample = made(tmp_path, *[100] * 20, compaction_lag=3600 * SECOND)
    sizes = [path.stat().st_size for path in files_of(changelog)]
    changelog.compact()
    assert len(files_of(changelog)) == 20
    smaller = attrs.evolve(changelog, history_bytes=sum(sizes))
    smaller.compact()
    assert len(files_of(changelog)) == 20
    smaller = attrs.evolve(changelog, history_bytes=sum(sizes) - 1)
    smaller.compact()
    left = sum(path.stat().st_size for path in files_of(changelog))
    assert sum(sizes) / 2 - max(sizes) < left < sum(sizes) / 2
    assert state_of(changelog.reader(0)) == sample.state
    attrs.evolve(changelog, history_bytes=0).compact()
    assert len(files_of(changelog)) == 1


def test_the_newest_commit_is_left(tmp_path):
    """Another key group may lack it when the job dies; the state to restore is then the one before."""
    changelog, sample = made(tmp_path, *[10] * 9)
    assert changelog.compact()[0].base == 8
    assert sequences(changelog) == [8, 9]
    assert state_of(changelog.reader(0), 8) == sample.past[8]


def test_positions_go_with_the_history(tmp_path):
    changelog, _ = made(tmp_path, *[10] * 9, compaction_lag=3 * SECOND)
    for sequence in range(1, 10):
        changelog.put_position(sequence, b"%d" % sequence)
    changelog.compact()
    assert [sequence for sequence, _ in changelog.positions()] == [6, 7, 8, 9]


def test_positions_are_dropped_as_they_come(tmp_path):
    changelog, _ = made(tmp_path, *[1] * 9)
    for sequence in range(1, 10):
        changelog.put_position(sequence, b"")
    (folder,) = [changelog._group(0)]
    compaction.compact_group(folder, CompactionLimits(0))
    changelog.put_position(255, b"")
    assert len(list(changelog.positions())) == 10
    changelog.put_position(256, b"")
    assert [sequence for sequence, _ in changelog.positions()] == [8, 9, 255, 256]


def test_a_reader_in_the_midst_goes_on_or_is_told(tmp_path):
    changelog, sample = made(tmp_path, *[10] * 6, compaction_lag=2 * SECOND)
    early, late, new = (changelog.reader(0).commits() for _ in range(3))
    assert next(early)[0].sequence == 1
    assert [next(late)[0].sequence for _ in range(4)] == [1, 2, 3, 4]
    changelog.compact()
    with pytest.raises(HistoryCompacted):
        next(early)
    assert [commit.sequence for commit, _ in late] == [5, 6]
    assert [commit.sequence for commit, _ in new] == [4, 5, 6]
    assert state_of(changelog.reader(0)) == sample.state


def test_what_is_open_stays_readable(tmp_path):
    changelog, sample = made(tmp_path, 3000, keys=5000)
    reading = changelog.reader(0).commits()
    _, blocks = next(reading)
    compact_all(changelog, sample)
    changes = [change for block in blocks for change in block]
    assert {change[:2]: change[2] for change in changes if change[2] is not None} == sample.state


def test_leftovers_of_a_crash_are_not_read_and_are_removed(tmp_path):
    changelog, sample = made(tmp_path, *[10] * 5)
    folder = files_of(changelog)[0].parent
    before = tmp_path / "before"
    shutil.copytree(folder, before)
    changelog.compact()
    changelog.writer(0).append(*sample.commit())
    for path in before.iterdir():
        shutil.copy(path, folder)
    assert len(files_of(changelog)) == 6
    assert sequences(changelog) == [4, 5, 6]
    assert state_of(changelog.reader(0)) == sample.state
    changelog.compact()
    assert len(files_of(changelog)) == 1
    assert [path.name for path in files_of(changelog, "base")] == ["00000000000000000005.base"]


def test_one_compacts_at_a_time(tmp_path):
    changelog, sample = made(tmp_path, *[10] * 6)
    folder = changelog._group(0)
    with ThreadPoolExecutor() as pool:
        with folder.compacting(wait=True):
            # Beside its writer a log is left to whoever compacts it; a command waits for its turn.
            assert compaction.compact_group(folder, CompactionLimits(0), wait=False).base == 0
            commanded = pool.submit(changelog.compact)
            assert sequences(changelog) == [1, 2, 3, 4, 5, 6]
        assert commanded.result(300)[0].base == 5
    assert state_of(changelog.reader(0)) == sample.state


@pytest.mark.parametrize("names", [0, 2])
def test_a_listing_beside_a_compaction_is_made_again(tmp_path, monkeypatch, names):
    changelog, sample = made(tmp_path, *[10] * 6)

    def torn(path):
        """What a folder may seem to hold while it changes: names seen early, and names seen late."""
        monkeypatch.setattr(group_folder, "file_sizes", file_sizes)
        early = file_sizes(path)
        changelog.compact()
        changelog.writer(0).append(*sample.commit())
        changelog.compact()
        late = file_sizes(path)
        return {name: early[name] for name in sorted(early)[:names]} | {
            name: size for name, size in late.items() if name.endswith(".segment")
        }

    for look in (state_of, lambda reader: reader.last().sequence):
        monkeypatch.setattr(group_folder, "file_sizes", torn)
        look(changelog.reader(0))
    monkeypatch.setattr(group_folder, "file_sizes", torn)
    assert state_of(changelog.reader(0)) == sample.state


@pytest.mark.parametrize("wrong", [{"entries": 1}, {"hash": "0" * 32}])
def test_a_state_that_is_not_what_its_commit_says_is_not_made_a_base(tmp_path, wrong):
    changelog, sample = made(tmp_path, *[10] * 3)
    commit, blocks = sample.commit()
    changelog.writer(0).append(attrs.evolve(commit, **wrong), blocks)
    with pytest.raises(CorruptionError, match=r"marker of commit 4 has .* nothing was removed"):
        compact_all(changelog, sample)
    assert len(files_of(changelog)) == 5
    assert files_of(changelog, "base") == []


@pytest.mark.parametrize("before", [0, 3])
def test_a_zombie_is_refused_when_its_sequence_is_compacted(tmp_path, before):
    changelog, sample = made(tmp_path, *[10] * before)
    zombie = changelog.writer(0)
    late = sample.commit()
    writer = changelog.writer(0)
    writer.append(*late)
    for _ in range(3):
        writer.append(*sample.commit())
    changelog.compact()
    with pytest.raises(ChangelogFenced, match=f"commit {before + 4}"):
        zombie.append(*late)
    assert sequences(changelog) == [before + 3, before + 4]
    writer.append(*sample.commit())
    changelog.compact()
    assert check(changelog, sample) == before + 5
    assert len(files_of(changelog)) == 1


@pytest.mark.parametrize("compacted", [False, True])
def test_a_writer_sees_that_another_has_gone_on(tmp_path, compacted):
    changelog, sample = made(tmp_path)
    first, second = changelog.writer(0), changelog.writer(0)
    for writer, other in ((first, second), (second, first), (first, second)):
        for _ in range(3):
            appended = writer.append(*sample.commit())
        if compacted:
            changelog.compact()
        assert other.last() == writer.last() == appended
    assert check(changelog, sample) == 9


def test_a_duplicate_of_what_became_the_base(tmp_path):
    changelog, sample = made(tmp_path, 10, 10)
    newest = sample.last
    compact_all(changelog, sample)
    writer = changelog.writer(0)
    assert writer.append(newest, []).records == len(sample.state)
    with pytest.raises(ChangelogDiverged):
        writer.append(attrs.evolve(newest, attempt="other"), [])
    # A compaction between two appends is no other writer.
    writer.append(*sample.commit())
    changelog.compact()
    writer.append(*sample.commit())
    assert check(changelog, sample) == 5


def test_the_log_is_compacted_as_it_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "_LEAST_BYTES", 20_000)
    changelog, sample = made(tmp_path, auto_compact=True)
    writer = changelog.writer(0)
    most = appended = base = 0
    for _ in range(120):
        writer.append(*sample.commit(30))
        appended += files_of(changelog)[-1].stat().st_size
        settle(writer._compaction)
        most = max(most, sum(path.stat().st_size for path in files_of(changelog)))
        base = max(base, sum(path.stat().st_size for path in files_of(changelog, "base")))
    writer.close()
    assert 20_000 <= most < max(base, 20_000) + 3_000
    assert appended > 3 * most
    assert len(files_of(changelog, "base")) == 1
    assert state_of(changelog.reader(0)) == sample.state


def test_compaction_beside_the_writer_waits_for_the_lag_and_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "_LEAST_BYTES", 20_000)
    for limits, bases in ((CompactionLimits(3600 * SECOND), 0), (CompactionLimits(3600 * SECOND, 50_000), 1)):
        changelog, sample = made(tmp_path / str(bases))
        folder = changelog._group(0)
        background = BackgroundCompaction(folder, limits)
        background.begin(folder.listing())
        writer = changelog.writer(0)
        for _ in range(60):
            writer.append(*sample.commit(30))
            background.grown(files_of(changelog)[-1].stat().st_size)
            settle(background)
        background.close()
        assert len(files_of(changelog, "base")) == bases
        assert state_of(changelog.reader(0)) == sample.state
        left = sum(path.stat().st_size for path in files_of(changelog))
        assert (left > 60_000) == (bases == 0)


def test_a_compaction_that_is_given_up_leaves_the_log(tmp_path):
    changelog, sample = made(tmp_path, *[100] * 5)
    names = files_of(changelog)
    for most in range(1, 200):
        calls = count()
        compaction.compact_group(changelog._group(0), CompactionLimits(0), partial(_after, calls, most))
        assert state_of(changelog.reader(0)) == sample.state
        if files_of(changelog) != names:
            break
    assert len(files_of(changelog)) == 1
    assert most > 2


def _after(calls, most):
    return next(calls) >= most


@pytest.mark.parametrize("error", [CorruptionError("no good"), MemoryError("no good")], ids=["ours", "memory"])
def test_a_compaction_that_fails_beside_the_writer_is_tried_again(tmp_path, monkeypatch, caplog, error):
    monkeypatch.setattr(compaction, "_LEAST_BYTES", 5_000)
    changelog, sample = made(tmp_path, auto_compact=True)
    writer = changelog.writer(0)
    assert writer.status.value == "starting"
    with monkeypatch.context() as patch:

        def fails(*arguments):
            raise error

        patch.setattr(compaction, "_fold", fails)
        appended = 0
        while writer._compaction.work.failures < 3:
            writer.append(*sample.commit(30))
            appended += 1
            settle(writer._compaction)
    # It is due when the log has grown, and not with each commit.
    assert appended > 9
    assert logged(caplog, writer._compaction.work.name) == [
        f"{writer._compaction.work.name}: {error}; retrying; further failures are counted"
    ]
    assert f"3 failures: {type(error).__name__}: no good" in repr(writer)
    while not files_of(changelog, "base"):
        writer.append(*sample.commit(30))
        settle(writer._compaction)
    assert writer.status.value == "following"
    assert repr(writer).endswith("compaction following>")
    writer.close()
    assert writer.status.value == "closed"
    assert state_of(changelog.reader(0)) == sample.state


def test_a_forked_process_has_a_turn_of_its_own():
    with compaction._turn:
        child = os.fork()
        if child == 0:
            os._exit(int(compaction._turn.locked()))
    assert os.waitpid(child, 0)[1] == 0


def test_one_compaction_at_a_time_runs_beside_the_writers(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "_LEAST_BYTES", 1)
    changelog, sample = made(tmp_path, auto_compact=True)
    with compaction._turn:
        writer = changelog.writer(0)
        for _ in range(5):
            writer.append(*sample.commit())
        assert writer._compaction.work.is_running
        # It does not wait for its turn to be closed.
        writer.close()
        assert files_of(changelog, "base") == []
    writer = changelog.writer(0)
    while not files_of(changelog, "base"):
        writer.append(*sample.commit())
        settle(writer._compaction)
    writer.close()
    assert not compaction._turn.locked()


def test_a_group_that_has_no_commits(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log", compaction_lag=0)
    changelog.prepare("op", 2)
    sample = SampleGroup(Random(1))
    for _ in range(2):
        changelog.writer(0).append(*sample.commit())
    assert [(done.group, done.base) for done in changelog.compact()] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("options", [{"compaction_lag": -1}, {"compaction_lag": "1h"}, {"history_bytes": -1}])
def test_wrong_options_are_refused(tmp_path, options):
    with pytest.raises(DefinitionError, match=next(iter(options))):
        DirectoryChangelog(tmp_path, **options)
