"""The id of a batch is Spark's own wherever users see one, also where batches reach no key group.

A batch that reached none is in the changelog with the next one that does.
"""

import os

import pytest

import keyed
from tests.keyed.runtimes.batch_ids import Lives


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
