"""Replay: what a changed function would have done differently with the batches that a job has run.

A changelog holds states and clocks, and no rows. Those come from the source that the job has read, from its start
again; the changelog knows how many of them were in each batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from keyed.changelog.model import Changelog
from keyed.errors import ChangelogError, DefinitionError
from keyed.functions import Function
from keyed.recovery.cut import header_of, newest_sequence
from keyed.runtimes.local.local_position import LocalPosition, decode_position
from keyed.testing.harness import KeyedTestHarness, Record
from keyed.testing.scripts import Key
from keyed.watermarks import WatermarkStrategy


@attrs.frozen
class Replayed:
    """What a replay has shown.

    Attributes:
        first: Number of the first batch.
        last: Number of the last one.
        rows: How many rows they had.
        lines: What differs, as a diff: ``-`` as it was, ``+`` as it would have been. Outputs first, then states by key.
    """

    first: int
    last: int
    rows: int
    lines: tuple[str, ...]


def replay(
    changelog: Changelog,
    function: Function,
    changed: Function,
    rows: Iterable[Any],
    *,
    key: Key,
    timestamp: str | Callable[[Any], int] | None = None,
    watermark: WatermarkStrategy | None = None,
    first: int = 1,
    last: int | None = None,
) -> Replayed:
    """Run the batches of a job of the local runtime again, with its function and with a changed one.

    Args:
        changelog: The job's changelog. It is only read.
        function: The job's function. What it leaves has to be what the changelog holds, or the rows are not the job's.
        changed: The changed function.
        rows: The rows of the job's source, from its start.
        key: Key of a row, as the job has it.
        timestamp: Column or function that gives a row's event time in milliseconds, as the job has it.
        watermark: As the job has it.
        first: Number of the first batch; the state before it is taken from the changelog.
        last: Number of the last one; the newest by default.

    Raises:
        DefinitionError: There are no such batches, or the rows are not those of the job.
        ChangelogError: The changelog has no positions by which rows belong to batches.
        HistoryCompacted: It does not go back so far.
    """
    newest = newest_sequence(changelog.reader(group) for group in range(header_of(changelog).parallelism))
    last = newest if last is None else last
    if not 1 <= first <= last <= newest:
        raise DefinitionError(f"batches {first} to {last}: the changelog has batches 1 to {newest}")
    positions = _positions(changelog, first, last)
    clocks = {commit.sequence: commit.processing_time for commit, _ in changelog.reader(0).commits(first - 1, last)}
    given = list(rows)
    if len(given) < positions[last].rows:
        raise DefinitionError(f"rows: {len(given)} are given, and the job had read {positions[last].rows}")
    runs = []
    for each in (function, changed):
        harness = _begin(changelog, each, key, watermark, first - 1)
        with harness:
            for batch in range(first, last + 1):
                before = positions[batch - 1].rows if batch - 1 in positions else 0
                taken = [Record(row, _time(row, timestamp)) for row in given[before : positions[batch].rows]]
                _run(harness, taken, clocks[batch], positions[batch].ended)
            runs.append((harness.take_output(), {name: harness.state(name) for name in harness.state_names}))
    with KeyedTestHarness.from_changelog(changelog, function, key=key, as_of=last) as harness:
        for name, state in runs[0][1].items():
            if harness.state(name) != state:
                raise DefinitionError(
                    f"rows: with them {type(function).__name__} leaves another state {name!r} than the changelog has "
                    f"after batch {last}; give the rows, key, timestamp and watermark that the job had"
                )
    start = positions[first - 1].rows if first - 1 in positions else 0
    return Replayed(first, last, positions[last].rows - start, tuple(_diff(*runs)))


def _positions(changelog: Changelog, first: int, last: int) -> dict[int, LocalPosition]:
    """Return where the job stood after each batch, and before the first one.

    Raises:
        ChangelogError: It says nothing of it, or says it of a source that cannot be read from its start.
    """
    found: dict[int, LocalPosition] = {}
    for number, record in changelog.positions(max(first - 2, 0)):
        if number <= last:
            if not record.startswith(b"KRUN"):
                raise ChangelogError(f"{changelog} is that of a query on Spark: only the local runtime's are replayed")
            found[number] = decode_position(record, f"position of batch {number} in {changelog}")
    missing = [batch for batch in range(max(first - 1, 1), last + 1) if batch not in found]
    if missing:
        raise ChangelogError(f"{changelog} has no position of batch {missing[0]}: its rows are not known; begin later")
    if any(position.source is not None for position in found.values()):
        raise ChangelogError(f"{changelog}: the job's source goes on from positions of its own; its rows are not known")
    return found


def _begin(
    changelog: Changelog, function: Function, key: Key, watermark: WatermarkStrategy | None, batch: int
) -> KeyedTestHarness:
    strategy = watermark or WatermarkStrategy(0)
    if not batch:
        return KeyedTestHarness(function, key=key, watermark=strategy)
    return KeyedTestHarness.from_changelog(changelog, function, key=key, as_of=batch, watermark=strategy)


def _time(row: Any, timestamp: str | Callable[[Any], int] | None) -> int | None:
    if timestamp is None or callable(timestamp):
        return None if timestamp is None else timestamp(row)
    value = row[timestamp] if isinstance(row, dict) else getattr(row, timestamp)
    time = value if isinstance(value, int) else round(value.timestamp() * 1000)
    return int(time)


def _run(harness: KeyedTestHarness, rows: Sequence[Record], clock: int, ended: bool) -> None:
    harness.advance_processing_time(clock)
    if rows:
        with harness.batch():
            for row in rows:
                harness.process(*row)
    if ended:
        harness.end_of_input()


def _diff(before: Any, after: Any) -> Iterable[str]:
    (outputs, states), (new_outputs, new_states) = before, after
    counts, new_counts = Counter(map(repr, outputs)), Counter(map(repr, new_outputs))
    for sign, found in (("-", counts - new_counts), ("+", new_counts - counts)):
        yield from (f"{sign} output {text}" for text in sorted(found.elements()))
    for name in sorted({*states, *new_states}):
        old, new = states.get(name, {}), new_states.get(name, {})
        for key in sorted({*old, *new}, key=repr):
            if old.get(key) != new.get(key):
                if key in old:
                    yield f"- state {name}[{key!r}] = {old[key]!r}"
                if key in new:
                    yield f"+ state {name}[{key!r}] = {new[key]!r}"
