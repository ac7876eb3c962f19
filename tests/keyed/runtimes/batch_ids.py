"""A job of several lives whose state at each batch is known, for the tests of the numbers of batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

import keyed
from keyed import KeyedProcessFunction, ValueState


class CountWords(KeyedProcessFunction):
    """Counts the words of a key."""

    n = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + 1)
        yield value.k, self.n.value()


@attrs.define
class Lives:
    """Reports of the lives of a job.

    Attributes:
        folder: Where they leave what they leave.
        counts: Rows of each key so far.
        after: Rows of each key after each batch, by the id that progress gave it.
        written: Ids that sinks got.
    """

    folder: Path
    counts: Counter[str] = attrs.field(factory=Counter)
    after: dict[int, Counter[str]] = attrs.field(factory=dict)
    written: list[int] = attrs.field(factory=list)
    number: int = 0

    def log(self, number: int) -> keyed.DirectoryChangelog:
        return keyed.DirectoryChangelog(self.folder / f"log-{number}", auto_compact=False)

    def output(self, stream: Any, parallelism: int, point: Any = None) -> Any:
        return stream.key_by("k").process(
            CountWords(),
            "k string, n bigint",
            name="count",
            changelog=self.log(self.number),
            restore_from=point,
            parallelism=parallelism,
        )

    def on_progress(self, rows_of: Callable[[int], list[str]]) -> Callable[[keyed.Progress], None]:
        """Take note of a batch, whose rows ``rows_of`` gives."""

        def told(progress: keyed.Progress) -> None:
            self.counts.update(rows_of(progress.batch_id))
            self.after[progress.batch_id] = Counter(self.counts)

        return told

    def check(self, since: int = 0) -> None:
        """Check that every id means the same batch in tables, changes and restore points."""
        log = self.log(self.number)
        with keyed.tables.open_tables(log, self.folder / f"tables-{self.number}") as tables:
            tables.poll()
            batches = [batch for batch in self.after if batch >= since]
            assert (tables.batch, len(batches)) == (max(batches), max(batches) - since + 1)
            for batch in batches:
                known = tables["n"].query("a", as_of=batch)
                assert (known.position.batch, known.value or 0) == (batch, self.after[batch]["a"])
                with tables.snapshot(batch) as snapshot:
                    assert {entry.key: entry.value for entry in snapshot["n"]} == self.after[batch]
            for version in tables["n"].history("a"):
                assert version.value == self.after[version.batch]["a"]
        state: dict[str, int] = {}
        for change in keyed.recovery.read_changelog(log, "n"):
            state[change.key] = change.value
            assert self.after[change.commit.batch][change.key] == change.value
        assert state == self.counts
        assert not any(found.problem for found in keyed.recovery.verify(log))
