"""The command ``inspect``: what a checkpoint holds, without its job, against what the job did."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import pytest

import keyed
from keyed.cli.main import main
from tests.keyed.cli.conftest import Count
from tests.keyed.runtimes.spark.functions import count, files_source, write_file
from tests.support.waiting import until


class Sold(keyed.KeyedProcessFunction):
    sold = keyed.ValueState(int, default=0)
    titles = keyed.MapState(str, int)
    window = keyed.ReducingState(lambda a, b: a + b, int)

    def process_element(self, value, ctx):
        self.sold.update(self.sold.value() + value["n"])
        self.titles.put(value["title"], value["n"])
        self.window.namespace((0, 10)).add(value["n"])
        ctx.timer_service().set_timer("soon", 1_000)
        yield {"shop": value["shop"], "n": value["n"]}

    def on_timer(self, timestamp, ctx):
        return ()


class Total(keyed.vectorized.VectorizedFunction):
    totals = keyed.vectorized.TableState("shop bigint, n bigint", key="shop")

    def process_batch(self, table, ctx):
        self.totals.merge(table, {"n": "sum"})


ROWS = [{"shop": shop, "title": title, "n": n} for shop, title, n in [(1, "a", 2), (2, "b", 1), (1, "c", 5)]]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Any:
    folder = tmp_path_factory.mktemp("inspected")
    sold = keyed.stream(ROWS, timestamp="n").key_by("shop").process(Sold(), "shop bigint, n bigint", parallelism=3)
    output = sold.key_by("shop").process(Total(), parallelism=2)
    output.run(lambda rows, batch: None, checkpoint=folder / "checkpoint", drain=False)
    return folder / "checkpoint"


def inspected(capsys: Any, *arguments: Any) -> dict[str, Any]:
    assert main(["inspect", "--json", *map(str, arguments)]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {each["operator"]: each for each in found}


def test_states_and_counters_of_all_operators_are_told(checkpoint, capsys):
    found = inspected(capsys, checkpoint)
    assert list(found) == ["Sold", "Total"]
    sold = found["Sold"]
    assert (sold["batch"], sold["groups"], sold["counters"]["rows_in"]) == (0, 3, 3)
    # Each of the three key groups counts the batch.
    assert "batches" not in sold["counters"]
    entries = {name: state["entries"] for name, state in sold["states"].items()}
    assert entries == {"sold": 2, "titles": 3, "window": 2, "timers": 2}
    assert sold["states"]["titles"]["types"] == "str -> int"
    assert all(state["bytes"] > 0 for state in sold["states"].values())
    assert found["Total"]["states"]["totals"]["entries"] == 2


def test_one_key_is_shown_whole(checkpoint, capsys):
    found = inspected(capsys, checkpoint, "--key", "1")
    entries = {(entry["state"], entry["entry"], entry["value"]) for entry in found["Sold"]["entries"]}
    states = {("sold", None, 7), ("titles", "a", 2), ("titles", "c", 5), ("window", None, 7)}
    assert entries == {*states, ("timers", "soon", 1_000)}
    assert found["Total"]["entries"] == [{"state": "totals", "entry": None, "value": {"n": 7}, "about": None}]


def test_it_is_shown_to_people(checkpoint, capsys):
    assert main(["inspect", str(checkpoint), "--operator", "Sold", "--key", "2"]) == 0
    out = capsys.readouterr().out
    assert "Sold: batch 0, 3 key groups, watermark 4 (1970-01-01 00:00:00.004 UTC)\n" in out
    assert "batches" not in out
    assert "titles  map" in out
    assert "Total" not in out
    assert main(["inspect", str(checkpoint), "--key", "17"]) == 1
    assert "nothing" in capsys.readouterr().out


def test_clocks_that_are_none_are_named(tmp_path, capsys):
    stream = keyed.stream([{"word": "be"}]).key_by("word").process(Count(), "word string, n bigint")
    stream.run(checkpoint=tmp_path / "open", drain=False)
    assert main(["inspect", str(tmp_path / "open")]) == 0
    assert "watermark none\n" in capsys.readouterr().out
    stream.run(checkpoint=tmp_path / "ended", drain=True)
    assert main(["inspect", str(tmp_path / "ended")]) == 0
    assert "watermark end of input\n" in capsys.readouterr().out


def test_what_is_not_there_is_refused(checkpoint, tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "none")]) == 1
    assert "is not there; give the folder of a checkpoint" in capsys.readouterr().err
    assert main(["inspect", str(checkpoint), "--operator", "Other"]) == 1
    assert "has no operator 'Other'; it has: Sold, Total" in capsys.readouterr().err
    assert main(["inspect", str(checkpoint), "--key", "x"]) == 1
    assert "--key" in capsys.readouterr().err


def test_a_checkpoint_of_spark(spark, tmp_path, capsys):
    write_file(tmp_path / "in", 0, [("a", 1, 5), ("b", 2, 1), ("a", 3, 1)])
    count(files_source(spark, tmp_path / "in"), parallelism=2).run(checkpoint=tmp_path / "checkpoint")
    found = inspected(capsys, tmp_path / "checkpoint", "--key", "a")["count"]
    assert (found["groups"], found["states"]["seen"]["entries"], found["counters"]["rows_in"]) == (2, 2, 3)
    assert found["entries"] == [{"state": "seen", "entry": None, "value": [2, 6], "about": None}]
    assert main(["verify", str(tmp_path / "checkpoint")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["group", "0", "1", "group", "group", "verified"]
    assert lines[3].startswith("group 0: no hash is kept")


@pytest.mark.slow
def test_a_checkpoint_is_read_while_another_thread_writes_it(tmp_path, capsys):
    class Grows(keyed.KeyedProcessFunction):
        n = keyed.ValueState(int, default=0)
        data = keyed.ValueState(bytes)

        def process_element(self, value, ctx):
            self.n.update(self.n.value() + 1)
            self.data.update(os.urandom(200_000))
            yield value["k"]

    rows = itertools.cycle([{"k": "a"}, keyed.PAUSE])
    query = (
        keyed.stream(rows)
        .key_by("k")
        .process(Grows(), "k string")
        .start(lambda rows, batch: None, checkpoint=tmp_path / "ck")
    )
    until(lambda: query.progress)
    for _ in range(30):
        found = inspected(capsys, tmp_path / "ck", "--key", "a")["Grows"]
        values = {entry["state"]: entry["value"] for entry in found["entries"]}
        assert values["n"] == found["batch"] + 1
    query.stop()
    assert query.await_termination(300)
