"""Verify finds what is wrong with a changelog or a checkpoint, and names the first of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from keyed import TimeDomain
from keyed.changelog.commit_fold import FoldedCommit
from keyed.changelog.directory import DirectoryChangelog
from keyed.codec.keys import encode_key
from keyed.content.addresses import PLAIN, describe_entry, state_prefix
from keyed.content.delta import Delta, deltas
from keyed.engine.group_log import decode_meta, decode_row, encode_rows
from keyed.errors import CheckpointError, DefinitionError, OperatorChanged
from keyed.job.results import Restored
from keyed.recovery import flush, verify
from keyed.recovery.verification import Replay, _first_difference
from keyed.stores.commit_store import CommitStore
from keyed.testing import KeyedTestHarness, MemoryChangelog
from tests.keyed.engine.groups import Work
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life
from tests.keyed.recovery.test_restore import broken_off, run_count


def problems(found: Any) -> dict[int, str]:
    return {group.group: group.problem for group in found if group.problem}


@pytest.fixture
def log():
    log = MemoryChangelog()
    run_count(range(100), log, parallelism=2)
    return log


def test_a_good_changelog(log):
    found = verify(log)
    assert [(group.operator, group.group, group.first, group.last, group.problem) for group in found] == [
        ("Count", 0, 0, 9, ""),
        ("Count", 1, 0, 9, ""),
    ]
    assert sum(group.entries for group in found) == 10


def damage(log: MemoryChangelog, sequence: int, change: Any) -> None:
    """Change the content of a commit of key group 1."""
    blocks: Any = log._groups[1][sequence - 1][1]
    change(blocks[0])


def replace_value(block: Any) -> None:
    prefix, sub, _ = block[0]
    block[0] = (prefix, sub, b"\x07")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (replace_value, "batch 3: the hash of its .* live entries is .*, its marker says"),
        (lambda block: block.pop(), "batch 3: the hash"),
        (
            lambda block: block.append((state_prefix(PLAIN, 1, encode_key(99), encode_key(None)), b"", b"\x01")),
            "batch 3: there are .* live entries",
        ),
    ],
)
def test_the_first_commit_that_is_wrong_is_named(log, change, match):
    damage(log, 4, change)
    found = problems(verify(log))
    assert list(found) == [1]
    assert re.search(match, found[1]), found


def test_a_lost_tail(log):
    del log._groups[1][-2:]
    assert problems(verify(log)) == {1: "its last batch is 7, and there are positions of the sources from batch 8 to 9"}


def test_a_tail_that_was_not_exported_yet_is_not_lost_and_is_noted_until_it_is_flushed(tmp_path):
    log = MemoryChangelog()
    run_count(range(100), log, parallelism=2, checkpoint=tmp_path)
    log._groups[1].pop()
    assert problems(verify(log)) == {}
    complete, lacks = verify(log)
    assert (complete.note, lacks.last) == ("", 8)
    assert "a position of the sources after batch 9, and no commit of it" in lacks.note
    flush(tmp_path, {"Count": log})
    assert [(group.last, group.note) for group in verify(log)] == [(9, ""), (9, "")]


def test_a_lost_position(log):
    del log._positions[10]
    said = "there is no position of the sources after batch 9, and there are positions before it"
    assert problems(verify(log)) == {0: said, 1: said}


def test_a_damaged_position(tmp_path):
    log = DirectoryChangelog(tmp_path)
    run_count(range(100), log)
    file = tmp_path / "positions" / f"{7:020d}.position"
    file.write_bytes(file.read_bytes()[:-1])
    assert str(file) in problems(verify(log))[0]


@pytest.mark.parametrize(
    ("name", "compact"),
    [
        ("functions", False),
        ("tables", True),
        ("vectorized-hopping", True),
        *(pytest.param(name, False, marks=pytest.mark.long) for name in ("tables", "sessions", "vectorized-hopping")),
        *(pytest.param(name, True, marks=pytest.mark.long) for name in ("functions", "sessions")),
    ],
)
def test_good_jobs(tmp_path, name, compact):
    life = Life(tmp_path, name)
    jobs.run(life, drain=False)
    for operator in life.operators():
        changelog = life.changelog(operator, 0)
        if compact:
            changelog.compact()
        for found in (verify(changelog), verify(tmp_path / "checkpoint"), verify(tmp_path / "checkpoint", changelog)):
            assert problems(found) == {}
            assert [group.note for group in found if group.note] == []
            assert {group.last for group in found} == {19}
            assert sum(group.entries for group in found) > 0


def rewrite(folder: Any, operator: str, group: int, change: Any) -> None:
    """Change the entries of the last row of a key group in a checkpoint."""
    commits = CommitStore(folder)
    log = commits.group_log(operator, group)
    record = log.read_meta()
    assert record is not None
    meta = decode_meta(record, "")
    for number, row_record in [*log.read(meta.last_row, meta.last_row)]:
        row = decode_row(row_record, "")
        (changed,) = deltas(row.changed, {}, "")
        changes = Delta([change(entry) for entry in changed.entries])
        log.append(number, encode_rows(row.commit, (), changes.log_blocks(), row.attempt, row.before)[0])
    commits.commit()
    commits.close()


def test_the_first_entry_in_which_checkpoint_and_changelog_differ(tmp_path):
    log = MemoryChangelog()
    run_count(range(100), log, parallelism=2, checkpoint=tmp_path)
    assert problems(verify(tmp_path, log)) == {}
    rewrite(tmp_path, "Count", 1, lambda entry: (*entry[:2], b"\x08"))
    assert "the hash of its" in problems(verify(tmp_path))[1]
    problem = problems(verify(tmp_path, log))[1]
    assert problem.startswith("batch 9: value state 'count' of key ")
    assert problem.endswith("is b'\\x08' in the checkpoint and b'\\n' in the changelog")


def test_the_first_row_in_which_tables_differ(tmp_path):
    life = Life(tmp_path, "tables")
    jobs.run(life, drain=False)
    one, other = Replay(), Replay()
    for commit, blocks in life.changelog("Buckets", 0).reader(0).commits():
        content = list(blocks)
        for replay in (one, other) if commit.sequence < 20 else (one,):
            replay.apply(FoldedCommit(commit, content))
    assert re.match(
        r"row \('item\d', \d+\) of table 'buckets' is .* in the checkpoint and .* in the changelog",
        _first_difference(one.store, other.store, commit.states),
    )


def test_what_cannot_be_compared_is_noted(tmp_path):
    log = MemoryChangelog()
    run_count(range(20), checkpoint=tmp_path)
    (found,) = verify(tmp_path)
    assert (found.problem, found.entries) == ("", 10)
    assert "no hash is kept" in found.note
    log.prepare("Count", 1)
    (found,) = verify(tmp_path, log)
    assert "not compared with the changelog, which is empty" in found.note


def test_a_damaged_checkpoint_is_a_problem(tmp_path):
    run_count(range(20), MemoryChangelog(), checkpoint=tmp_path)
    commits = CommitStore(tmp_path)
    log = commits.group_log("Count", 0)
    log.drop(2)
    commits.commit()
    commits.close()
    assert "row 2" in problems(verify(tmp_path))[0]


def test_what_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        verify(tmp_path / "none")
    run_count(range(20), checkpoint=tmp_path)
    other = MemoryChangelog()
    other.prepare("Other", 1)
    with pytest.raises(OperatorChanged, match="no key group 0 of 'Other'"):
        verify(tmp_path, other)
    with pytest.raises(DefinitionError, match="give a checkpoint and its changelog, or one changelog"):
        verify(other, other)
    with pytest.raises(DefinitionError, match="5 is neither a changelog nor the folder of a checkpoint"):
        verify(5)  # type: ignore[arg-type]


class TestFlush:
    def test_what_a_broken_off_run_has_committed(self, tmp_path):
        life = Life(tmp_path, "functions")
        broken_off(life, 5)
        changelogs: dict[str, Any] = {operator: life.changelog(operator, 0) for operator in life.operators()}
        assert [changelogs[name].reader(0).last().sequence for name in ("Windows", "Totals")] == [4, 4]
        for _ in range(2):
            assert flush(tmp_path / "checkpoint", changelogs) == {"Windows": 4, "Totals": 4}
        assert [changelogs[name].reader(0).last().sequence for name in ("Windows", "Totals")] == [5, 5]
        life.lose_checkpoint()
        assert jobs.run(life).restored == Restored(4, with_position=True)

    def test_into_an_empty_changelog(self, tmp_path):
        rows = range(100)
        run_count(rows, checkpoint=tmp_path, parallelism=2)
        log = MemoryChangelog()
        assert flush(tmp_path, {"Count": log}) == {"Count": 9}
        assert problems(verify(tmp_path, log)) == {}
        result = run_count(range(110), restore_from=log, parallelism=3)
        assert sorted(result.values) == [(number, 11) for number in range(10)]
        # And the run goes on with it.
        run_count(range(120), log, checkpoint=tmp_path, parallelism=2)
        assert problems(verify(log)) == {}

    def test_a_checkpoint_in_use(self, tmp_path):
        def on_progress(_: Any) -> None:
            with pytest.raises(CheckpointError, match="in use by another run"):
                flush(tmp_path, {"Count": MemoryChangelog()})

        run_count(range(10), checkpoint=tmp_path, on_progress=on_progress)


def test_entries_are_named_as_users_know_them():
    log = MemoryChangelog()
    harness = KeyedTestHarness(Work(), key=lambda element: element[0], changelog=log)
    harness.process(("a", "value", b"x"), 1)
    harness.process(("a", "put", 3, b"x"), 1)
    harness.process(("a", "append", b"x"), 1)
    harness.process(("a", "register_event_time_timer", 77), 1)
    harness.process(("a", "set_timer", 4, 88, TimeDomain.PROCESSING_TIME), 1)
    states = log._groups[0][-1][0].states
    names = {describe_entry(prefix, sub, states) for prefix, sub, _ in harness._groups.entries()}
    assert names == {
        "value state 'value' of key 'a'",
        "map state 'map' of key 'a', map key 3",
        "list state 'list' of key 'a', element 0 of batch 2",
        "event-time timer at 77 of key 'a'",
        "processing-time timer 4 of key 'a'",
    }
    prefix = state_prefix(PLAIN, 9, encode_key("a"), encode_key((1, 2)))
    assert describe_entry(prefix, b"", states) == "unknown state number 9 of key 'a', namespace (1, 2)"
