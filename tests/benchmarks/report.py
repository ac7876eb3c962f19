"""Figures of a run as a Markdown table, and the goals beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

import attrs

from tests.benchmarks.meter import Cpu
from tests.support.data_files import read_data

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


def goals(figures: Mapping[str, Figures]) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the goals for which there are figures, with what was measured.

    A goal of `goals.json` bounds the CPU-seconds per million rows of the cheapest of its variants over those of another
    one; ``seconds`` are those that a batch takes longer than one of the other. The goals of the local runtime are
    absolute on the machine where they were set (``scaled``); the pass-through tells how fast this one is.
    """
    for goal in read_data("benchmarks/goals.json"):
        runs = [figures[name] for name in goal["cost"] if name in figures]
        base = figures.get(goal["over"])
        if base is None or not runs:
            continue
        ratio = min(run.per_million.total for run in runs) / base.per_million.total
        value = {"seconds": runs[0].wall - base.wall, "scaled": ratio * _PASS_THERE}.get(goal.get("figure"), ratio)
        yield goal, value


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
        for goal, value in reached:
            sign, bound = "≥" if goal.get("at_least") else "≤", goal["bound"]
            is_met = value >= bound if sign == "≥" else value <= bound
            lines.append(f"| {goal['what']} | {value:.2f} | {sign} {bound:g} | {'met' if is_met else '**missed**'} |")
    return "\n".join(lines)
