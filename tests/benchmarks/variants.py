"""The list of what is measured. Each variant runs in a process of its own, so it can be run alone."""

from __future__ import annotations

from typing import Literal

import attrs

Engine = Literal["pass", "raw-pandas", "raw-rows", "keyed", "local", "jvm"]
Job = Literal[
    "J1",
    "J2",
    "J1-connected",
    "J1-ordered",
    "J4-1k",
    "J4-100k",
    "twice-shuffled",
    "twice-chained",
    "minute-rows",
    "minute-columns",
    "J3-tumbling",
    "J3-hopping",
    "J3-session",
    "J3-open",
    "continuous",
]
FUNCTION_JOBS: tuple[Job, ...] = ("J1", "J2")
MINUTE_JOBS: tuple[Job, ...] = ("minute-rows", "minute-columns")
TWICE_JOBS: tuple[Job, ...] = ("twice-shuffled", "twice-chained")
WINDOW_JOBS: tuple[Job, ...] = ("J3-tumbling", "J3-hopping", "J3-session")
LOGGED_JOBS: tuple[Job, ...] = ("J1", "J2", "J3-tumbling")


@attrs.frozen
class Variant:
    """One thing to measure.

    Attributes:
        name: Its name on the command line and in the report.
        engine: What runs.
        events: Its input (`events.EVENTS`).
        job: ``J1``, ``J2``, ``J1-connected``, ``J1-ordered`` (``order="watermark"``) or ``J4-…``
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
    job: Job = "J1"
    store: Literal["memory", "rocksdb", "lmdb"] = "memory"
    path: Literal["auto", "row"] = "auto"
    changelog: Literal["", "directory", "kafka"] = ""
    warm_up: int = 8
    measured: int = 4
    on_request: bool = False


def _all() -> list[Variant]:
    variants = []
    for keys in ("1k", "100k"):
        variants.append(Variant(f"pass-{keys}", "pass", keys))
        for job in FUNCTION_JOBS:
            variants += [
                Variant(f"{job}-memory-{keys}", "keyed", keys, job),
                Variant(f"{job}-rocksdb-{keys}", "keyed", keys, job, "rocksdb"),
                Variant(f"{job}-local-{keys}", "local", keys, job),
            ]
        variants += [
            Variant(f"J1-connected-memory-{keys}", "keyed", keys, "J1-connected"),
            Variant(f"J1-connected-local-{keys}", "local", keys, "J1-connected"),
            # Of a million rows a batch, the 10,000 of the delay wait for the watermark.
            Variant(f"J1-ordered-memory-{keys}", "keyed", keys, "J1-ordered"),
            Variant(f"J1-ordered-local-{keys}", "local", keys, "J1-ordered"),
        ]
        for job in TWICE_JOBS:
            variants += [
                Variant(f"{job}-memory-{keys}", "keyed", keys, job),
                Variant(f"{job}-local-{keys}", "local", keys, job),
            ]
        variants += [Variant(f"{job}-{keys}", "keyed", keys, job) for job in MINUTE_JOBS]
        for job in WINDOW_JOBS:
            variants += [
                Variant(f"{job}-memory-{keys}", "keyed", keys, job),
                Variant(f"{job}-row-{keys}", "keyed", keys, job, path="row"),
                Variant(f"{job}-local-{keys}", "local", keys, job),
                # Spark's own windows in the JVM.
                Variant(f"jvm-{job}-{keys}", "jvm", keys, job, warm_up=8 if keys == "1k" else 3),
            ]
        variants += [
            Variant(f"continuous-memory-{keys}", "keyed", keys, "continuous"),
            Variant(f"continuous-local-{keys}", "local", keys, "continuous"),
            Variant(f"continuous-local-row-{keys}", "local", keys, "continuous", path="row"),
            Variant(f"jvm-continuous-{keys}", "jvm", keys, "continuous"),
        ]
        for job in LOGGED_JOBS:
            variants += [
                Variant(f"{job}-directory-{keys}", "keyed", keys, job, changelog="directory"),
                Variant(f"{job}-kafka-{keys}", "keyed", keys, job, changelog="kafka"),
            ]
    variants += [Variant("J4-local-1k", "local", "1k", "J4-1k"), Variant("J4-local-100k", "local", "100k", "J4-100k")]
    # The raw variants take minutes a batch at 100k keys: there they get a tenth of the keys with all of their rows.
    variants += [
        Variant("raw-pandas-1k", "raw-pandas", "1k", warm_up=3, measured=2),
        Variant("raw-rows-1k", "raw-rows", "1k", warm_up=3, measured=2),
        Variant("raw-pandas-100k", "raw-pandas", "100k-slice", warm_up=3, measured=2),
        Variant("raw-rows-100k", "raw-rows", "100k-slice", warm_up=3, measured=2),
        Variant("pass-small", "pass", "100k-small", warm_up=5, measured=10),
        Variant("J1-memory-small", "keyed", "100k-small", warm_up=5, measured=10),
        Variant("J1-rocksdb-small", "keyed", "100k-small", store="rocksdb", warm_up=5, measured=10),
        Variant("J1-ordered-memory-small", "keyed", "100k-small", "J1-ordered", warm_up=5, measured=10),
        Variant("raw-pandas-small", "raw-pandas", "100k-small", warm_up=2, measured=2),
        Variant("raw-rows-small", "raw-rows", "100k-small", warm_up=3, measured=3),
        Variant("pass-thousand", "pass", "thousand", warm_up=5, measured=15),
        Variant("J1-memory-thousand", "keyed", "thousand", warm_up=5, measured=15),
        Variant("J1-rocksdb-thousand", "keyed", "thousand", store="rocksdb", warm_up=5, measured=15),
    ]
    for store in ("memory", "rocksdb"):
        for size in ("10k", "1m"):
            # Five batches load the state. Each of the few worker processes may build its copy of it once, which the
            # next batches of the warm-up leave room for.
            variants.append(
                Variant(f"J1-{store}-state-{size}", "keyed", f"state-{size}", "J1", store, warm_up=13, measured=10)
            )
        # Windows open for 1 and 10 million keys; each batch adds to those of 100,000.
        variants += [
            Variant(f"J3-{store}-open-{size}", "keyed", f"open-{size}", "J3-open", store, warm_up=w, on_request=True)
            for size, w in (("1m", 10), ("10m", 16))
        ]
    return variants


VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _all()}
