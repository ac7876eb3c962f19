"""The age of an event when a subscriber of a state table gets it: ``python -m tests.benchmarks.freshness``.

A Spark query with a trigger of a second reads events as they come, a follower in a process of its own keeps a table
level with the query's directory changelog, and a subscription there takes the changes. Each event is told from its
sending to its push. With ``--sql`` the changes are those of a push query.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.job.state import ValueState
from keyed.tables.state_tables import open_tables

#: Seconds before events count: the first batches are slow.
_WARM = 15.0


class Latest(keyed.KeyedProcessFunction):
    """Keeps when an event was sent."""

    sent = ValueState(int)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        """Keep it."""
        self.sent.update(value.sent)
        return iter(())


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    spark = keyed.spark_session("freshness", master="local[2]", parallelism=2)
    for what, times in zip(_WHAT, _times(spark, options), strict=True):
        times.sort()
        shown = ", ".join(f"p{at} {times[len(times) * at // 100]:.2f} s" for at in (1, 50, 99))
        print(f"{what}: {shown} ({len(times):,})", flush=True)
    spark.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.freshness", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long events count (60)")
    parser.add_argument("--rate", type=int, default=50, help="events a second (50)")
    parser.add_argument("--sql", action="store_true", help="with a push query in place of a subscription")
    return parser


_WHAT = ("event to commit", "event to push", "batch", "commit to push")


def _times(spark: Any, options: argparse.Namespace) -> tuple[list[float], ...]:
    """Seconds from each event's sending to its commit and its push, of each batch, and from commit to push."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="keyed-freshness-") as name, _events(options.rate) as port:
        folder = Path(name)
        changelog = DirectoryChangelog(folder / "log")
        source = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
        columns = source.selectExpr("split(value, ' ')[0] AS key", "CAST(split(value, ' ')[1] AS long) AS sent")
        latest = keyed.stream(columns).key_by("key").process(Latest(), "key string", name="latest", changelog=changelog)
        query: Any = latest.start(
            lambda batch, number: batch.count(), checkpoint=folder / "checkpoint", trigger="1 second"
        )
        seconds = _WARM + options.seconds
        follower = context.Process(
            target=_follow, args=(changelog, str(folder / "tables"), seconds, send, options.sql), daemon=True
        )
        try:
            while changelog.header() is None:
                query.await_termination(0.1)
            follower.start()
            while not receive.poll(0.5):
                query.await_termination(0.1)
            found = receive.recv()
            commits = {int(path.name): path.stat().st_mtime for path in (folder / "checkpoint/commits").glob("[0-9]*")}
            reports = [report for report in query.query.recentProgress if "addBatch" in report["durationMs"]]
            return (
                [commits[batch - 1] - sent for sent, _, batch in found if batch - 1 in commits],
                [pushed - sent for sent, pushed, _ in found],
                [report["durationMs"]["triggerExecution"] / 1000 for report in reports[len(reports) // 4 :]],
                [pushed - commits[batch - 1] for _, pushed, batch in found if batch - 1 in commits],
            )
        finally:
            query.stop()
            if follower.pid is not None:
                follower.kill()
                follower.join()


@contextmanager
def _events(rate: int) -> Iterator[int]:
    """Send events to whoever connects: a key, and the nanosecond at which it was sent. Gives the port."""
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        number, start = 0, time.monotonic()
        with connection, suppress(OSError):
            while not ended.wait(max(0.0, start + number / rate - time.monotonic())):
                number += 1
                connection.sendall(f"key{number} {time.time_ns()}\n".encode())

    def accept() -> None:
        # Spark's source connects once to look, and once to read.
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        ended.set()


def _follow(changelog: Any, folder: str, seconds: float, send: Any, is_sql: bool) -> None:
    """Subscribe to the table, and send the age of each change when it came."""
    with open_tables(changelog, folder) as tables:
        tables.start(every=0.05).wait_for(0, 120)
        changes: Any = tables["sent"].subscribe(after="now")
        if is_sql:
            query = "SELECT key, value AS sent FROM sent WHERE value > 0 EMIT CHANGES"
            changes = keyed.sql.subscribe(tables, query, after="now")
        end = time.monotonic() + seconds
        found: list[tuple[float, float, int]] = []
        while time.monotonic() < end:
            taken = changes.take(1.0)
            if time.monotonic() > end - seconds + _WARM:
                now = time.time()
                sent = (change.row["SENT"] if is_sql else change.new for change in taken)
                found += [(each / 1e9, now, change.batch) for each, change in zip(sent, taken, strict=True)]
        send.send(found)


if __name__ == "__main__":
    main()
