"""Replay: what a changed function would have done, over the batches of a real job; and what is refused."""

from __future__ import annotations

import json

import pytest

import keyed
from keyed import KeyedProcessFunction, MapState, ValueState
from keyed.cli.main import main
from keyed.errors import ChangelogError, DefinitionError
from keyed.testing import replay

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


@pytest.fixture
def job(tmp_path):
    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    clock = iter(range(10_000, 90_000, 1000))
    sales = keyed.stream(ROWS, timestamp="time").key_by("shop").process(Sales(), changelog=changelog, parallelism=2)
    sales.run(rows_per_batch=2, processing_time=lambda: next(clock))
    return changelog


DIFFERS = (
    "- output Record(value=('a', 11), timestamp=7000)",
    "+ output Record(value=('a', 4), timestamp=7000)",
    "- state hours['a'] = {0: 4, 1: 11}",
    "+ state hours['a'] = {0: 4, 1: 4}",
    "- state total['a'] = 11",
    "+ state total['a'] = 4",
)


@pytest.mark.parametrize("first", [1, 2, 4])
def test_what_differs_is_told_from_any_batch_on(job, first):
    done = replay(job, Sales(), WithoutSevens(), ROWS, key="shop", timestamp="time", first=first)
    assert (done.first, done.last, done.rows) == (first, 6, 9 - 2 * (first - 1))
    assert done.lines == DIFFERS


def test_before_the_difference_there_is_none(job):
    assert replay(job, Sales(), WithoutSevens(), ROWS, key="shop", timestamp="time", last=3).lines == ()


def test_rows_that_are_not_those_of_the_job_are_refused(job):
    other = [row | {"amount": 1} for row in ROWS]
    with pytest.raises(DefinitionError, match="than the changelog has after batch 6"):
        replay(job, Sales(), WithoutSevens(), other, key="shop", timestamp="time")
    with pytest.raises(DefinitionError, match="4 are given, and the job had read 9"):
        replay(job, Sales(), WithoutSevens(), ROWS[:4], key="shop", timestamp="time")
    with pytest.raises(DefinitionError, match="the changelog has batches 1 to 6"):
        replay(job, Sales(), WithoutSevens(), ROWS, key="shop", last=7)


def test_a_source_with_positions_of_its_own_is_refused(tmp_path):
    class Source:
        def __init__(self):
            self.at = 0

        def __iter__(self):
            for self.at in range(1, 5):
                yield {"shop": "a", "amount": self.at, "time": self.at}

        def position(self):
            return {"at": self.at}

        def seek(self, position):
            self.at = position["at"]

    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    stream = keyed.stream(Source(), timestamp="time").key_by("shop")
    stream.process(Sales(), changelog=changelog).run(processing_time=lambda: 1)
    with pytest.raises(ChangelogError, match="positions of its own"):
        replay(changelog, Sales(), Sales(), ROWS, key="shop", timestamp="time")


@pytest.mark.usefixtures("job")
def test_the_command_prints_the_difference(tmp_path, capsys):
    rows = tmp_path / "rows.json"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    names = [f"{__name__}:Sales", f"{__name__}:WithoutSevens"]
    command = ["replay", str(tmp_path / "log"), *names, str(rows), "--key", "shop", "--timestamp", "time"]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines() == [*DIFFERS, "batches 1 to 6, 9 rows: 6 lines differ"]
    assert main([*command[:2], "no.such:Thing", *command[3:]]) == 1
    assert "'no.such:Thing' is no function" in capsys.readouterr().err
