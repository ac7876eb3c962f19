"""How many requests a changelog in an object store costs: the tables of the page are these counts."""

import re
from pathlib import Path

import pytest

from keyed.changelog.objects.object_changelog import ObjectWriter
from tests.keyed.changelog.objects.support import made
from tests.keyed.recovery.test_restore import run_count

PAGE = Path(__file__).parents[4] / "docs/how-to/object-stores.md"
BATCHES = 10
#: What Amazon S3 Standard charges in us-east-1, in dollars for a thousand requests.
PUTS, GETS = 0.005, 0.0004


def per_batch(server, before):
    """Requests since, each batch: puts and listings, which cost the same, and gets, of which a HEAD is one."""
    counted = server.requests - before
    puts, gets = counted["PUT"] + counted["LIST"], counted["GET"] + counted["HEAD"]
    assert (puts % BATCHES, gets % BATCHES, counted["DELETE"]) == (0, 0, 0)
    return puts // BATCHES, gets // BATCHES


def of_a_writer(server):
    """What a key group costs its writer in a batch, as the engine asks it."""
    changelog, first, sample = made(server, 5)
    first.close()
    now = [0.0]
    writer = ObjectWriter(changelog._group(0), None, lambda: now[0])
    before = server.requests.copy()
    for _ in range(BATCHES):
        now[0] += 1.0
        writer.last()
        writer.last()
        writer.append(*sample.commit())
        writer.last()
    return per_batch(server, before)


def of_a_position(server):
    """What the position of a batch costs."""
    changelog, _, _ = made(server)
    before = server.requests.copy()
    for sequence in range(1, BATCHES + 1):
        changelog.put_position(sequence, b"at")
    return per_batch(server, before)


def of_a_reader(server):
    """What a key group costs a follower in a look that finds a batch."""
    changelog, writer, sample = made(server, 5)
    reader = changelog.reader(0)
    reader.last()
    server.requests.clear()
    counted = server.requests.copy()
    for _ in range(BATCHES):
        writer.append(*sample.commit())
        before = server.requests.copy()
        last = reader.last()
        assert last is not None
        ((_, blocks),) = reader.commits(last.sequence - 1, last.sequence)
        list(blocks)
        counted += server.requests - before
    server.requests = counted
    return per_batch(server, type(counted)())


def test_a_batch_costs_a_put_and_two_looks(server):
    assert of_a_writer(server) == (1, 2)


def test_a_position_costs_a_put_and_a_look(server):
    assert of_a_position(server) == (1, 1)


def test_a_look_costs_a_listing_and_each_batch_a_get(server):
    assert of_a_reader(server) == (1, 1)


def test_an_idle_look_costs_a_listing(server):
    changelog, _, _ = made(server, *[5] * 20)
    reader = changelog.reader(0)
    last = reader.last()
    server.requests.clear()
    assert reader.last() == last
    assert dict(server.requests) == {"LIST": 1}


def test_opening_a_reader_far_on_lists_only_what_follows(server):
    changelog, _, _ = made(server, *[1] * 40)
    server.page = 10
    server.requests.clear()
    assert [commit.sequence for commit, _ in changelog.reader(0).commits(38)] == [39, 40]
    assert dict(server.requests) == {"GET": 3, "LIST": 1}


@pytest.mark.parametrize(("groups", "batches"), [(2, 10), (5, 20)])
def test_a_job_puts_one_object_for_each_group_and_batch(server, groups, batches):
    changelog, _, _ = made(server)
    server.objects.clear()
    server.requests.clear()
    run_count(range(batches * 10), changelog, parallelism=groups)
    puts = groups * batches + batches + 2
    assert abs(server.requests["PUT"] - puts) <= 2
    assert server.requests["LIST"] == 3 * groups + 1


def test_the_tables_of_the_page_are_these_counts(server):
    text = PAGE.read_text()
    writer, position, reader = of_a_writer(server), (1, 1), (1, 1)
    rows = re.findall(r"^\| (\d+) s \| (\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) == 8
    for number, (trigger, groups, puts, gets, dollars) in enumerate(rows):
        hourly = 3600 // int(trigger)
        each, once = (writer, position) if number < 4 else (reader, (0, 1))
        expected = [hourly * (int(groups) * each[kind] + once[kind]) for kind in (0, 1)]
        assert [int(puts.replace(",", "")), int(gets.replace(",", ""))] == expected
        assert float(dollars) == round(expected[0] / 1000 * PUTS + expected[1] / 1000 * GETS, 3)
