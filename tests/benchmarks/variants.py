"""The list of what is measured. Each variant runs in a process of its own, so it can be run alone.

`variants.json` has them. Of a million rows a batch of ``J1-ordered``, the 10,000 of the delay wait for the watermark.
The raw variants take minutes a batch at 100k keys: there they get a tenth of the keys with all of their rows. Where
there is a state of 10k or 1m keys, five batches load it. Each of the few worker processes may build its copy of it
once, which the next batches of the warm-up leave room for. ``J3-…-open-…`` has windows open for 1 and 10 million keys;
each batch adds to those of 100,000.
"""

from __future__ import annotations

from typing import Literal

import attrs

from tests.support.data_files import read_data

Engine = Literal["pass", "raw-pandas", "raw-rows", "keyed", "local", "jvm"]


@attrs.frozen
class Variant:
    """One thing to measure.

    Attributes:
        name: Its name on the command line and in the report.
        engine: What runs.
        events: Its input (`events.EVENTS`).
        job: ``J1``, ``J2``, ``J1-connected``, ``J1-ordered`` (``order="watermark"``)
            (`tests.benchmarks.functions`) or ``minute-…``
            (`tests.benchmarks.minutes`), where a keyed function runs; ``twice-…`` for two of J1, one after the other;
            ``J3-…`` for windows, and ``continuous`` for the same aggregates without windows
            (`tests.benchmarks.windows`).
        store: The local store of a keyed function on Spark.
        path: How windows are computed (``WindowedStream.path``).
        changelog: Where every change of state goes as well.
        warm_up: Batches left out at the start: state being loaded, and code being compiled, which in the JVM goes on
            for eight batches.
        measured: Batches measured after them.
        on_request: Whether it runs only where it is asked for, because it takes minutes.
    """

    name: str
    engine: Engine
    events: str
    job: str = "J1"
    store: Literal["memory", "rocksdb", "lmdb"] = "memory"
    path: Literal["auto", "row"] = "auto"
    changelog: Literal["", "directory", "kafka"] = ""
    warm_up: int = 8
    measured: int = 4
    on_request: bool = False


VARIANTS: dict[str, Variant] = {each["name"]: Variant(**each) for each in read_data("benchmarks/variants.json")}
