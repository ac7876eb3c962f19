"""The cost of a batch for sinks that Spark's driver writes: ``python -m tests.benchmarks.sinks``.

Kafka and PostgreSQL are servers of its own, as in the tests. The rows, a text and a number, are computed and cached
before. CPU time and memory are those of the driver's Python process with the threads of its clients.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import keyed
from keyed.arrow.write import arrow_schema
from keyed.base.schemas import Schema, parse_ddl
from keyed.destinations.parquet import parquet_sink
from keyed.destinations.sink import Owner, Sink
from keyed.postgres import postgres_sink
from keyed.runtimes.spark.query.spark_sinks import FrameBatch, SparkRuntime
from keyed.topics import KafkaSink
from tests.keyed.changelog.kafka import topics
from tests.support.kafka import Broker
from tests.support.postgres import PASSWORD, binaries, postgres_server

_ROWS, _BATCHES = 1_000_000, 3
_SCHEMA = Schema(parse_ddl("key string, count bigint"))


@contextmanager
def _sinks() -> Iterator[dict[str, Sink]]:
    """Start the servers, and return the sinks."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        broker = Broker(folder / "kafka")
        broker.start()
        stack.callback(broker.stop)
        topics.create(broker.bootstrap, "counts", 4)
        sinks: dict[str, Sink] = {
            "parquet_sink, by tasks": parquet_sink(folder / "written"),
            "KafkaSink": KafkaSink("counts", bootstrap=broker.bootstrap, key="key"),
        }
        programs = binaries()
        if programs is not None:
            os.environ["PGPASSWORD"] = PASSWORD
            conninfo = stack.enter_context(postgres_server(programs))
            sinks["postgres_sink"] = postgres_sink("counts", key="key", conninfo=conninfo)
        yield sinks


def _peak_mb() -> int:
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def main() -> None:
    """Measure and print."""
    print("| sink | driver's CPU-s for a million rows | rows a second | MB |\n|---|--:|--:|--:|")
    session = keyed.spark_session("sinks", master="local[2]", parallelism=2)
    with _sinks() as sinks:
        frame = session.range(_ROWS).selectExpr("concat('key ', id) AS key", "id AS count").cache()
        frame.count()
        for name, sink in sinks.items():
            writer = sink.open_on_spark(Owner(["query"]), _SCHEMA, SparkRuntime.of(session))
            writer.claim()
            writer.prepare(arrow_schema(_SCHEMA))
            costs = []
            Path("/proc/self/clear_refs").write_text("5")
            before = _peak_mb()
            for batch_id in range(_BATCHES):
                batch, cpu, began = FrameBatch(frame), time.process_time(), time.monotonic()
                records = writer.pack(batch)
                writer.write(batch if records is None else records, batch_id)
                costs.append((time.process_time() - cpu, time.monotonic() - began))
                del batch, records
            cpu, seconds = min(cpu for cpu, _ in costs), min(seconds for _, seconds in costs)
            rate = _ROWS / seconds
            print(f"| {name} | {cpu / _ROWS * 1e6:.1f} | {rate:,.0f} | {_peak_mb() - before} |", flush=True)
            writer.close()
    session.stop()


if __name__ == "__main__":
    main()
