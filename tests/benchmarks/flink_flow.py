"""Flink SQL's interval join over the files of `tests.benchmarks.joins`, in an environment with PyFlink."""

import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

COLUMNS = "user_id STRING, ms BIGINT, amount BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3)"
WATERMARK = "WATERMARK FOR ts AS ts - INTERVAL '10' SECOND"
JOIN = """
SELECT l.user_id, l.amount AS first_amount, r.amount AS second_amount FROM lefts AS l, rights AS r
WHERE l.user_id = r.user_id AND r.ts BETWEEN l.ts - INTERVAL '10' SECOND AND l.ts + INTERVAL '10' SECOND
"""
PASS = "SELECT user_id, amount, amount FROM lefts UNION ALL SELECT user_id, amount, amount FROM rights"


def main(variant: str, folder: str) -> None:
    """Run to the end of the input, and print how many rows came out."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = tables.get_config()
    config.set("parallelism.default", "2")
    config.set("execution.checkpointing.interval", "1 s")
    config.set("state.backend.type", "rocksdb")
    config.set("execution.checkpointing.dir", f"file://{folder}/checkpoints")
    for side in ("left", "right"):
        source = f"'connector' = 'filesystem', 'path' = 'file://{folder}/{side}-csv', 'format' = 'csv'"
        tables.execute_sql(f"CREATE TABLE {side}s ({COLUMNS}, {WATERMARK}) WITH ({source})")
    # A count would be told anew at each row, and reading that in Python costs more than the join.
    sinks = {"flink": f"'connector' = 'filesystem', 'path' = 'file://{folder}/found', 'format' = 'csv'"}
    sink = sinks.get(variant, "'connector' = 'blackhole'")
    tables.execute_sql(f"CREATE TABLE found (user_id STRING, first_amount BIGINT, second_amount BIGINT) WITH ({sink})")
    tables.execute_sql(f"INSERT INTO found {JOIN if variant == 'flink' else PASS}").wait()
    rows = 0
    for path in Path(folder, "found" if variant == "flink" else ".").rglob("*"):
        # Files that are not finished are hidden; those of the input are the rows of the pass-through.
        if path.is_file() and not path.name.startswith(".") and (variant == "flink" or path.suffix == ".csv"):
            rows += path.read_bytes().count(b"\n")
    print("found", rows, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
