"""Runs a query of `tests.benchmarks.nexmark` in Flink SQL, in an environment with PyFlink.

Its arguments are one JSON object, see `main`. Results of the first run are collected and written as a pickle; those
of the others are written as Parquet, which takes only rows that are added: rows that change are thrown away.
"""

import collections
import json
import pickle
import sys
from pathlib import Path

from pyflink.common import RowKind  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

_PARQUET = "'format' = 'parquet', 'parquet.utc-timezone' = 'true', 'parquet.write.int64.timestamp' = 'true'"


def main(given: str) -> None:
    """Run to the end of each folder, and print when a run begins and ends.

    The object has ``settings``, ``tables`` (columns by name), ``sql``, ``appends`` (whether its rows are only added),
    ``runs`` (folders, of which the results of the first one are kept), ``collected`` (the pickle) and ``written`` (the
    beginning of the folders of the others).
    """
    options = json.loads(given)
    for number, folder in enumerate(options["runs"]):
        tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
        for name, value in options["settings"].items():
            tables.get_config().set(name, value)
        for name, columns in options["tables"].items():
            more = ", proctime AS PROCTIME()" if name == "bid" else ""
            tables.execute_sql(
                f"CREATE TABLE {name} ({columns}{more}, WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '4' SECOND) "
                f"WITH ('connector' = 'filesystem', 'path' = 'file://{folder}/{name}.parquet', {_PARQUET})"
            )
        _mark("begin")
        if number:
            rows = 0
            query = tables.sql_query(options["sql"])
            schema = query.get_schema()
            columns = ", ".join(f"c{at} {schema.get_field_data_type(at)}" for at in range(schema.get_field_count()))
            kept = f"'connector' = 'filesystem', 'path' = 'file://{options['written']}-{number}', {_PARQUET}"
            sink = kept if options["appends"] else "'connector' = 'blackhole'"
            tables.execute_sql(f"CREATE TABLE results ({columns}) WITH ({sink})")
            query.execute_insert("results").wait()
        else:
            rows = _collect(tables, options["sql"], options["collected"])
        _mark(f"end {rows}")


def _collect(tables: TableEnvironment, sql: str, path: str) -> int:
    """Write the rows that the changes of a query add up to."""
    rows: collections.Counter[tuple[object, ...]] = collections.Counter()
    with tables.execute_sql(sql).collect() as changes:
        for row in changes:
            kind = row.get_row_kind()
            rows[tuple(row)] += 1 if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER) else -1
    Path(path).write_bytes(pickle.dumps(list(rows.elements())))
    return rows.total()


def _mark(text: str) -> None:
    """Print a line, and wait until it was read."""
    print(text, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
