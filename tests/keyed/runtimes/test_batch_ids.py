"""The number of a batch is the same wherever users see one, also after a restore at another parallelism."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.job.results import Restored
from tests.support.jobs import Tally
from tests.support.tables import poll_tables


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
            Tally(),
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
        with poll_tables(log, self.folder / f"tables-{self.number}") as tables:
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


LIVES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3)


@settings(deadline=None, max_examples=6)
@given(LIVES, st.data())
def test_progress_sinks_tables_changes_and_restore_points_name_a_batch_alike(lives, data):
    with TemporaryDirectory() as folder:
        job, words, point = Lives(Path(folder)), [], None
        for number, (rows, parallelism, rows_per_batch) in enumerate(lives):
            job.number, since = number, len(job.after)
            keys = data.draw(st.lists(st.sampled_from("abc"), min_size=rows, max_size=rows))
            words += keys

            def rows_of(batch, since=since, keys=keys, size=rows_per_batch):
                return keys[(batch - since) * size :][:size]

            result = job.output(keyed.stream([{"k": key} for key in words]), parallelism, point).run(
                lambda values, batch: job.written.append(batch),
                checkpoint=job.folder / f"checkpoint-{number}",
                rows_per_batch=rows_per_batch,
                drain=False,
                on_progress=job.on_progress(rows_of),
            )
            assert result.restored is None or result.restored.batch_id == since - 1
            assert [*job.after] == job.written == [*range(len(job.after))]
            job.check(since)
            point = keyed.RestorePoint(job.log(number))
        until = data.draw(st.integers(since, len(job.after) - 1))
        seen = []
        past = keyed.RestorePoint(job.log(job.number), as_of=until)
        job.number += 1
        again = job.output(keyed.stream([{"k": key} for key in [*words, "a"]]), 2, past).run(
            drain=False, on_progress=lambda progress: seen.append(progress.batch_id)
        )
        assert again.restored == Restored(until, with_position=True)
        assert seen[0] == until + 1


# On Spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_batches_without_rows_or_partitions_have_their_numbers_in_tables_and_changes_too(spark, tmp_path):
    """Each life reads files of which some have rows, some only rows that are filtered out, and some nothing at all."""
    job, point = Lives(tmp_path), None
    files = [["a", "b"], [], ["-", "-"], ["b"], None, ["a"], None, ["c", "a", "-"], ["b"], ["-"], ["b"], None, ["a"]]
    (tmp_path / "in").mkdir()
    read = 0
    for number, (end, parallelism) in enumerate(((4, 2), (9, 3), (13, 1))):
        job.number = number
        for file in range(read, end):
            rows = files[file]
            text = "".join(f"{key}\n" for key in rows or ())
            (tmp_path / f"file-{file}").write_text(text if rows is not None else "")
            os.utime(tmp_path / f"file-{file}", (1_600_000_000 + file,) * 2)
            (tmp_path / f"file-{file}").rename(tmp_path / "in" / f"{file:04d}.csv")
        since = max(job.after, default=-1) + 1
        taken = iter(files[read:end])
        read = end

        def rows_of(batch, taken=taken, restored=point is not None, since=since):
            # The first batch of a restored query only loads its state.
            if restored and batch == since:
                return []
            return [key for key in next(taken) or () if key != "-"]

        def written(frame, batch):
            frame.count()
            job.written.append(batch)

        words = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).csv(str(tmp_path / "in"))
        output = job.output(keyed.stream(words.where("k != '-'")), parallelism, point)
        result = output.run(written, checkpoint=tmp_path / f"checkpoint-{number}", on_progress=job.on_progress(rows_of))
        assert [*job.after] == sorted({*job.written}) == [*range(len(job.after))]
        assert result.restored is None or result.restored.batch_id == since - 1
        job.check(since)
        point = keyed.RestorePoint(job.log(number))
