"""Figures of a run as a Markdown table, and the goals beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import mean

import attrs

from tests.benchmarks.meter import Cpu
from tests.benchmarks.variants import LOGGED_JOBS

#: What the pass-through takes on the machine on which the goals of the local runtime were set, CPU-seconds per million.
_PASS_THERE = 1.05


@attrs.frozen
class Figures:
    """Figures of one variant, in steady state.

    Attributes:
        name: The variant.
        rows: Rows a batch.
        batches: Batches measured.
        cpu: CPU-seconds a batch.
        wall: Seconds a batch.
        peak_bytes: Highest resident memory of all processes together.
        spread: Least and most CPU-seconds of a batch.
    """

    name: str
    rows: float
    batches: int
    cpu: Cpu
    wall: float
    peak_bytes: int
    spread: tuple[float, float]

    @property
    def per_million(self) -> Cpu:
        """CPU-seconds per million rows."""
        return self.cpu / (self.rows / 1e6)


def merge(runs: Sequence[Figures]) -> Figures:
    """Several runs of one variant as one."""
    return Figures(
        name=runs[0].name,
        rows=runs[0].rows,
        batches=sum(run.batches for run in runs),
        cpu=Cpu(
            mean(run.cpu.jvm for run in runs),
            mean(run.cpu.workers for run in runs),
            mean(run.cpu.driver for run in runs),
        ),
        wall=mean(run.wall for run in runs),
        peak_bytes=max(run.peak_bytes for run in runs),
        spread=(min(run.spread[0] for run in runs), max(run.spread[1] for run in runs)),
    )


@attrs.frozen
class Goal:
    """A goal of the project and what was measured.

    Attributes:
        what: What is compared.
        value: What was measured.
        bound: The goal.
        at_least: Whether the goal is a least value rather than a highest.
    """

    what: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """True if the goal is met."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def goals(figures: Mapping[str, Figures]) -> Iterator[Goal]:
    """The goals for which there are figures."""

    def cost(name: str) -> float:
        return figures[name].per_million.total

    def have(*names: str) -> bool:
        return all(name in figures for name in names)

    for job, keys, bound in (("J1", "1k", 3.0), ("J1", "100k", 4.0), ("J2", "1k", 3.0), ("J2", "100k", 6.0)):
        memory, rocksdb, base = f"{job}-memory-{keys}", f"{job}-rocksdb-{keys}", f"pass-{keys}"
        if have(memory, base):
            yield Goal(f"{memory}: times the pass-through", cost(memory) / cost(base), bound)
        if have(memory, rocksdb):
            yield Goal(f"{rocksdb}: times the memory store", cost(rocksdb) / cost(memory), 1.3)
    for engine, keys in product(("memory", "local"), ("1k", "100k")):
        if have(base := f"J1-{engine}-{keys}", name := f"J1-connected-{engine}-{keys}"):
            yield Goal(f"{name}: times the same rows as one stream", cost(name) / cost(base), 1.2)
    for where in ("memory", "local"):
        for keys in ("1k", "100k"):
            if have(f"J1-{where}-{keys}", name := f"twice-chained-{where}-{keys}"):
                yield Goal(f"{name}: times one of J1", cost(name) / cost(f"J1-{where}-{keys}"), 1.5)
    for job in LOGGED_JOBS:
        for keys in ("1k", "100k"):
            base = f"{job}-memory-{keys}"
            for kind, bound in (("directory", 1.25), ("kafka", 1.5)):
                if have(base, name := f"{job}-{kind}-{keys}"):
                    yield Goal(f"{name}: times the same without a changelog", cost(name) / cost(base), bound)
    bounds = (("tumbling", "1k", 1.5), ("tumbling", "100k", 2.2), ("hopping", "100k", 3.0), ("session", "100k", 3.0))
    for job, keys, bound in bounds:
        name, peer = f"J3-{job}-memory-{keys}", f"jvm-J3-{job}-{keys}"
        if have(name, f"pass-{keys}"):
            yield Goal(f"{name}: times the pass-through", cost(name) / cost(f"pass-{keys}"), bound)
        if have(name, peer) and keys == "100k":
            yield Goal(f"{name}: times less than Spark's own", cost(peer) / cost(name), 6.0, at_least=True)
    for keys, bound in (("1k", 2.5), ("100k", 13.0), ("small", 10.0)):
        raws = [name for name in (f"raw-pandas-{keys}", f"raw-rows-{keys}") if have(name)]
        if raws and have(f"J1-memory-{keys}"):
            better = min(map(cost, raws))
            ratio = better / cost(f"J1-memory-{keys}")
            yield Goal(f"J1-memory-{keys}: times less than the better raw variant", ratio, bound, at_least=True)
    for store in ("memory", "rocksdb"):
        small, large = f"J1-{store}-state-10k", f"J1-{store}-state-1m"
        if have(small, large):
            ratio = figures[large].cpu.total / figures[small].cpu.total
            yield Goal(f"{large}: times the same with 10k keys in state", ratio, 1.3)
    for store in ("memory", "rocksdb"):
        if have(f"J1-{store}-thousand", "pass-thousand"):
            more = figures[f"J1-{store}-thousand"].wall - figures["pass-thousand"].wall
            yield Goal(f"J1-{store}-thousand: seconds a batch above a stateless batch", more, 0.3)
    for job, keys, bound in (("J1", "1k", 2.0), ("J1", "100k", 4.0), ("J2", "1k", 2.0), ("J2", "100k", 6.0)):
        if have(f"{job}-local-{keys}", f"pass-{keys}"):
            # The goal is absolute on the machine where it was set; the pass-through says how fast this one is.
            scaled = cost(f"{job}-local-{keys}") * _PASS_THERE / cost(f"pass-{keys}")
            yield Goal(f"{job}-local-{keys}: CPU-s per million where the pass-through takes 1.05", scaled, bound)


def markdown(figures: Mapping[str, Figures]) -> str:
    """The report."""
    heads = [
        *("variant", "CPU-s per million rows", "JVM", "workers", "driver", "× pass", "× less than raw", "rows a batch"),
        *("CPU-s a batch (least–most)", "s a batch", "peak memory"),
    ]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, run in figures.items():
        keys = name.rpartition("-")[2]
        cost = run.per_million
        base = figures.get(f"pass-{keys}")
        raws = [figures[raw].per_million.total for raw in (f"raw-pandas-{keys}", f"raw-rows-{keys}") if raw in figures]
        times = f"{cost.total / base.per_million.total:.2f}" if base else ""
        less = f"{min(raws) / cost.total:.1f}" if raws and name.startswith("J") else ""
        lines.append(
            f"| {name} | {cost.total:.2f} | {cost.jvm:.2f} | {cost.workers:.2f} | {cost.driver:.2f} | {times} | {less} "
            f"| {run.rows:,.0f} | {run.cpu.total:.2f} ({run.spread[0]:.2f}–{run.spread[1]:.2f}) | {run.wall:.2f} "
            f"| {run.peak_bytes / 2**20:,.0f} MiB |"
        )
    reached = list(goals(figures))
    if reached:
        lines += ["", "| goal | measured | bound | |", "|---|---|---|---|"]
        for goal in reached:
            sign = "≥" if goal.at_least else "≤"
            lines.append(
                f"| {goal.what} | {goal.value:.2f} | {sign} {goal.bound:g} | {'met' if goal.met else '**missed**'} |"
            )
    return "\n".join(lines)
