"""Jobs with a changelog per operator, in a `Program` that tests kill.

Reads ``FOLDER/in``, one file a batch, and writes ``FOLDER/sink-<n>``. Prints the id of each batch, what the changelogs
say of the state when all files are read and when the input has ended, and then ``DONE``. `Life` in
`tests.keyed.recovery.jobs` says where the checkpoint and the changelogs are, and what a life begins with. The interval
is that of the changelogs, which may differ from run to run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keyed
from keyed import KeyedProcessFunction, ListState, OutputTag, TimeDomain, ValueState
from keyed import windows as w
from tests.keyed.recovery.jobs import Life, Options, final_state
from tests.keyed.runtimes.spark.functions import SCHEMA, BestColumns, CountInWindows, best, files
from tests.support.spark_programs import say, say_batch, start_session

ECHO = OutputTag("echo", SCHEMA)
LATENESS = keyed.bounded_out_of_orderness(milliseconds=60)
PARALLELISM = 2


class CountAndEcho(CountInWindows):
    """As its base, and emits every row once more when some processing time has passed."""

    waiting = ListState(tuple[int, int])

    def process_element(self, value, ctx):
        self.waiting.add((value.t, value.v))
        timers = ctx.timer_service()
        timers.set_timer("echo", timers.current_processing_time() + 200, TimeDomain.PROCESSING_TIME)
        super().process_element(value, ctx)

    def on_timer(self, timestamp, ctx):
        if ctx.time_domain() is TimeDomain.EVENT_TIME:
            yield from super().on_timer(timestamp, ctx)
            return
        for time, value in self.waiting.get():
            ctx.output(ECHO, (ctx.get_current_key(), time, value))
        self.waiting.clear()


def _functions(stream: Any, options: Options) -> list[Any]:
    by_stage = {name: options(name) for name in ("windows", "best")}
    windows, ranked = best(stream, CountAndEcho(), BestColumns(), by_stage)
    return [windows, ranked, windows.side_output(ECHO)]


def _windowed(assigner: Any, path: str) -> Callable[[Any, Options], list[Any]]:
    def build(stream: Any, options: Options) -> list[Any]:
        windowed = stream.key_by("k").window(assigner).path(path)
        return [windowed.aggregate({"n": w.Count(), "total": w.Sum("v")}, **options("WindowOperator"))]

    return build


class Totals(KeyedProcessFunction):
    """Adds up the counts of a key."""

    total = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.n)
        yield value.k, value.start, self.total.value()


def _chained(stream: Any, options: Options) -> list[Any]:
    schema = "k string, start bigint, n bigint"
    counts = stream.key_by("k").process(CountInWindows(), schema, name="counts", **options("counts"))
    totals = counts.key_by("k").process(Totals(), schema, name="totals", **options("totals"))
    windowed = totals.key_by("k").window(w.TumblingEventTimeWindows.of(500))
    return [counts, totals, windowed.aggregate({"most": w.Max("n")}, name="most", **options("most"))]


#: Jobs with windows whose results do not depend on where batches are cut, and rows and columns in one chain.
KINDS: dict[str, Callable[[Any, Options], list[Any]]] = {
    "functions": _functions,
    "chained": _chained,
    "tumbling": _windowed(w.TumblingEventTimeWindows.of(100), "row"),
    "hopping": _windowed(w.HoppingEventTimeWindows.of(200, 50), "row"),
    "sessions": _windowed(w.EventTimeSessionWindows.with_gap(9), "row"),
    "vectorized-tumbling": _windowed(w.TumblingEventTimeWindows.of(100), "vectorized"),
    "vectorized-hopping": _windowed(w.HoppingEventTimeWindows.of(200, 50), "vectorized"),
    "vectorized-sessions": _windowed(w.EventTimeSessionWindows.with_gap(9), "vectorized"),
}


def outputs(life: Life, source: Any) -> list[Any]:
    """The outputs of a job with their sinks."""
    stream = keyed.stream(source, timestamp="t", watermark=LATENESS)
    # Each life has another number of key groups than the one before.
    life.parallelism = PARALLELISM + life.number % 2
    found = KINDS[life.name](stream, lambda operator: life.options(operator, standby=False))
    return [output.to(life.folder / f"sink-{number}") for number, output in enumerate(found)]


def state(life: Life) -> dict[str, Any]:
    """The state in the changelogs, as far as it does not depend on where batches are cut.

    By operator: the number of entries, their hash, and whether the input has ended.
    """
    return {
        operator: [entries, hash_, any(ended for *_, ended in clocks)]
        for operator, (entries, hash_, clocks) in final_state(life).items()
    }


def main(folder: Path, kind: str, interval: int) -> None:
    life = Life(folder, kind, export_interval=interval)
    source = files(start_session(folder), folder / "in")
    for drain in (False, True):
        keyed.run(*outputs(life, source), checkpoint=folder / "checkpoint", drain=drain, on_progress=say_batch)
        say("STATE", json.dumps(state(life)))
    say("DONE")
