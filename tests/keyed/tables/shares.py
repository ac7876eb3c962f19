"""A job with eight key groups, of which tables have shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import keyed
from keyed import DirectoryChangelog
from keyed.codec.key_hash import group_of, key_hash
from keyed.tables import StateTables, open_tables

GROUPS = 8
SHARES = (range(3), range(3, 6), range(6, 8))


class Count(keyed.KeyedProcessFunction):
    """Counts the rows of a key, and lists them in a map. Only key 7 has a flag."""

    count = keyed.ValueState(int)
    items = keyed.MapState(int, int)
    flag = keyed.ValueState(bool)

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.items.put(value % 3, value)
        if ctx.get_current_key() == 7:
            self.flag.update(True)
        ctx.timer_service().register_event_time_timer(keyed.MAX_TIMESTAMP)

    def on_timer(self, timestamp, ctx):
        return ()


def counts(rows: int, log: DirectoryChangelog, parallelism: int = GROUPS, **options: Any) -> Any:
    """Counts of so many rows, over twenty keys."""
    stream = keyed.stream(range(rows)).key_by(lambda value: value % 20)
    return stream.process(Count(), changelog=log, parallelism=parallelism, **options)


def run(log: DirectoryChangelog, rows: int) -> None:
    """Run a job of a batch for each 20 rows that its checkpoint, beside the changelog, does not have."""
    counts(rows, log).run(rows_per_batch=20, drain=False, checkpoint=f"{log.path}-checkpoint")


def share_of(key: Any) -> int:
    """The number of the share that has a key."""
    group = group_of(key_hash(key), GROUPS)
    return next(number for number, groups in enumerate(SHARES) if group in groups)


@contextmanager
def open_shares(folder: Path) -> Iterator[tuple[DirectoryChangelog, StateTables, list[StateTables]]]:
    """Yield a changelog of 60 rows, tables of all its key groups, and those of each share."""
    log = DirectoryChangelog(folder / "log", auto_compact=False)
    run(log, 60)
    with ExitStack() as stack:
        whole = stack.enter_context(open_tables(log, folder / "whole"))
        shares = [stack.enter_context(open_tables(log, folder / f"{each[0]}", groups=each)) for each in SHARES]
        for tables in (whole, *shares):
            tables.poll()
        yield log, whole, shares
