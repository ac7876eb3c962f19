"""A job that writes a topic and kills itself.

Reads ``FOLDER/in``, one file a batch. It is killed, with all that belongs to it, before a call of the transaction of a
batch, or after it: ``begin``, ``deliver``, ``commit_offset``, ``commit`` or ``committed``; ``none`` lets it live.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keyed
from keyed.destinations.kafka import TopicWriter
from keyed.kafka.client import Transactions
from tests.keyed.runtimes.spark.functions import count, files_source
from tests.keyed.runtimes.spark.publishing import kill
from tests.support.spark_programs import start_session

_running: list[int] = []


def kill_at(place: str, batch: int) -> None:
    """Let the transaction of a batch kill the program."""
    write = TopicWriter.write

    def noted(self: TopicWriter, rows: Any, batch_id: int) -> None:
        _running[:] = [batch_id]
        write(self, rows, batch_id)

    name = "commit" if place == "committed" else place
    original = getattr(Transactions, name)

    def killed(self: Transactions, *arguments: Any) -> Any:
        if _running == [batch] and place != "committed":
            kill(place)
        result = original(self, *arguments)
        if _running == [batch]:
            kill(place)
        return result

    TopicWriter.write = noted  # type: ignore[method-assign]
    setattr(Transactions, name, killed)


def main(folder: Path, bootstrap: str, topic: str, place: str, batch: int) -> None:
    if place != "none":
        kill_at(place, batch)
    sink = keyed.topics.KafkaSink(topic, bootstrap=bootstrap, key="k")
    count(files_source(start_session(folder), folder / "in")).run(sink, checkpoint=folder / "checkpoint")
