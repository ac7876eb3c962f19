"""The number of a batch is the same wherever users see one, also after a restore at another parallelism."""

from pathlib import Path
from tempfile import TemporaryDirectory

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
