"""Flink SQL's interval join over the files of `tests.benchmarks.joins`, in an environment with PyFlink."""

import sys

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
    # Files are read side by side, and in the order of their times only if one reader takes one after the other.
    for side in ("left", "right"):
        source = f"'connector' = 'filesystem', 'path' = 'file://{folder}/{side}-csv', 'format' = 'csv'"
        tables.execute_sql(f"CREATE TABLE {side}s ({COLUMNS}, {WATERMARK}) WITH ({source})")
    select = JOIN if variant == "flink" else PASS
    counted = tables.execute_sql(f"SELECT COUNT(*) FROM ({select}) AS found")
    rows = 0
    with counted.collect() as results:
        for row in results:
            rows = row[0]
    print("found", rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
