"""The cost of a changelog in Kafka: ``python -m tests.benchmarks.kafka`` prints a table in half a minute.

It starts a broker of its own, as the tests do, and writes and reads the log of one key group: large commits of 100,000
entries, small ones of 10, each entry with a key of about ten characters and a value of 16 random bytes. CPU time is
that of this process with the threads of its clients; the broker's is not in it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

import attrs

from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.model import ChangelogWriter, Commit
from keyed.codec.keys import encode_key
from keyed.content.addresses import PLAIN, state_prefix
from tests.support.kafka import Broker

LARGE, LARGE_ENTRIES, SMALL, SMALL_ENTRIES = 8, 100_000, 200, 10
_NAMESPACE = encode_key(None)
_NUMBER = Random(1)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder))
        seconds, _ = _measured(broker.start)
        try:
            rows = _run(KafkaChangelog("bench", bootstrap=broker.bootstrap), Path(folder) / "data" / "bench-0")
        finally:
            broker.stop()
    for name, value in [("s to start a broker", f"{seconds:.1f}"), *rows]:
        print(f"{name:42} {value:>12}")


def _run(changelog: KafkaChangelog, partition: Path) -> list[tuple[str, str]]:
    changelog.prepare("totals", 1)
    writer, commit = changelog.writer(0), Commit(
        log_id="", group=0, sequence=0, attempt="", source_log="bench", entries=0, hash="", watermark=0,
        processing_time=0, states={},
    )  # fmt: skip
    large: list[tuple[float, float]] = []
    small: list[tuple[float, float]] = []
    for costs, count, entries in ((large, LARGE, LARGE_ENTRIES), (small, SMALL, SMALL_ENTRIES)):
        for _ in range(count):
            commit, cost = _append(writer, commit, entries)
            costs.append(cost)
    size = sum(segment.stat().st_size for segment in partition.glob("*.log"))
    opened = median(_measured(lambda: changelog.writer(0))[0] for _ in range(5))
    reader, records = changelog.reader(0), LARGE * LARGE_ENTRIES
    read, read_cpu = _measured(lambda: [list(blocks) for _, blocks in reader.commits(0, LARGE)])
    waits = sorted(seconds for seconds, _ in small)
    return [
        ("entries a second, written", f"{LARGE_ENTRIES / median(seconds for seconds, _ in large):,.0f}"),
        ("CPU µs an entry, written", f"{median(cpu for _, cpu in large) / LARGE_ENTRIES * 1e6:.2f}"),
        ("ms a commit of 10 entries, median", f"{waits[SMALL // 2] * 1e3:.1f}"),
        ("ms a commit of 10 entries, 95 of 100", f"{waits[SMALL * 95 // 100] * 1e3:.1f}"),
        ("CPU ms a commit of 10 entries", f"{sum(cpu for _, cpu in small) / SMALL * 1e3:.2f}"),
        ("ms to open a writer", f"{opened * 1e3:.0f}"),
        ("entries a second, read", f"{records / read:,.0f}"),
        ("CPU µs an entry, read", f"{read_cpu / records * 1e6:.2f}"),
        ("bytes an entry in the topic", f"{size / (records + SMALL * SMALL_ENTRIES):.0f}"),
    ]


def _append(writer: ChangelogWriter, last: Commit, count: int) -> tuple[Commit, tuple[float, float]]:
    """Append a commit, and what that cost."""
    keys = (encode_key(f"user-{number:06}") for number in range(count))
    changes = [(state_prefix(PLAIN, 1, key, _NAMESPACE), b"", _NUMBER.randbytes(16)) for key in keys]
    attempt = f"{_NUMBER.getrandbits(128):032x}"
    commit = attrs.evolve(last, sequence=last.sequence + 1, attempt=attempt, previous=last.attempt)
    return commit, _measured(lambda: writer.append(commit, [[*changes]]))


def _measured(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds and CPU-seconds of a call."""
    started, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - started, time.process_time() - cpu


if __name__ == "__main__":
    main()
