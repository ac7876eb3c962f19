"""Flink SQL's ``MATCH_RECOGNIZE`` over the files of `tests.benchmarks.patterns`, in an environment with PyFlink."""

import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

COLUMNS = "card STRING, ms BIGINT, amount DOUBLE, ts AS TO_TIMESTAMP_LTZ(ms, 3)"
WATERMARK = "WATERMARK FOR ts AS ts - INTERVAL '5' SECOND"
#: ``followed_by`` is a loop over the rows that do not match the next step.
STEPS = {"followed-by": "A X* B Y* C", "next": "A B C"}
MATCHES = """
SELECT card, first_ms, last_ms FROM payments MATCH_RECOGNIZE (
  PARTITION BY card ORDER BY ts MEASURES A.ms AS first_ms, C.ms AS last_ms
  ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN ({steps}) WITHIN INTERVAL '10' MINUTE
  DEFINE A AS A.amount < 1, {skipped} B AS B.amount BETWEEN 100 AND 200, C AS C.amount > 500
)
"""
SKIPPED = "X AS NOT (X.amount BETWEEN 100 AND 200), Y AS NOT (Y.amount > 500),"


def main(variant: str, folder: str) -> None:
    """Run to the end of the input, and print how many matches came out."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = tables.get_config()
    config.set("parallelism.default", "2")
    config.set("execution.checkpointing.interval", "1 s")
    config.set("state.backend.type", "rocksdb")
    config.set("execution.checkpointing.dir", f"file://{folder}/checkpoints")
    source = f"'connector' = 'filesystem', 'path' = 'file://{folder}/csv', 'format' = 'csv'"
    tables.execute_sql(f"CREATE TABLE payments ({COLUMNS}, {WATERMARK}) WITH ({source})")
    sink = f"'connector' = 'filesystem', 'path' = 'file://{folder}/found', 'format' = 'csv'"
    tables.execute_sql(f"CREATE TABLE found (card STRING, first_ms BIGINT, last_ms BIGINT) WITH ({sink})")
    query = MATCHES.format(steps=STEPS[variant], skipped=SKIPPED if variant == "followed-by" else "")
    tables.execute_sql(f"INSERT INTO found {query}").wait()
    files = (path for path in Path(folder, "found").rglob("*") if path.is_file() and not path.name.startswith("."))
    print("found", sum(path.read_bytes().count(b"\n") for path in files), flush=True)
    # It waits for its input to end, so that the times of its Java process can be read.
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
