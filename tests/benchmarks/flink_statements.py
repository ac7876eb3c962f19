"""Runs statements of Flink SQL to their end, in an environment with PyFlink: `tests.support.flink.run_flink` starts it.

Its argument is one JSON object: ``folder`` is for checkpoints, and holds the rows that are counted, in ``found``;
``settings`` are further settings of Flink, and ``statements`` are run one after the other.
"""

import json
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]


def main(given: str) -> None:
    """Run the statements, and print how many lines they have written."""
    options = json.loads(given)
    folder = Path(options["folder"])
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    settings = {
        "parallelism.default": "2",
        "execution.checkpointing.interval": "1 s",
        "execution.checkpointing.dir": f"file://{folder}/checkpoints",
        "state.backend.type": "rocksdb",
    }
    for name, value in (settings | options["settings"]).items():
        tables.get_config().set(name, value)
    for statement in options["statements"]:
        tables.execute_sql(statement).wait()
    # Files that are not finished are hidden.
    files = (path for path in (folder / "found").rglob("*") if path.is_file() and not path.name.startswith("."))
    print("end", sum(path.read_bytes().count(b"\n") for path in files), flush=True)
    # It waits, so that the times of its Java process can be read.
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
