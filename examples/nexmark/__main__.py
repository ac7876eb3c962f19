"""The command line of the Nexmark programs: ``python -m examples.nexmark``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.nexmark.catalog import QUERIES, run
from examples.nexmark.generator import Generator
from examples.nexmark.nexmark_errors import NexmarkError
from keyed.errors import CheckpointError, SessionError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.command == "generate":
            Generator(chosen.events, chosen.rate, chosen.seed, chosen.disorder_ms).write(chosen.output, chosen.files)
            return 0
        if chosen.query not in QUERIES:
            raise NexmarkError(f"{chosen.query!r} is not a query; there are {', '.join(QUERIES)}")
        spark = None
        if chosen.runtime == "spark":
            import keyed

            spark = keyed.spark_session()
        run(chosen.query, chosen.input, chosen.output, spark=spark, checkpoint=chosen.checkpoint)
    except (NexmarkError, CheckpointError, SessionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark", description="Nexmark: events, and queries.")
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="write a folder of events")
    generate.add_argument("--events", type=int, required=True, help="number of events")
    generate.add_argument("--rate", type=int, default=10_000, help="events a second of event time (default: 10000)")
    generate.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    generate.add_argument("--output", type=Path, required=True, help="the folder, empty or new")
    generate.add_argument("--files", type=int, help="number of files (default: one for 100,000 events)")
    generate.add_argument(
        "--disorder-ms",
        type=int,
        default=0,
        help="milliseconds by which events are out of order, at most 4000 for the queries",
    )
    queries = "\n".join(f"  {name:4} {query.summary}" for name, query in QUERIES.items())
    command = commands.add_parser(
        "run",
        help="run a query over a folder of events",
        description=f"Run a query to the end of its input.\n\nqueries:\n{queries}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("query", help="name of the query")
    command.add_argument("--input", type=Path, required=True, help="the folder of events")
    command.add_argument("--output", type=Path, required=True, help="the folder of the results (Parquet)")
    command.add_argument("--runtime", choices=("spark", "local"), default="local", help="the runtime (default: local)")
    command.add_argument("--checkpoint", type=Path, help="folder from which a run that was killed is resumed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
