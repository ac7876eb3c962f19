"""The program's part of exports to changelogs, without Spark: what it costs for each key group."""

from collections import Counter

from tests.benchmarks.driver import Job

BATCHES = 3


def calls(folder, groups, interval):
    """The calls for files that the program makes in some batches."""
    with Job(folder, groups, interval) as job:
        job.batch()
        job.batch()
        job.reset()
        for _ in range(BATCHES):
            job.batch()
    return job.calls


def test_with_an_export_interval_the_program_does_nothing_for_each_key_group(tmp_path):
    few, many = (calls(tmp_path / str(groups), groups, 3_600_000) for groups in (2, 20))
    assert few == many
    assert few.keys().isdisjoint({"link", "fsync"})


def test_without_one_it_publishes_the_segment_of_each(tmp_path):
    few, many = (calls(tmp_path / str(groups), groups, 0) for groups in (2, 20))
    each = BATCHES * (20 - 2)
    assert many - few == Counter(open=2 * each, link=each, unlink=each, fsync=each)
