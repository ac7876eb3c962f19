"""The time from a row to its result, in the local runtime: ``python -m tests.benchmarks.latency``, three minutes.

Rows come at a fixed rate, with the time at which they were due. A keyed count emits each, and a sink takes the time
again: in-process with a synced checkpoint, and from topic to topic, exactly once, with a Kafka broker of its own. The
rows of the first seconds do not count. Prints p50 and p99 in milliseconds and the cores of the process, also without
rows. From topic to topic, also prints the part of these times until the broker has the row of the benchmark's producer.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import keyed
from tests.keyed.changelog.kafka import topics
from tests.support.kafka import Broker

#: Seconds before rows count, and for which they do.
_WARM, _SECONDS = 3.0, 10.0
#: Rows a second, 0 for none.
_RATES = (0, 200, 1000, 2000, 5000, 10_000)
_KEYS = 100
_OUTPUT = "k string, n bigint, due bigint"


class Count(keyed.KeyedProcessFunction):
    """Counts the rows of a key."""

    n = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        """Emit the count with the time at which the row was due."""
        self.n.update(self.n.value() + 1)
        yield value.k, self.n.value(), value.due


def main() -> None:
    """Measure and print."""
    # So that the broker and the folder go.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    print(f"{'':>22}{'rate':>8}{'p50 ms':>9}{'p99 ms':>9}{'cores':>8}{'sent p50':>10}{'p99':>9}", flush=True)
    with tempfile.TemporaryDirectory(prefix="keyed-latency-") as folder:
        broker = Broker(Path(folder) / "broker")
        broker.start()
        try:
            for what, rate in product(("in-process", "Kafka to Kafka"), _RATES):
                job, sent = Path(folder) / f"{what.replace(' ', '-')}-{rate}", list[float]()
                if what == "in-process":
                    ages, cores = _in_process(job, rate, _SECONDS)
                else:
                    ages, sent, cores = _kafka(broker.bootstrap, job, rate, _SECONDS)
                print(f"{what:>22}{rate:>8}{_shown(ages)}{cores:8.3f} {_shown(sent)}".rstrip(), flush=True)
        finally:
            broker.stop()


def _shown(ages: list[float]) -> str:
    ages.sort()
    return "".join(f"{ages[len(ages) * at // 100]:9.1f}" if ages else f"{'':>9}" for at in (50, 99))


def _due(rate: int, ended: Callable[[], bool]) -> Iterator[dict[str, Any] | None]:
    """Yield rows when they are due; ``None`` where the next one is not due yet, at most a tenth of a second apart."""
    number, start = 0, time.time_ns()
    while not ended():
        due = start + number * 1_000_000_000 // rate if rate else time.time_ns() + 100_000_000
        wait = (due - time.time_ns()) / 1e9
        if wait > 0:
            yield None
            time.sleep(min(wait, 0.1))
        elif rate:
            yield {"k": f"k{number % _KEYS}", "due": due}
            number += 1


@contextmanager
def _cores(seconds: float) -> Iterator[list[float]]:
    """Measure the cores of this process after the warm-up."""
    found: list[float] = []

    def measure() -> None:
        time.sleep(_WARM)
        before = time.process_time()
        time.sleep(seconds)
        found.append((time.process_time() - before) / seconds)

    thread = threading.Thread(target=measure, daemon=True)
    thread.start()
    yield found
    thread.join()


def _in_process(folder: Path, rate: int, seconds: float) -> tuple[list[float], float]:
    until = time.monotonic() + _WARM + seconds
    counts_from = time.time_ns() + int(_WARM * 1e9)
    ages: list[float] = []

    def take(rows: list[Any], _: int) -> None:
        now = time.time_ns()
        ages.extend((now - row.due) / 1e6 for row in rows if row.due >= counts_from)

    rows = (keyed.PAUSE if row is None else row for row in _due(rate, lambda: time.monotonic() > until))
    with _cores(seconds) as cores:
        keyed.stream(rows).key_by("k").process(Count(), _OUTPUT).run(take, checkpoint=folder)
    return ages, cores[0]


def _kafka(bootstrap: str, folder: Path, rate: int, seconds: float) -> tuple[list[float], list[float], float]:
    from_topic, to_topic = f"{folder.name}-in", f"{folder.name}-out"
    for topic in (from_topic, to_topic):
        topics.create(bootstrap, topic, 1)
    source = keyed.KafkaSource(from_topic, bootstrap=bootstrap, value=keyed.topics.Json())
    sink = keyed.topics.KafkaSink(to_topic, bootstrap=bootstrap, key="k", transactional_id=folder.name)
    query = keyed.stream(source).key_by("k").process(Count(), _OUTPUT).start(sink, checkpoint=folder)
    # The producer and the consumer of the results are a process of their own.
    arguments = [bootstrap, from_topic, to_topic, str(rate), str(seconds)]
    with _cores(seconds) as cores:
        found = subprocess.run(
            [sys.executable, "-c", "from tests.benchmarks.latency import _ends; _ends()", *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
    query.stop()
    query.await_termination()
    ages, sent = (list(map(float, line.split())) for line in found.stdout.split("\n")[:2])
    return ages, sent, cores[0]


def _ends() -> None:
    """Produce rows and consume the results of committed transactions.

    Prints the ages of the results in milliseconds, and in another line those of the rows when the broker had them.
    """
    import confluent_kafka as ck
    import msgspec

    bootstrap, from_topic, to_topic, rate, seconds = sys.argv[1:]
    until = time.monotonic() + _WARM + float(seconds)
    counts_from = time.time_ns() + int(_WARM * 1e9)

    sent = received = 0
    ages: list[float] = []
    sent_ages: list[float] = []

    def age_of(message: Any) -> Iterator[float]:
        due = msgspec.json.decode(message.value() or b"")["due"]
        if due >= counts_from:
            yield (time.time_ns() - due) / 1e6

    def produce() -> None:
        nonlocal sent
        # A request for each record, as without lingering, is more than a broker on this machine takes.
        producer = ck.Producer({"bootstrap.servers": bootstrap, "linger.ms": 2})
        for row in _due(int(rate), lambda: time.monotonic() > until):
            producer.poll(0)
            if row is not None:
                value = msgspec.json.encode(row)
                producer.produce(from_topic, value, row["k"], on_delivery=lambda _, m: sent_ages.extend(age_of(m)))
                sent += 1
        producer.flush()

    settings = {"group.id": "ends", "isolation.level": "read_committed", "fetch.wait.max.ms": 5}
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **settings})
    consumer.assign([ck.TopicPartition(to_topic, 0, 0)])
    thread = threading.Thread(target=produce)
    thread.start()
    # An overloaded machine has results later, and does not leave them out.
    while time.monotonic() < until or thread.is_alive() or (received < sent and time.monotonic() < until + 60):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            received += 1
            ages.extend(age_of(message))
    thread.join()
    consumer.close()
    print(*ages)
    print(*sent_ages)


if __name__ == "__main__":
    main()
