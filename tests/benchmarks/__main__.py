"""The command line of the benchmarks: ``python -m tests.benchmarks``."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

import attrs
import pyarrow.parquet as pq

from tests.benchmarks.events import EVENTS, FOLDER, event_files, link_files
from tests.benchmarks.meter import marks_of
from tests.benchmarks.report import Figures, markdown, merge
from tests.benchmarks.variants import VARIANTS, Variant
from tests.benchmarks.work import commits, local_job
from tests.support.kafka import ADDRESS, Broker

_QUICK = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run benchmarks. Returns 0, or 1 where a variant failed."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(VARIANTS))
        return 0
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    scale = _QUICK if options.quick else 1
    if options.profile:
        _profile(_shortened(VARIANTS[options.profile], scale), scale)
        return 0
    chosen = [_shortened(variant, scale) for variant in _selected(options.only)]
    runs: dict[str, list[Figures]] = {}
    failed = []
    schedule = _schedule(chosen, options.rounds)
    with _broker(needed=any(variant.changelog == "kafka" for variant in chosen)):
        for number, variant in enumerate(schedule, start=1):
            started = time.monotonic()
            print(f"[{number}/{len(schedule)}] {variant.name} ", end="", flush=True, file=sys.stderr)
            figures = _measure(variant, scale)
            if figures is None:
                failed.append(variant.name)
                continue
            runs.setdefault(variant.name, []).append(figures)
            total = figures.per_million.total
            print(f"{total:.2f} CPU-s per million, {figures.wall:.2f} s a batch", end="", file=sys.stderr)
            print(f" ({time.monotonic() - started:.0f} s)", flush=True, file=sys.stderr)
    merged = {variant.name: merge(runs[variant.name]) for variant in chosen if variant.name in runs}
    trial = "; a quick trial, whose figures mean nothing" if options.quick else ""
    print(f"\nsteady state; {_machine()}; rounds: {options.rounds}{trial}\n")
    print(markdown(merged))
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


@contextmanager
def _broker(*, needed: bool) -> Iterator[None]:
    """A Kafka broker beside the runs, which do not count what it costs, unless one is named."""
    if not needed or os.environ.get(ADDRESS):
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="keyed-bench-kafka-"))
    broker = Broker(folder)
    broker.start()
    os.environ[ADDRESS] = broker.bootstrap
    try:
        yield
    finally:
        del os.environ[ADDRESS]
        broker.stop()
        shutil.rmtree(folder)


def _schedule(chosen: list[Variant], rounds: int) -> list[Variant]:
    """The order of runs: whatever the machine does meanwhile meets all; what others are compared with comes twice."""
    bases = [variant for variant in chosen if variant.engine == "pass"]
    others = [variant for variant in chosen if variant.engine != "pass"]
    if not others:
        return bases * rounds
    return [*bases, *others, *bases] * rounds


def _measure(variant: Variant, scale: int) -> Figures | None:
    """Run a variant in a process of its own and measure it from here."""
    folder = FOLDER / "runs" / f"{variant.name}-{os.getpid()}"
    paths = link_files(folder, _files(variant, scale))
    shown = commits(folder)
    # Spark runs a last empty batch where a source asks for one; the batches that hold a file come first.
    marks = marks_of(
        "work", [variant.name, str(folder)], folder, len(paths), lambda batch: (shown / str(batch)).exists()
    )
    if marks is None:
        return None
    steady = marks[variant.warm_up - 1 :]
    costs = [(after.cpu - before.cpu).total for before, after in pairwise(steady)]
    rows = sum(pq.read_metadata(path).num_rows for path in paths[variant.warm_up :]) / variant.measured
    figures = Figures(
        name=variant.name,
        rows=rows,
        batches=variant.measured,
        cpu=(steady[-1].cpu - steady[0].cpu) / variant.measured,
        wall=(steady[-1].at - steady[0].at) / variant.measured,
        peak_bytes=max(mark.peak_bytes for mark in steady[1:]),
        spread=(min(costs), max(costs)),
    )
    shutil.rmtree(folder)
    return figures


def _files(variant: Variant, scale: int) -> list[Path]:
    return event_files(EVENTS[variant.events], variant.warm_up + variant.measured, scale)


def _profile(variant: Variant, scale: int) -> None:
    """Run a variant's job in this process, on the local runtime, and print where its time goes."""
    import cProfile
    import pstats

    folder = FOLDER / "runs" / f"profile-{variant.name}-{os.getpid()}"
    link_files(folder, _files(variant, scale))
    job = attrs.evolve(variant, engine="local")
    profiler = cProfile.Profile()
    profiler.enable()
    local_job(job, folder, checkpoint=str(folder / "checkpoint"))
    profiler.disable()
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(30)
    shutil.rmtree(folder)


def _shortened(variant: Variant, scale: int) -> Variant:
    return variant if scale == 1 else attrs.evolve(variant, warm_up=max(1, EVENTS[variant.events].load), measured=2)


def _selected(patterns: list[str] | None) -> list[Variant]:
    if not patterns:
        return [variant for variant in VARIANTS.values() if not variant.on_request]
    names = [pattern for given in patterns for pattern in given.split(",")]
    chosen = [v for v in VARIANTS.values() if any(fnmatchcase(v.name, name) for name in names)]
    unmatched = [name for name in names if not any(fnmatchcase(v, name) for v in VARIANTS)]
    if unmatched:
        sys.exit(f"--only {unmatched[0]}: no such variant; --list names them")
    return chosen


def _machine() -> str:
    import pyspark

    return f"{os.cpu_count()} cores, Python {platform.python_version()}, Spark {pyspark.__version__}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAMES", help="variants, by name or pattern (J1-*), by comma"
    )
    parser.add_argument("--list", action="store_true", help="list the variants")
    parser.add_argument("--quick", action="store_true", help="a trial with a twentieth of the rows and few batches")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is run (default: %(default)s)")
    parser.add_argument(
        "--profile",
        choices=[name for name, variant in VARIANTS.items() if variant.engine in ("keyed", "local")],
        metavar="VARIANT",
        help="run the variant's function in this process on the local runtime, and print where the time goes",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
