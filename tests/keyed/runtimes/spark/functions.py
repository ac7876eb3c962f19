"""Functions for the tests on Spark, in a module of their own so that the workers find them, and data for them."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path
from threading import Lock

import attrs
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

import keyed
from keyed.arrow.write import arrow_schema
from keyed.base.schemas import schema_of
from keyed.changelog import DirectoryChangelog
from keyed.extending import inner_state
from keyed.vectorized import TIMESTAMP_COLUMN, TableState, VectorizedCoFunction, VectorizedFunction

BIG = keyed.OutputTag("big")
EVERY = keyed.OutputTag("every", "k string, n bigint")
BAD = keyed.OutputTag("bad")
SCHEMA = "k string, t bigint, v bigint"
COUNTED = "k string, n bigint, total bigint"
#: Held while a key group is published, by a changelog that kills its job in between. It is here because a program's own
#: globals are pickled.
PUBLISHING = Lock()

#: A value that makes `Count` raise.
POISON = -13


class Count(keyed.KeyedProcessFunction):
    """Counts and sums per key; values above 90 also go to a side output as they are."""

    seen = keyed.ValueState(tuple[int, int], default=(0, 0))

    def process_element(self, value, ctx):
        if value.v == POISON:
            raise ValueError("poison")
        count, total = self.seen.value()
        self.seen.update((count + 1, total + value.v))
        if value.v > 90:
            ctx.output(BIG, value)
        yield value.k, count + 1, total + value.v


class Both(keyed.KeyedCoProcessFunction):
    """Counts the rows of both sides per key, and tells it 100 ms after the last row too; large values also go aside."""

    seen = keyed.ValueState(tuple[int, int], default=(0, 0))

    def process_element1(self, value, ctx):
        return self.count((1, 0), value, ctx)

    def process_element2(self, value, ctx):
        return self.count((0, 1), value, ctx)

    def count(self, one, value, ctx):
        first, second = self.seen.value()
        self.seen.update((first + one[0], second + one[1]))
        if value.v > 90:
            ctx.output(EVERY, (ctx.get_current_key(), value.v))
        ctx.timer_service().set_timer("end", ctx.timestamp() + 100)
        yield ctx.get_current_key(), *self.seen.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), *self.seen.value()


class CountInWindows(keyed.KeyedProcessFunction):
    """Counts per key and 100 ms, by hand: a row per window, when the watermark passes its end."""

    counts = keyed.MapState(int, int)

    def process_element(self, value, ctx):
        start = ctx.timestamp() - ctx.timestamp() % 100
        if start + 99 <= ctx.timer_service().current_watermark():
            ctx.output(BIG, value)
            return
        self.counts.put(start, (self.counts.get(start) or 0) + 1)
        ctx.timer_service().register_event_time_timer(start + 99)

    def on_timer(self, timestamp, ctx):
        start = timestamp - 99
        count = self.counts.get(start)
        self.counts.remove(start)
        ctx.output(EVERY, {"k": ctx.get_current_key(), "n": count})
        yield {"k": ctx.get_current_key(), "start": start, "n": count}


class CountColumns(VectorizedFunction):
    """As `CountInWindows`, whole columns at a time."""

    counts = TableState("k string, start bigint, n bigint", key=("k", "start"))

    def process_batch(self, table, ctx):
        times = table[TIMESTAMP_COLUMN].to_numpy()
        starts = times - times % 100
        late = starts + 99 <= ctx.current_watermark()
        ctx.output(BIG, table.filter(late))
        rows = pa.table([table["k"], pa.array(starts), pa.repeat(1, len(starts))], names=["k", "start", "n"])
        self.counts.merge(rows.filter(~late), {"n": "sum"})

    def on_watermark(self, watermark, ctx):
        ended = self.counts.take(("start", "<=", max(watermark, 0) - 99))
        ended = ended.append_column(TIMESTAMP_COLUMN, pa.array(ended["start"].to_numpy() + 99))
        ctx.output(EVERY, ended)
        ctx.emit(ended)


class BothColumns(VectorizedCoFunction):
    """Counts the rows of each side by key, whole columns at a time, and tells the counts of the keys that came."""

    counts = TableState("k string, first bigint, second bigint", key="k")

    def process_batches(self, first, second, ctx):
        start = 0
        for name, key, table in (("first", "k", first), ("second", "other", second)):
            if table is None:
                continue
            late = table[TIMESTAMP_COLUMN].filter(ctx.late.slice(start, table.num_rows))
            start += table.num_rows
            ctx.output("late", pa.table([pa.repeat(name, len(late)), late], names=["side", "t"]))
            ones = {each: pa.repeat(int(each == name), table.num_rows) for each in ("first", "second")}
            rows = pa.table({"k": table[key], **ones})
            self.counts.merge(rows, {"first": "sum", "second": "sum"})
            ctx.emit(self.counts.lookup(rows.group_by("k").aggregate([])))


RULES = keyed.MapState(str, int, name="rules")


class Limits(keyed.KeyedBroadcastProcessFunction):
    """Tells of each row how many rules it reaches, and how many rows of its key there were since the last reset.

    Broadcast rows are rules: a name and a limit; one below 0 removes the rule, and one of 1000 resets all counts and
    tells them.
    """

    seen = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        limits = ctx.get_broadcast_state(RULES).values()
        yield value.k, self.seen.value(), sum(value.v >= limit for limit in limits)

    def process_broadcast_element(self, value, ctx):
        rules = ctx.get_broadcast_state(RULES)
        if value.v == 1000:

            def reset(key, seen):
                ctx.collect((key, -seen.value(), len(rules)))
                seen.clear()

            ctx.apply_to_keyed_state(self.seen, reset)
        elif value.v < 0:
            rules.remove(value.k)
        else:
            rules[value.k] = value.v


def limits_of(batches, rules=None, seen=None):
    """Return what `Limits` gives of batches, each of its rules and its rows as dictionaries, sorted."""
    rules, seen, given = {} if rules is None else rules, {} if seen is None else seen, []
    for new, rows in batches:
        for rule in sorted(new, key=lambda rule: rule["t"]):
            if rule["v"] == 1000:
                given += [(key, -count, len(rules)) for key, count in seen.items()]
                seen.clear()
            elif rule["v"] < 0:
                rules.pop(rule["k"], None)
            else:
                rules[rule["k"]] = rule["v"]
        for row in sorted(rows, key=lambda row: row["t"]):
            seen[row["k"]] = seen.get(row["k"], 0) + 1
            given.append((row["k"], seen[row["k"]], sum(row["v"] >= limit for limit in rules.values())))
    return sorted(given)


@attrs.frozen
class Rate:
    """A row of a global table."""

    currency: str
    rate: float


RATES = keyed.MapState(str, Rate, name="rates")
COUNTRIES = keyed.MapState(name="countries")


class Convert(keyed.KeyedProcessFunction):
    """Tells the rate of each row's currency, and a row of another table, if there is one."""

    def process_element(self, value, ctx):
        rate = ctx.get_broadcast_state(RATES).get(value.currency)
        try:
            country = next(ctx.get_broadcast_state(COUNTRIES).values())
        except keyed.errors.StateAccessError:
            country = None
        yield value.user, None if rate is None else rate.rate, country


class CombinedColumns(CountColumns):
    """As its base, counting before the shuffle; late rows are dropped and counted."""

    def combine(self, table):
        times = table[TIMESTAMP_COLUMN].to_numpy()
        rows = pa.table([table["k"], pa.array(times - times % 100)], names=["k", "start"])
        counts = rows.group_by(["k", "start"], use_threads=False).aggregate([([], "count_all")])
        return counts.rename_columns(["k", "start", "n"])

    def process_batch(self, table, ctx):
        late = table["start"].to_numpy() + 99 <= ctx.current_watermark()
        ctx.drop(table["n"].to_numpy()[late].sum())
        self.counts.merge(table.filter(~late), {"n": "sum"})


def pair(left, right):
    """Return the row of a pair of elements (k, t, v) and (other, u, w)."""
    return left.k if left else right.other, left and left.v, right and right.w


class PairOnce:
    """As `pair`, in a worker that dies at the 20th pair, once."""

    def __init__(self, folder):
        self.folder = folder
        self.pairs = 0

    def __call__(self, left, right):
        self.pairs += 1
        flag = Path(self.folder) / "died"
        if self.pairs == 20 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return pair(left, right)


class _Grief:
    """The first attempt at one of the values below comes to grief."""

    RAISES, DIES = -101, -102

    def __init__(self, folder):
        self.folder = folder

    def meet(self, value):
        flag = Path(self.folder) / f"mishap{value}"
        if value in (self.RAISES, self.DIES) and not flag.exists():
            flag.touch()
            if value == self.DIES:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("mishap")


class Mishap(_Grief, CountInWindows):
    """As `CountInWindows`, with rows that come to grief."""

    def process_element(self, value, ctx):
        self.meet(value.v)
        super().process_element(value, ctx)


class MishapColumns(_Grief, CountColumns):
    """As `CountColumns`, with rows that come to grief."""

    def process_batch(self, table, ctx):
        self.meet(pc.min(table["v"]).as_py())
        super().process_batch(table, ctx)


class Lottery(keyed.KeyedProcessFunction):
    """Keeps a random number per key. The first attempt at a value of `RAISES` or below fails."""

    RAISES = -200
    drawn = keyed.ValueState(int)

    def __init__(self, folder):
        self.folder = folder

    def process_element(self, value, ctx):
        self.drawn.update(random.getrandbits(60))
        flag = Path(self.folder) / f"mishap{value.v}"
        if value.v <= self.RAISES and not flag.exists():
            flag.touch()
            raise RuntimeError("mishap")
        yield value.k, self.drawn.value()


class Best(keyed.KeyedProcessFunction):
    """The key with the highest count of each window, when all counts of the window have come."""

    counts = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        self.counts.put(value.k, value.n)
        ctx.timer_service().register_event_time_timer(value.start + 99)

    def on_timer(self, timestamp, ctx):
        best = max(self.counts.items(), key=lambda item: (item[1], item[0]))
        self.counts.clear()
        yield ctx.get_current_key(), *best


class BestColumns(VectorizedFunction):
    """As `Best`, whole columns at a time."""

    counts = TableState("start bigint, k string, n bigint", key=("start", "k"))

    def process_batch(self, table, ctx):
        self.counts.upsert(table)

    def on_watermark(self, watermark, ctx):
        ended = self.counts.take(("start", "<=", max(watermark, 0) - 99))
        ended = ended.sort_by([("start", "ascending"), ("n", "descending"), ("k", "descending")])
        starts = ended["start"].to_numpy()
        ctx.emit(ended.filter(np.diff(starts, prepend=-1) != 0))


class Remind(keyed.KeyedProcessFunction):
    """Emits every key once more, 300 ms of processing time after it came."""

    def process_element(self, value, ctx):
        service = ctx.timer_service()
        service.register_processing_time_timer(service.current_processing_time() + 300)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, ctx.timer_service().current_processing_time()


class Show(keyed.KeyedProcessFunction):
    """Emits what it gets, as text."""

    def process_element(self, value, ctx):
        yield repr(value), repr(ctx.get_current_key())


def random_rows(seed, count, start=0, disorder=0, keys="abcdefg"):
    """Return rows (k, t, v), a millisecond apart but for the disorder."""
    chance = random.Random(seed)
    return [
        (chance.choice(keys), start + i + chance.randint(-disorder, disorder), chance.randrange(100))
        for i in range(count)
    ]


def write_table(folder, number, table):
    """Write a table as one file of a source that takes one file a batch, in the order of the numbers."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f"_tmp-{number}"
    pq.write_table(table, hidden)
    os.utime(hidden, (1_600_000_000 + number,) * 2)
    hidden.rename(folder / f"part-{number:04d}.parquet")


def write_rows(folder, number, rows, schema):
    """Write tuples as one file of such a source."""
    write_table(folder, number, table_of_rows(rows, schema))


def table_of_rows(rows, schema):
    """Return tuples as a table."""
    columns = arrow_schema(schema_of(schema))
    return pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns)


def write_file(folder, number, rows):
    """Write rows (k, t, v) as one file of such a source."""
    write_rows(folder, number, rows, SCHEMA)


class CompactedMeanwhile(DirectoryChangelog):
    """A changelog whose job goes on and compacts it, into ``<path>-later``, at the moment when a worker reads it."""

    def reader(self, group):
        """See `DirectoryChangelog.reader`."""
        later = Path(f"{self.path}-later")
        if TaskContext.get() is not None and later.exists():
            shutil.rmtree(self.path)
            later.rename(self.path)
        return super().reader(group)


def files(spark, folder, schema=SCHEMA):
    """Return the files of a folder as a stream, one a batch."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def files_source(spark, folder, timestamp="t", **options):
    """A stream over such a folder, one file a batch."""
    return keyed.stream(files(spark, folder), timestamp=timestamp, **options)


def count(source, **options):
    """The chain with one stage."""
    return source.key_by("k").process(Count(), COUNTED, name="count", **options)


def best(source, function=None, then=None, by_stage=None, **options):
    """The chain with two stages: windows per key, then the best key of each window."""
    first, second = (options | (by_stage or {}).get(name, {}) for name in ("windows", "best"))
    windows = source.key_by("k").process(
        function or CountInWindows(), "k string, start bigint, n bigint", name="windows", **first
    )
    ranked = windows.key_by("start").process(then or Best(), "start bigint, k string, n bigint", name="best", **second)
    return windows, ranked


def expected_counts(rows):
    """The outputs of `Count` for rows in the order of their timestamps, as a sorted list."""
    seen: dict[str, tuple[int, int]] = {}
    emitted = []
    for key, _, value in sorted(rows, key=lambda row: row[1]):
        number, total = seen.get(key, (0, 0))
        seen[key] = (number + 1, total + value)
        emitted.append((key, *seen[key]))
    return sorted(emitted)


def parquet_rows(folder):
    """The rows of a Parquet sink as sorted tuples."""
    return sorted(tuple(row.values()) for row in pq.read_table(str(folder)).to_pylist())


class CountKeys(keyed.KeyedProcessFunction):
    """Counts, and with ``timers`` says so again when nothing has come for ten milliseconds."""

    n = keyed.ValueState(int, default=0)

    def __init__(self, timers=True):
        self.timers = timers

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + 1)
        if self.timers:
            ctx.timer_service().set_timer("quiet", ctx.timestamp() + 10)
        yield str(ctx.get_current_key()), self.n.value()

    def on_timer(self, timestamp, ctx):
        yield f"timer {ctx.get_current_key()}", self.n.value()


class Changes(keyed.KeyedProcessFunction):
    """Changes, stores and emits one list, and the list of its input."""

    seen = keyed.ValueState(list[int], default=[])
    named = keyed.MapState(str, list[int])

    def process_element(self, value, ctx):
        x = self.seen.value()
        x.append(value.n)
        self.seen.update(x)
        self.named["last"] = value.tags
        yield value.k, x
        x.append(-1)
        yield value.k, x
        value.tags.append(-2)
        for tags in self.named.values():
            yield value.k, tags
            tags.append(-3)


class Gathered(keyed.KeyedProcessFunction):
    """Keeps the lists that it gets, and changes them."""

    lists = inner_state(keyed.ValueState(), in_place=True)

    def process_element(self, value, ctx):
        lists = self.lists.value()
        if lists is None:
            lists = []
            self.lists.update(lists)
        lists.append(list(value.x))
        yield value.k, lists
        value.x.clear()


class Stamp(keyed.KeyedProcessFunction):
    """Emits each element with its timestamp; when the watermark reaches that, it says so with a row of −1."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(ctx.timestamp())
        yield value.k, value.v, ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), -1, timestamp


class CountOn(keyed.KeyedProcessFunction):
    """Goes on with counts and lists from elsewhere; a timer ends a key."""

    count = keyed.ValueState(int, default=0)
    items = keyed.ListState(str)
    prices = keyed.MapState(str, float)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + value.v)
        yield ctx.get_current_key(), self.count.value(), f"{self.items.get()} {dict(self.prices.items())}"

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, "timer"


class PlainCount(StatefulProcessor):
    """Counts per key with Spark's own API, and keeps the values in a list and a map."""

    def init(self, handle):
        self.count = handle.getValueState("count", "n bigint")
        self.items = handle.getListState("items", "item string")
        self.prices = handle.getMapState("prices", "item string", "price double")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803
        before = self.count.get()[0] if self.count.exists() else 0
        values = [int(value) for frame in rows for value in frame["v"]]
        self.count.update((before + sum(values),))
        for value in values:
            self.items.appendValue((f"item {value}",))
            self.prices.updateValue((f"item {value}",), (value / 2,))
        yield pd.DataFrame({"n": [before + sum(values)]})


async def upper(key):
    """Give the key in capitals; there is no C."""
    return None if key == "c" else (key.upper(), 1)


ODD = keyed.OutputTag("odd", SCHEMA)


class Split(keyed.KeyedProcessFunction):
    """Hands rows on; those with an odd value go to a side output."""

    def process_element(self, value, ctx):
        if value.v % 2:
            ctx.output(ODD, tuple(value))
        else:
            yield tuple(value)


class Running(keyed.KeyedProcessFunction):
    """The sum so far, also 10 ms after each element."""

    total = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.v)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield ctx.get_current_key(), ctx.timestamp(), self.total.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.total.value()


class LastSums(VectorizedFunction):
    """Sums per key, emitted with each batch that has rows, with the highest timestamp of those."""

    sums = TableState("k string, v bigint", key="k")

    def process_batch(self, table, ctx):
        self.sums.merge(table.select(["k", "v"]), {"v": "sum"})
        latest = table.group_by("k").aggregate([(TIMESTAMP_COLUMN, "max")]).rename_columns(["k", "t"])
        ctx.emit(self.sums.lookup(latest).append_column("t", latest.column("t")))


def branches(source, parallelism=2):
    """A graph: what `Split` gives is read by sinks and by two operators each."""
    first = source.key_by("k").process(Split(), SCHEMA, name="split")
    odd = first.side_output(ODD)
    given = {"output": SCHEMA, "parallelism": parallelism}
    return {
        "totals": first.key_by("k").process(LastSums(), name="totals", **given),
        "even": first.key_by("k").process(Running(), name="even", **given),
        "split": first,
        "odd": odd.key_by("k").process(Running(), name="odd", **given),
        "odd_totals": odd.key_by("k").process(LastSums(), name="odd_totals", **given),
        "raw": odd,
    }


class HandOn(keyed.KeyedProcessFunction):
    """Hands rows on, and the last one again 20 ms later; values above 90 also go to a side output as they are."""

    last = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.last.update(value.v)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 20)
        if value.v > 90:
            ctx.output(BIG, value)
        yield value.k, value.v

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.last.value()


class Moved(keyed.KeyedProcessFunction):
    """Hands rows on with another key."""

    def process_element(self, value, ctx):
        yield f"moved {value.k}", value.v
