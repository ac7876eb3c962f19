"""The same programs over the same file in keyed and in Bytewax: ``python -m tests.benchmarks.versus_bytewax``.

A counter that gives a row out per event, and windows of a minute by hand, with a map state and timers, each with 1,000
and 100,000 keys, in one process. Both keep state per key, and nothing of it on disk. Bytewax
is installed into an environment of its own. It has no watermark of a stream: its windows close by the time of their own
key.

Rounds are interleaved. Figures are CPU-seconds for a million events from reading the file to the last output, the
median of the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import keyed
from keyed import Context, KeyedProcessFunction, MapState, OnTimerContext
from tests.benchmarks.events import EVENTS, FOLDER, event_files, ignored_folder
from tests.benchmarks.functions import J1, OUTPUT

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = FOLDER / "bytewax" / "environment"
_PACKAGES = ("bytewax==0.21.1", "numpy", "pyarrow")
_JOBS = ("counter", "windows")


class Minutes(KeyedProcessFunction):
    """Windows of a minute by hand."""

    windows = MapState(int, tuple[int, int])

    def process_element(self, value: Any, ctx: Context) -> None:
        """Add the event to its window, and wait for its end."""
        timestamp = ctx.timestamp()
        assert timestamp is not None
        start = timestamp - timestamp % 60_000
        count, amount = self.windows.get(start, (0, 0))
        if not count:
            ctx.timer_service().register_event_time_timer(start + 59_999)
        self.windows.put(start, (count + 1, amount + value.amount))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[tuple[str, int, int]]:
        """Emit and forget."""
        count, amount = self.windows[timestamp - 59_999]
        self.windows.remove(timestamp - 59_999)
        yield ctx.get_current_key(), count, amount


def run(job: str, file: Path) -> tuple[float, int, int]:
    """Run a job with keyed: CPU-seconds, outputs, and a sum over them."""
    import pyarrow.parquet as pq

    # Imports are before the clock starts, as those of Bytewax are.
    importlib.import_module("keyed.runtimes.local.local_query")
    found = [0, 0]

    def sink(rows: list[Any], batch_id: int) -> None:
        found[0] += len(rows)
        found[1] += sum(n for _, n, _ in rows)

    started = time.process_time()
    table = pq.read_table(file)
    stream = keyed.stream(table, timestamp="ts", watermark=keyed.bounded_out_of_orderness(seconds=10))
    function = J1() if job == "counter" else Minutes()
    stream.key_by("user_id").process(function, OUTPUT, name=job).run(sink, drain=True)
    return time.process_time() - started, found[0], found[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure. Returns 1 where the outputs differ."""
    options = _parser().parse_args(arguments)
    if options.run is not None:
        print(*run(options.jobs[0], options.run))
        return 0
    ignored_folder()
    python, same = _environment(), True
    print("| job | keys | keyed CPU-s | Bytewax CPU-s | keyed / Bytewax |\n|---|--:|--:|--:|--:|")
    for keys in options.keys:
        file = str(event_files(EVENTS[keys], 1)[0])
        for job in options.jobs:
            ours, theirs = [], []
            for _ in range(options.rounds):
                ours.append(_figures([sys.executable, "-m", __spec__.name, "--jobs", job, "--run", file]))
                theirs.append(_figures([python, str(_ROOT / "tests" / "benchmarks" / "bytewax_flow.py"), job, file]))
            same = same and len({figures[1:] for figures in ours + theirs}) == 1
            ratio = median(a[0] / b[0] for a, b in zip(ours, theirs, strict=True))
            mine, peer = median(figures[0] for figures in ours), median(figures[0] for figures in theirs)
            print(f"| {job} | {keys} | {mine:.2f} | {peer:.2f} | {ratio:.2f} |", flush=True)
    if not same:
        print("the outputs differ", file=sys.stderr)
    return 0 if same else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.versus_bytewax", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", nargs="+", choices=["1k", "100k"], default=["1k", "100k"])
    parser.add_argument("--jobs", nargs="+", choices=_JOBS, default=_JOBS)
    parser.add_argument("--run", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    return parser


def _environment() -> str:
    """The Python of an environment with Bytewax, which is made the first time."""
    python = _ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(_ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *_PACKAGES], check=True)
    return str(python)


def _figures(command: list[str]) -> tuple[float, int, int]:
    done = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True)
    cpu, outputs, total = done.stdout.split()[-3:]
    return float(cpu), int(outputs), int(total)


if __name__ == "__main__":
    sys.exit(main())
