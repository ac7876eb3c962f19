"""A function that does what its elements say, so that one query on Spark runs many random functions."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa

from keyed import KeyedProcessFunction, ListState, MapState, OutputTag, StateTtl, TimeDomain, ValueState

SIDE = OutputTag("side", "k string, shown string")
INPUT = "k string, t bigint, ops string"
OUTPUT = "k string, shown string"


class Scripted(KeyedProcessFunction):
    """Each element carries a list of operations as JSON; a timer runs the operations that its key has kept for it."""

    value = ValueState(int, default=0)
    values = ListState(int)
    table = MapState(str, int)
    fading = ValueState(int, default=-1, ttl=StateTtl(milliseconds=40, time_domain=TimeDomain.EVENT_TIME))
    script = ValueState(list[list[str | int]], default=[])

    def process_element(self, value: Any, ctx: Any) -> Any:
        operations = json.loads(value.ops)
        self.script.update(operations)
        yield value.k, json.dumps(["element", ctx.timestamp(), ctx.is_late()])
        yield from self.run(value.k, operations, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        yield (
            key,
            json.dumps(["timer", timestamp, ctx.timer_name(), ctx.timer_service().current_watermark() >= timestamp]),
        )
        yield from self.run(key, [op for op in self.script.value() if op[0] not in ("timer", "named")], ctx)

    def run(self, key: str, operations: list[list[Any]], ctx: Any) -> Any:
        service = ctx.timer_service()
        for call, number in operations:
            if call == "value":
                self.value.update(self.value.value() + number)
            elif call == "window":
                state = self.value.namespace((number, number + 10))
                state.update(state.value() + 1)
                yield key, json.dumps([call, state.value(), self.value.value()])
            elif call == "append":
                self.values.add(number)
                yield key, json.dumps([call, self.values.get()])
            elif call == "clear":
                self.values.clear()
                self.table.clear()
            elif call == "put":
                self.table[f"m{number}"] = number
                yield key, json.dumps([call, list(self.table.items())])
            elif call == "fade":
                yield key, json.dumps([call, self.fading.value()])
                self.fading.update(number)
            elif call == "timer":
                service.register_event_time_timer((ctx.timestamp() or 0) + number)
            elif call == "named":
                service.set_timer(f"n{number % 3}", (ctx.timestamp() or 0) + number)
            elif call == "side":
                ctx.output(SIDE, (key, json.dumps([call, self.value.value()])))


def batches(seed: int, count: int, size: int) -> list[pa.Table]:
    """Random rows of ``INPUT`` in tables, in mild disorder. The same seed makes the same rows."""
    chance = Random(seed)
    calls = ["value", "window", "append", "put", "fade", "timer", "named", "side", "value", "append", "clear"]
    rows = []
    for position in range(count * size):
        operations = [[chance.choice(calls), chance.randrange(1, 60)] for _ in range(chance.randrange(4))]
        time = max(0, position + chance.randint(-25, 5))
        rows.append({"k": f"k{chance.randrange(12)}", "t": time, "ops": json.dumps(operations)})
    return [pa.Table.from_pylist(rows[start : start + size]) for start in range(0, len(rows), size)]
