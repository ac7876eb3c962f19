"""Replay: what a changed function would have done, over the batches of a real job; and what is refused."""

from __future__ import annotations

import json
import os
import resource
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest

import keyed
from keyed import KeyedProcessFunction, MapState, ValueState
from keyed.cli.main import main
from keyed.errors import ChangelogError, DefinitionError, KeyedError, SinkError
from keyed.testing import KeyedTestHarness, Recording, replay

ROWS = [{"shop": shop, "amount": n, "time": n * 1000} for n, shop in enumerate("aababbcab")]


class Sales(KeyedProcessFunction):
    total = ValueState(int, default=0)
    hours = MapState(int, int)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + self.counted(value))
        self.hours[ctx.timestamp() // 4000] = self.total.value()
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1500)
        yield value["shop"], self.total.value()

    def counted(self, value):
        return value["amount"]

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "timer", timestamp


class WithoutSevens(Sales):
    def counted(self, value):
        return 0 if value["amount"] == 7 else value["amount"]


def ran(tmp_path, source, rows_per_batch=3, **options):
    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    stream = keyed.stream(source, timestamp="time").key_by("shop").process(Sales(), changelog=changelog, parallelism=2)
    clock = iter(range(10_000, 90_000, 1000))
    stream.run(rows_per_batch=rows_per_batch, processing_time=lambda: next(clock), **options)
    return changelog


@pytest.fixture
def job(tmp_path):
    return ran(tmp_path, ROWS, rows_per_batch=2)


DIFFERS = (
    "- output Record(value=('a', 11), timestamp=7000)",
    "+ output Record(value=('a', 4), timestamp=7000)",
    "- state hours['a'] = {0: 4, 1: 11}",
    "+ state hours['a'] = {0: 4, 1: 4}",
    "- state total['a'] = 11",
    "+ state total['a'] = 4",
)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_what_differs_is_told_from_any_batch_on(job, first):
    done = replay(job, Sales(), WithoutSevens(), ROWS, key="shop", timestamp="time", first=first)
    assert (done.first, done.last, done.rows) == (first, 5, 9 - 2 * first)
    assert done.lines == DIFFERS


def test_times_between_two_milliseconds_are_those_of_the_job(tmp_path):
    times = [datetime.fromtimestamp(n, UTC).replace(microsecond=600) for n in range(len(ROWS))]
    rows = [row | {"time": time} for row, time in zip(ROWS, times, strict=True)]
    changelog = ran(tmp_path, rows, rows_per_batch=2)
    assert replay(changelog, Sales(), Sales(), rows, key="shop", timestamp="time", last=1).lines == ()


def test_before_the_difference_there_is_none(job):
    assert replay(job, Sales(), WithoutSevens(), ROWS, key="shop", timestamp="time", last=2).lines == ()


def test_rows_that_are_not_those_of_the_job_are_refused(job):
    other = [row | {"amount": 1} for row in ROWS]
    with pytest.raises(DefinitionError, match="than the changelog after batch 5"):
        replay(job, Sales(), WithoutSevens(), other, key="shop", timestamp="time")
    with pytest.raises(DefinitionError, match="4 rows are given, and the job has read 9"):
        replay(job, Sales(), WithoutSevens(), ROWS[:4], key="shop", timestamp="time")
    with pytest.raises(DefinitionError, match="rows=None: a changelog holds no rows; give Recording"):
        replay(job, Sales(), Sales(), cast("Any", None), key="shop", timestamp="time")
    with pytest.raises(DefinitionError, match="the changelog has batches 0 to 5"):
        replay(job, Sales(), WithoutSevens(), ROWS, key="shop", last=6)


class Numbered:
    """A source that goes on from a position of its own."""

    def __init__(self, rows):
        self.rows, self.at = rows, 0

    def __iter__(self):
        while self.at < len(self.rows):
            self.at += 1
            yield self.rows[self.at - 1]
            if self.at % 2 == 0:
                yield keyed.PAUSE

    def position(self):
        return {"at": self.at}

    def seek(self, position):
        self.at = position["at"]


@pytest.mark.parametrize("first", [0, 2])
def test_a_source_is_read_again_at_the_positions_of_the_batches(tmp_path, first):
    changelog = ran(tmp_path, Numbered(ROWS))
    done = replay(changelog, Sales(), WithoutSevens(), Numbered(ROWS), key="shop", timestamp="time", first=first)
    assert done.lines == DIFFERS
    with pytest.raises(ChangelogError, match=r"give that source as rows, or run the job with record=folder"):
        replay(changelog, Sales(), Sales(), ROWS, key="shop", timestamp="time")
    with pytest.raises(DefinitionError, match="does not reach"):
        replay(changelog, Sales(), Sales(), Numbered(ROWS[:5]), key="shop", timestamp="time")


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("source", [list, pa.Table.from_pylist, Numbered])
def test_what_was_recorded_is_replayed(tmp_path, source, first):
    changelog = ran(tmp_path, source(ROWS), record=tmp_path / "record")
    recording = Recording(tmp_path / "record")
    done = replay(changelog, Sales(), WithoutSevens(), recording, key="shop", first=first)
    assert done.lines == DIFFERS
    assert [row.value._asdict() for row in recording.between(-1, 99)] == ROWS
    assert [row.timestamp for row in recording.batch(0)][:2] == [0, 1000]
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "record").glob("part-*")}
    assert (modes, (tmp_path / "record").stat().st_mode & 0o777) == ({0o600}, 0o700)


def test_recorded_rows_go_on_from_a_changelog_in_a_harness(tmp_path):
    changelog = ran(tmp_path, ROWS, record=tmp_path / "record")
    with KeyedTestHarness.from_changelog(
        changelog, Sales(), key="shop", as_of=0, watermark=keyed.bounded_out_of_orderness(0)
    ) as harness:
        for row in Recording(tmp_path / "record").batch(1):
            harness.process(*row)
        assert harness.state("total") == {"a": 4, "b": 11}


class Dies(RuntimeError):
    pass


def test_a_batch_that_runs_again_is_recorded_in_the_same_place(tmp_path):
    died: list[int] = []

    def sink(values, batch):
        if batch == 1 and not died:
            died.append(batch)
            raise Dies

    def job():
        stream = keyed.stream(ROWS, timestamp="time").key_by("shop")
        return stream.process(Sales(), changelog=changelog, parallelism=2)

    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    options: Any = {"checkpoint": tmp_path / "ck", "record": tmp_path / "record", "processing_time": lambda: 1}
    with pytest.raises(KeyedError):
        job().run(sink, rows_per_batch=2, **options)
    assert len(Recording(tmp_path / "record").between(-1, 99)) == 4
    job().run(sink, rows_per_batch=3, drain=True, **options)
    recording = Recording(tmp_path / "record")
    assert [len(recording.batch(number)) for number in range(4)] == [2, 3, 3, 1]
    assert replay(changelog, Sales(), Sales(), recording, key="shop").lines == ()
    other = keyed.DirectoryChangelog(tmp_path / "other", auto_compact=False)
    stream = keyed.stream(ROWS, timestamp="time").key_by("shop").process(Sales(), changelog=other)
    with pytest.raises(SinkError, match="record="):
        stream.run(record=tmp_path / "record")


def test_a_full_disk_is_told_with_the_folder_and_the_job_goes_on_with_more_room(tmp_path):
    rows = [{"shop": "a", "amount": 1, "time": n, "text": os.urandom(4_000).hex()} for n in range(300)]

    def run():
        changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
        stream = keyed.stream(rows, timestamp="time").key_by("shop").process(Sales(), changelog=changelog)
        return stream.run(checkpoint=tmp_path / "ck", record=tmp_path / "record", processing_time=lambda: 1)

    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))
    try:
        with pytest.raises(SinkError, match=r"record='.*/record': File too large; .* run again from the checkpoint"):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert not [path.name for path in (tmp_path / "record").iterdir() if path.suffix in (".parquet", ".tmp")]
    run()
    assert [row.value.text for row in Recording(tmp_path / "record").between(-1, 99)] == [row["text"] for row in rows]


def test_both_sides_are_recorded(tmp_path):
    class Both(keyed.KeyedCoProcessFunction):
        total = ValueState(int, default=0)

        def process_element1(self, value, ctx):
            self.total.update(self.total.value() + value["amount"])

        def process_element2(self, value, ctx):
            yield value["shop"], self.total.value()

    class Negative(Both):
        def process_element1(self, value, ctx):
            self.total.update(self.total.value() - value["amount"])

    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    streams = [keyed.stream(rows, timestamp="time").key_by("shop") for rows in (ROWS[:4], ROWS[4:])]
    both = streams[0].connect(streams[1]).process(Both(), changelog=changelog)
    both.run(rows_per_batch=2, record=tmp_path / "record", processing_time=lambda: 1)
    recording = Recording(tmp_path / "record")
    assert [row.input for row in recording.batch(0)] == [1, 1, 2, 2]
    assert replay(changelog, Both(), Both(), recording, key="shop").lines == ()
    assert "+ state total['a'] = -4" in replay(changelog, Both(), Negative(), recording, key="shop").lines
    with pytest.raises(ChangelogError, match=r"the job reads 2 sources: run it with record=folder"):
        replay(changelog, Both(), Both(), ROWS, key="shop")


class Ruled(keyed.KeyedBroadcastProcessFunction):
    """Counts by second in namespaces, by the factor that is broadcast, and tells large ones at the side."""

    counts = ValueState(int, default=0)
    added = 0

    def process_element(self, value, ctx):
        counts = self.counts.namespace(value["time"] // 1000)
        counts.update(counts.value() + value["amount"] * (ctx.get_broadcast_state(FACTORS).get("all") or 1))
        ctx.output(keyed.OutputTag("large"), counts.value() + self.added)
        ctx.timer_service().set_timer("later", ctx.timestamp() + 60_000 + self.added)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(FACTORS).put("all", value["amount"] + self.added)

    def on_timer(self, timestamp, ctx):
        """Do nothing."""


class Ruled1(Ruled):
    added = 1


FACTORS = MapState(str, int, name="factors")


def test_side_outputs_namespaces_broadcast_states_and_timers_are_compared(tmp_path, capsys):
    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    rows = keyed.stream(ROWS[:3], timestamp="time").key_by("shop")
    rules = keyed.stream([{"amount": 2, "time": 0}], timestamp="time").broadcast(FACTORS)
    job = rows.connect(rules).process(Ruled(), changelog=changelog, output="n int")
    job.run(rows_per_batch=1, record=tmp_path / "record", processing_time=lambda: 1, drain=False)
    options: dict[str, Any] = {"key": "shop", "broadcast": [FACTORS]}
    recording = Recording(tmp_path / "record")
    assert replay(changelog, Ruled(), Ruled(), recording, **options).lines == ()
    arguments = [changelog.path, f"{__name__}:Ruled", f"{__name__}:Ruled1", str(tmp_path / "record"), "--key", "shop"]
    assert main(["replay", *arguments, "--last", "2", "--broadcast", f"{__name__}:FACTORS"]) == 0
    *printed, _ = capsys.readouterr().out.splitlines()
    assert main(["replay", *arguments, "--broadcast", f"{__name__}:Ruled"]) == 1
    assert "is a type; give a MapState as MODULE:NAME" in capsys.readouterr().err
    lines = replay(changelog, Ruled(), Ruled1(), recording, **options, last=2).lines
    assert printed == [*lines]
    assert {
        "- side output 'large' Record(value=4, timestamp=2000)",
        "- state factors[None] = {'all': 2}",
        "- state counts['b'] in namespace 2 = 4",
        "+ state counts['b'] in namespace 2 = 6",
        "- timer 'later' of 'b' at 62000, event_time",
        "+ timer 'later' of 'b' at 62001, event_time",
    } <= set(lines)


def test_what_cannot_be_recorded_is_refused(tmp_path):
    stream = keyed.stream(ROWS).key_by("shop")
    with pytest.raises(DefinitionError, match="has no changelog, which holds"):
        stream.process(Sales()).run(record=tmp_path / "record")
    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    objects = keyed.stream([Dies()]).key_by(str).process(Sales(), changelog=changelog)
    with pytest.raises(DefinitionError, match="record=: an element cannot be recorded"):
        objects.run(record=tmp_path / "record")
    with pytest.raises(DefinitionError, match="no job has recorded rows in"):
        Recording(tmp_path / "nothing")


def test_with_ingestion_time_rows_have_the_time_of_their_batch(tmp_path):
    class Times(KeyedProcessFunction):
        last = ValueState(int)

        def process_element(self, value, ctx):
            self.last.update(ctx.timestamp())

    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    stream = keyed.stream(ROWS, timestamp=keyed.INGESTION_TIME).key_by("shop").process(Times(), changelog=changelog)
    clock = iter(range(10_000, 90_000, 1000))
    stream.run(rows_per_batch=2, processing_time=lambda: next(clock), record=tmp_path / "record")
    recording = Recording(tmp_path / "record")
    assert replay(changelog, Times(), Times(), recording, key="shop", timestamp=keyed.INGESTION_TIME).lines == ()
    with KeyedTestHarness(Times(), key="shop", ingestion_time=True) as harness:
        harness.advance_processing_time(5_000)
        harness.process({"shop": "a"})
        assert (harness.state("last"), harness.current_watermark) == ({"a": 5_000}, 4_999)
        with pytest.raises(DefinitionError, match="ingestion_time=True"):
            harness.process({"shop": "a"}, 1)


def test_the_command_takes_what_was_recorded(tmp_path, capsys):
    ran(tmp_path, ROWS, record=tmp_path / "record")
    names = [f"{__name__}:Sales", f"{__name__}:WithoutSevens"]
    assert main(["replay", str(tmp_path / "log"), *names, str(tmp_path / "record"), "--key", "shop"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == [*DIFFERS]


@pytest.mark.usefixtures("job")
def test_the_command_prints_the_difference(tmp_path, capsys):
    rows = tmp_path / "rows.json"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    names = [f"{__name__}:Sales", f"{__name__}:WithoutSevens"]
    command = ["replay", str(tmp_path / "log"), *names, str(rows), "--key", "shop", "--timestamp", "time"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [*DIFFERS, "batches 0 to 5, 9 rows: 6 lines differ"]
    assert main([*command[:2], "no.such:Thing", *command[3:]]) == 1
    assert "'no.such:Thing' is not a function" in capsys.readouterr().err
