"""Two stages with two stores, timers, a side output and changelogs, as a program of its own: ``python -m ... FOLDER``.

`test_versions.py` runs it under one version of Spark after another.
"""

import sys
from pathlib import Path

import keyed
from keyed import bounded_out_of_orderness
from keyed.changelog import DirectoryChangelog
from tests.keyed.runtimes.spark.functions import BIG, best, files_source


def run(session, folder):
    """Run what is in ``folder/in`` and has not run."""
    stages = {
        "windows": {"changelog": DirectoryChangelog(folder / "log" / "windows"), "store": "rocksdb"},
        "best": {"changelog": DirectoryChangelog(folder / "log" / "best"), "store": "memory"},
    }
    source = files_source(session, folder / "in", watermark=bounded_out_of_orderness(milliseconds=30))
    windows, ranked = best(source, by_stage=stages, parallelism=2)
    keyed.run(
        windows.to(folder / "windows"),
        ranked.to(folder / "best"),
        windows.side_output(BIG).to(folder / "late"),
        checkpoint=folder / "checkpoint",
        local_dir=folder / "stores",
    )


if __name__ == "__main__":
    place = Path(sys.argv[1])
    run(keyed.spark_session(master="local[2]", config={"spark.local.dir": str(place / "tmp")}), place)
