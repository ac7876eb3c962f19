"""Reads topics to their end with Flink SQL, in an environment with PyFlink: `test_flink.py` runs it.

Its argument is one JSON object: ``jars`` are the connector and formats, ``tables`` are statements that create tables,
and ``query`` has one column. It prints, as JSON, the rows that the changes of the query add up to, and how many changes
of each kind there were.
"""

import collections
import json
import sys

from pyflink.common import RowKind  # type: ignore[import-not-found]
from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]


def main(given: str) -> None:
    """Run the query."""
    options = json.loads(given)
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "pipeline.jars": ";".join(f"file://{jar}" for jar in options["jars"]),
        "parallelism.default": "1",
        "table.local-time-zone": "UTC",
    }
    for name, value in settings.items():
        tables.get_config().set(name, value)
    for statement in options["tables"]:
        tables.execute_sql(statement)
    rows: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    with tables.execute_sql(options["query"]).collect() as changes:
        for change in changes:
            kind = change.get_row_kind()
            kinds[kind.name] += 1
            rows[change[0]] += 1 if kind in (RowKind.INSERT, RowKind.UPDATE_AFTER) else -1
    sys.stdout.write(f"\n{json.dumps({'rows': sorted(rows.elements()), 'kinds': kinds})}\n")


if __name__ == "__main__":
    main(sys.argv[1])
