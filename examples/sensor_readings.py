"""The average of each sensor, and uses of its changelog: ksqlDB's example of materialized views.

The readings are those of "How real-time materialized views work with ksqlDB, animated" on Confluent's blog:
``CREATE TABLE avg_readings AS SELECT sensor, AVG(reading) AS avg FROM readings GROUP BY sensor``.

    python -m examples.sensor_readings FOLDER
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import keyed
from keyed.windows import Mean, aggregate

READINGS = [
    {"sensor": "sensor-1", "area": "wheel", "reading": 45},
    {"sensor": "sensor-2", "area": "motor", "reading": 41},
    {"sensor": "sensor-1", "area": "wheel", "reading": 92},
    {"sensor": "sensor-2", "area": "engine", "reading": 13},
    {"sensor": "sensor-2", "area": "engine", "reading": 90},
    {"sensor": "sensor-4", "area": "motor", "reading": 95},
    {"sensor": "sensor-3", "area": "engine", "reading": 67},
    {"sensor": "sensor-3", "area": "wheel", "reading": 52},
    {"sensor": "sensor-4", "area": "engine", "reading": 55},
    {"sensor": "sensor-3", "area": "engine", "reading": 37},
]


def averages(readings: Any, log: keyed.Changelog) -> keyed.Output:
    """Return the job."""
    return aggregate(
        keyed.stream(readings).key_by("sensor"), {"avg": Mean("reading")}, name="avg_readings", changelog=log
    )


def main(folder: str) -> None:
    """Run the job and query its table."""
    path = Path(folder)
    log = keyed.DirectoryChangelog(path / "log", compaction_lag=0, auto_compact=False)

    def run(readings: list[dict[str, Any]]) -> None:
        # One reading a batch, so that each is a change of the table.
        averages(readings, log).run(checkpoint=path / "checkpoint", rows_per_batch=1, drain=False)

    run(READINGS[:5])
    trail = [(change.key, change.value["avg"]) for change in keyed.recovery.read_changelog(log, "avg_readings")]
    print("The changelog is an audit trail:", trail)

    with keyed.tables.open_tables(log, path / "tables") as tables:
        tables.poll()
        table = tables["avg_readings"]
        print("Pull:", table.get("sensor-1"), table.get("sensor-1", as_of=0))
        shutil.copytree(path / "tables", path / "stale")
        push = table.subscribe(after="now")
        run(READINGS)
        tables.poll()
        changes = [change for _ in range(5) for change in push.take(timeout=10)]
        print("Push:", [(change.key, change.old and change.old["avg"], change.new["avg"]) for change in changes])

    with keyed.tables.open_tables(log, path / "stale") as stale:
        print("A stale store reads what is new:", stale.poll(), "records")
    shutil.rmtree(path / "tables")
    with keyed.tables.open_tables(log, path / "tables") as rebuilt:
        print("A lost one reads everything:", rebuilt.poll(), "records")
        print({entry.key: entry.value["avg"] for entry in rebuilt["avg_readings"]})

    log.compact()
    left = [change.key for change in keyed.recovery.read_changelog(log, "avg_readings")]
    print("Compaction leaves a record a key, and the newest batch:", sorted(left))


if __name__ == "__main__":
    main(sys.argv[1])
