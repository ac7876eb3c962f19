"""Requests to an object store for each batch of a query on Spark: ``python -m tests.benchmarks.requests``.

The query counts rows by key. Its changelog is in the small S3 server of the tests, which counts the requests; its
checkpoint is in a folder. The first batches and the end of the query, which also create and flush, are not counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keyed
from keyed.changelog import ObjectStoreChangelog
from tests.keyed.runtimes.spark.functions import count, files_source, write_file
from tests.support.s3 import s3_server

#: Batches before those that are counted.
_FIRST = 2


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser(prog="python -m tests.benchmarks.requests", description=__doc__)
    made.add_argument("--groups", default="2,8", help="numbers of key groups, separated by commas")
    made.add_argument("--batches", type=int, default=10, help="batches that are counted")
    return made


def measured(session: Any, groups: int, batches: int, interval_ms: int) -> Counter[str]:
    """Return the requests of some batches of a query with so many key groups, by kind."""
    seen: list[Counter[str]] = []
    with s3_server() as server, tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(batches + _FIRST + 1):
            rows = [(f"key {n}", 1000 * number + n, n % 90) for n in range(20 * groups)]
            write_file(folder / "in", number, rows)
        changelog = ObjectStoreChangelog(
            "s3://bucket/log", server.options, export_interval=interval_ms, auto_compact=False
        )

        def counting(frame: Any, _batch: int) -> None:
            # A batch exports the one before it.
            frame.collect()
            seen.append(server.requests.copy())

        counted = count(files_source(session, folder / "in"), parallelism=groups, changelog=changelog)
        counted.run(counting, checkpoint=folder / "ck")
    return seen[_FIRST + batches] - seen[_FIRST]


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a table."""
    given = _parser().parse_args(arguments)
    session = keyed.spark_session("requests", master="local[2]", config={"spark.ui.enabled": "false"})
    print("| key groups | export interval | PUT | LIST | GET | HEAD |", "|--:|--:|--:|--:|--:|--:|", sep="\n")
    for groups in map(int, given.groups.split(",")):
        for name, interval in (("none", 0), ("1 h", 3_600_000)):
            found = measured(session, groups, given.batches, interval)
            cells = [f"{found[kind] / given.batches:g}" for kind in ("PUT", "LIST", "GET", "HEAD")]
            print(f"| {groups} | {name} | {' | '.join(cells)} |", flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
