"""The last reading of each sensor, by arrival and by time: the effect of late data on a cache of latest values.

By arrival, as with ksqlDB's ``LATEST_BY_OFFSET``, a late reading replaces a newer one. By time it does not.

    python -m examples.recency_cache FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keyed
from keyed.windows import Latest, aggregate

READINGS = [
    {"sensor": "sensor-1", "area": "wheel", "reading": 45, "at": 1_000},
    {"sensor": "sensor-2", "area": "motor", "reading": 41, "at": 2_000},
    {"sensor": "sensor-1", "area": "wheel", "reading": 92, "at": 3_000},
    {"sensor": "sensor-2", "area": "engine", "reading": 90, "at": 5_000},
    {"sensor": "sensor-2", "area": "engine", "reading": 13, "at": 4_000},  # late
]


def latest(readings: Any, log: keyed.Changelog) -> keyed.Output:
    """Return the job."""
    last = {
        "arrived": Latest("reading"),
        "reading": Latest("reading", by_time=True),
        "area": Latest("area", by_time=True),
    }
    stream = keyed.stream(readings, timestamp="at").key_by("sensor")
    return aggregate(stream, last, name="latest_readings", changelog=log)


def main(folder: str) -> None:
    """Run the job and query its table."""
    path = Path(folder)
    log = keyed.DirectoryChangelog(path / "log")
    latest(READINGS, log).run(checkpoint=path / "checkpoint", rows_per_batch=2, drain=False)
    with keyed.tables.open_tables(log, path / "tables") as tables:
        tables.poll()
        for entry in tables["latest_readings"]:
            print(entry.key, entry.value)


if __name__ == "__main__":
    main(sys.argv[1])
