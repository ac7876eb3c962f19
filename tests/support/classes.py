"""An archive of the classes that Spark loads, which halves the start of the tests' JVMs.

``python -m tests.support.classes`` runs a small query and has its JVM write the archive (Java's class data sharing)
into the environment. The tests use it if it exists. A JVM with other classes
ignores it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

#: Options of the tests' JVMs, which are too short-lived for Java's second compiler and its concurrent collector: these
#: take half their time.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"


def jvm_options() -> str:
    """Return the options of the JVMs of the tests."""
    return f'{JVM} "-XX:SharedArchiveFile={ARCHIVE}" -Xlog:disable' if ARCHIVE.exists() else JVM


def main() -> None:
    from tests.keyed.runtimes.spark.functions import write_file
    from tests.support.spark_programs import program_command

    unfinished = ARCHIVE.with_suffix(".unfinished")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            write_file(Path(folder) / "in", number, [(key, number * 100, 1) for key in "abc"])
        command = program_command("killed_jobs.rank_windows", Path(folder), "local[2]", "rocksdb", "columns")
        options = f'{JVM} "-XX:ArchiveClassesAtExit={unfinished}" -Xlog:disable'
        # The pipe ends with the JVM, which outlives the program.
        subprocess.run(command, env=os.environ | {"SPARK_SUBMIT_OPTS": options}, check=False, stdout=subprocess.PIPE)
    if unfinished.exists():
        unfinished.rename(ARCHIVE)
    else:
        sys.stderr.write("This Java writes no archive of classes: the tests run without.\n")


if __name__ == "__main__":
    main()
