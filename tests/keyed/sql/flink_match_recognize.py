"""Runs queries with Flink SQL over rows of a CSV file, in an environment with PyFlink.

`test_flink_match_recognize.py` runs it. Its argument is one JSON object: ``path`` is the file, ``columns`` are those of
its table ``ticks``, and ``queries`` are the queries. It prints the rows of each as a line of JSON.
"""

import json
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]


def main(given: str) -> None:
    """Run the queries."""
    options = json.loads(Path(given).read_text(encoding="utf-8"))
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", "1")
    tables.get_config().set("table.local-time-zone", "UTC")
    source = f"'connector' = 'filesystem', 'path' = 'file://{options['path']}', 'format' = 'csv'"
    tables.execute_sql(f"CREATE TABLE ticks ({options['columns']}) WITH ({source})")
    for query in options["queries"]:
        with tables.execute_sql(query).collect() as rows:
            found = [list(row) for row in rows]
        sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
