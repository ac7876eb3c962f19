"""A job in a program of its own, for tests that kill it: ``python -m tests...program FOLDER MASTER STORE KIND``.

Reads ``FOLDER/in``, writes ``FOLDER/best``, ``FOLDER/windows`` and ``FOLDER/late``, prints the id of each batch.
"""

import sys
from pathlib import Path

import keyed
from keyed import bounded_out_of_orderness
from tests.keyed.runtimes.spark.functions import BIG, Best, BestColumns, Mishap, MishapColumns, best, files_source
from tests.support.spark_programs import say, say_batch

#: The functions of both stages.
KINDS = {"rows": (Mishap, Best), "columns": (MishapColumns, BestColumns)}


def main(folder: Path, master: str, store: str, kind: str) -> None:
    session = keyed.spark_session(
        "killed", master=master, parallelism=2, config={"spark.local.dir": str(folder / "tmp")}
    )
    source = files_source(session, folder / "in", watermark=bounded_out_of_orderness(milliseconds=30))
    first, second = KINDS[kind]
    windows, ranked = best(source, store=store, function=first(str(folder)), then=second())
    keyed.run(
        ranked.to(folder / "best"),
        windows.to(folder / "windows"),
        windows.side_output(BIG).to(folder / "late"),
        checkpoint=folder / "checkpoint",
        local_dir=folder / "stores",
        drain=True,
        on_progress=say_batch,
    )
    say("DONE")
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
