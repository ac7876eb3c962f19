# mypy: ignore-errors
# Bytewax is in an environment of its own.
"""The programs of `tests.benchmarks.versus_bytewax` in Bytewax, as its documentation writes them.

Run by the Python of an environment that has Bytewax: ``python bytewax_flow.py JOB FILE``. It prints
the CPU-seconds from reading the file to the last output, the outputs and a sum over them.
"""

import sys
import time

import bytewax.operators as op
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

#: Larger ones cost more.
_BATCH = 1_000
_MINUTE = 60_000
_DELAY = 10_000
found = [0, 0]


class _Rows(StatefulSourcePartition):
    """The rows of the file as (key, (milliseconds, amount))."""

    def __init__(self, file, resumed):
        self._at = resumed or 0
        self._batches = self._read(file)

    def _read(self, file):
        table = pq.read_table(file)
        for start in range(0, table.num_rows, _BATCH):
            part = table.slice(start, _BATCH)
            times = (part.column("ts").cast("int64").to_numpy() // 1000).tolist()
            amounts = part.column("amount").to_numpy().tolist()
            yield list(zip(part.column("user_id").to_pylist(), zip(times, amounts, strict=True), strict=True))

    def next_batch(self):
        batch = next(self._batches)
        self._at += len(batch)
        return batch

    def snapshot(self):
        return self._at


class _File(FixedPartitionedSource):
    def __init__(self, file):
        self._file = file

    def list_parts(self):
        return ["file"]

    def build_part(self, step_id, for_part, resume_state):
        return _Rows(self._file, resume_state)


class _CountingPart(StatelessSinkPartition):
    def write_batch(self, items):
        found[0] += len(items)
        found[1] += sum(n for _, (*_, n, _) in items)


class _Counting(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return _CountingPart()


def count(state, value):
    """Counter: a row out per event."""
    n, total = state or (0, 0)
    state = n + 1, total + value[1]
    return state, state


class Minutes(StatefulLogic):
    """Windows of a minute by hand, which close 10 seconds behind the key's latest time."""

    def __init__(self, state):
        self.windows, self.latest = state or ({}, 0)
        self.first = min(self.windows, default=None)

    def on_item(self, value):
        time, amount = value
        start = time - time % _MINUTE
        n, total = self.windows.get(start, (0, 0))
        self.windows[start] = n + 1, total + amount
        if not n and (self.first is None or start < self.first):
            self.first = start
        out = ()
        if time > self.latest:
            self.latest = time
            if self.first + _MINUTE + _DELAY <= time:
                out = self._close(time - _DELAY)
        return out, not self.windows

    def on_eof(self):
        return self._close(1 << 62), True

    def _close(self, watermark):
        closed = [start for start in sorted(self.windows) if start + _MINUTE <= watermark]
        out = [(start, *self.windows.pop(start)) for start in closed]
        self.first = min(self.windows, default=None)
        return out

    def snapshot(self):
        return dict(self.windows), self.latest


def flow_of(job, file):
    """The flow of a job."""
    flow = Dataflow("bench")
    rows = op.input("rows", flow, _File(file))
    out = op.stateful_map("count", rows, count) if job == "counter" else op.stateful("minutes", rows, Minutes)
    op.output("out", out, _Counting())
    return flow


if __name__ == "__main__":
    flow = flow_of(*sys.argv[1:])
    started = time.process_time()
    run_main(flow)
    print(time.process_time() - started, *found)
