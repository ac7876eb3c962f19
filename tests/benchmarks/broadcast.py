"""The cost of broadcast state: J1, and J1 that looks up one of 10,000 broadcast rules at each row, over the same rows.

python -m tests.benchmarks.broadcast [--rows 1000000] [--keys 100000] [--rules 10000] [--rounds 3]

In this process, by turns in one run; the figures are CPU-seconds per million rows, the rules included.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import keyed
from keyed import BroadcastContext, Context, KeyedBroadcastProcessFunction, MapState, ValueState
from tests.benchmarks.functions import J1, OUTPUT

RULES = MapState(int, int, name="rules")
BATCH = 100_000


class J1WithRules(KeyedBroadcastProcessFunction):
    """J1, with a factor that a rule gives for the amount of each event."""

    total = ValueState(tuple[int, int], default=(0, 0))

    def process_element(self, value: Any, ctx: Context) -> Iterator[tuple[str, int, int]]:
        """Add the event and emit."""
        count, amount = self.total.value()
        count += 1
        amount += value.amount * ctx.get_broadcast_state(RULES).get(value.rule, 1)
        self.total.update((count, amount))
        yield value.user_id, count, amount

    def process_broadcast_element(self, value: Any, ctx: BroadcastContext) -> None:
        """Keep the rule."""
        ctx.get_broadcast_state(RULES).put(value.rule, value.factor)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--rows", 1_000_000), ("--keys", 100_000), ("--rules", 10_000), ("--rounds", 3)):
        parser.add_argument(name, type=int, default=default)
    return parser


def main() -> None:
    """Measure and print."""
    asked = _parser().parse_args()
    chance = np.random.default_rng(1)
    columns: dict[str, Any] = {
        "user_id": np.char.add("u", chance.integers(0, asked.keys, asked.rows).astype("U")),
        "amount": chance.integers(0, 100, asked.rows),
        "rule": chance.integers(0, asked.rules, asked.rows),
    }
    events = pa.table({name: pa.array(values) for name, values in columns.items()})
    factors: dict[str, Any] = {"rule": np.arange(asked.rules), "factor": chance.integers(1, 9, asked.rules)}
    rules = pa.table({name: pa.array(values) for name, values in factors.items()})

    def plain() -> keyed.Output:
        return keyed.stream(events).key_by("user_id").process(J1(), OUTPUT)

    def with_rules() -> keyed.Output:
        broadcast = keyed.stream(rules).broadcast(RULES)
        return keyed.stream(events).key_by("user_id").connect(broadcast).process(J1WithRules(), OUTPUT)

    ratios = []
    for number in range(asked.rounds):
        costs = []
        for job in (plain, with_rules)[:: 1 if number % 2 else -1]:
            started = time.process_time()
            job().run(lambda values, batch: None, rows_per_batch=BATCH)
            costs.append((time.process_time() - started) * 1e6 / asked.rows)
        first, second = costs[:: 1 if number % 2 else -1]
        ratios.append(second / first)
        print(f"J1 {first:.2f}  with rules {second:.2f}  ratio {ratios[-1]:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}, goal at most 1.2")


if __name__ == "__main__":
    main()
