"""The number of a batch is the same wherever users see one, also after a restore at another parallelism."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.job.results import Restored
from tests.keyed.runtimes.batch_ids import Lives

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
