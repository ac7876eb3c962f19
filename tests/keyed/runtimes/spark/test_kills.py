"""Spark jobs killed at random points and recovered, from the checkpoint or from the changelog alone.

In the end what they have written and the state that they leave is that of an undisturbed run. More kills:
``KEYED_SPARK_KILLS=100 pytest -s tests/keyed/runtimes/spark/test_kills.py``; ``KEYED_SEED`` repeats a run's choices.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed.changelog import DirectoryChangelog
from keyed.changelog.model import all_positions
from keyed.recovery import verify
from keyed.runtimes.spark.checkpoint.begin import decode_position
from tests.keyed.recovery.jobs import Life
from tests.keyed.runtimes.spark import publishing
from tests.keyed.runtimes.spark.functions import parquet_rows, write_file
from tests.keyed.runtimes.spark.lives import KINDS, outputs, state
from tests.support.spark_programs import PATIENCE, Program, kill
from tests.support.tables import poll_tables
from tests.support.waiting import until

#: Export intervals of the changelogs, one for each run: none, about two batches, and longer than a run.
INTERVALS = (0, 1_000, 10**9)
KILLS = int(os.environ.get("KEYED_SPARK_KILLS", "3"))
FILES, ROWS = 4, 200

pytestmark = pytest.mark.spark


def write_files(folder, random):
    """Write the input, with disorder within the watermark's delay, and give it as elements."""
    elements = []
    for number in range(FILES):
        rows = [
            (random.choice("abcdefg"), max(0, number * ROWS + i + random.randint(-20, 20)), random.randrange(100))
            for i in range(ROWS)
        ]
        write_file(folder / "in", number, rows)
        elements += [{"k": k, "t": t, "v": v} for k, t, v in rows]
    return elements


def undisturbed(folder, kind, elements):
    """The results of a job on the local runtime: the rows of its sinks, its states when all was read and in the end."""
    life, table = Life(folder, kind), pa.Table.from_pylist(elements)
    states = []
    for drain in (False, True):
        keyed.run(*outputs(life, table), checkpoint=folder / "checkpoint", rows_per_batch=ROWS, drain=drain)
        states.append(state(life))
    return [parquet_rows(sink) for sink in sorted(folder.glob("sink-*"))], states


def kill_a_part(program, random):
    """Kill a program or a part of it: at some moment within or after some batch. Return whether it came to that."""
    batches, more = random.randrange(FILES + 2), random.random()
    what = random.choice(["all", "all", "driver", "java", "worker"])
    program.wait_for_batches(batches)
    with suppress(subprocess.TimeoutExpired):
        # Starting the session takes longer than a batch.
        program.process.wait(more * (1 if batches else 8))
        return False
    members = program.members()
    java = [pid for pid, words in members.items() if "org.apache.spark.deploy.SparkSubmit" in words]
    workers = [pid for pid, words in members.items() if "pyspark.worker" in words]
    chosen = {"driver": [program.process.pid], "java": java, "worker": workers[:1]}
    kill(chosen.get(what) or members)
    # What has lost a part of it ends by itself, or hangs: Spark does not restart the parts of a program.
    with suppress(subprocess.TimeoutExpired):
        program.process.wait(20)
    program.kill()
    return "DONE" not in program.said()


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovered_from", "kills", "kinds"),
    [
        pytest.param("checkpoint", max(1, KILLS // 3), [*KINDS], id="from the checkpoint"),
        pytest.param("changelog", max(1, KILLS - KILLS // 3), [*KINDS], id="from the changelogs"),
        pytest.param("checkpoint", 2, ["chained"], id="chained, from the checkpoint"),
        pytest.param("changelog", 2, ["chained"], id="chained, from the changelogs"),
    ],
)
def test_killed_jobs_end_as_undisturbed_ones(tmp_path, recovered_from, kills, kinds):
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    print(f"KEYED_SEED={seed}")
    random = Random(f"{seed} {recovered_from}")
    kinds = random.sample(kinds, len(kinds))
    done = rounds = 0
    while done < kills:
        kind, folder = kinds[rounds % len(kinds)], tmp_path / f"{recovered_from}-{rounds}"
        rounds += 1
        elements = write_files(folder, random)
        expected, (read, ended) = undisturbed(folder / "undisturbed", kind, elements)
        life = Life(folder, kind)
        about = f"{kind}, recovered from {recovered_from}, KEYED_SEED={seed}"
        for _ in range(min(kills - done, 3)):
            if not kill_a_part(Program("lives.main", folder, kind, random.choice(INTERVALS)), random):
                break
            done += 1
            if recovered_from == "changelog":
                life.lose_checkpoint()
        status, said = Program("lives.main", folder, kind, random.choice(INTERVALS)).end()
        assert status == 0, said[-5000:]
        found = [json.loads(line.removeprefix("STATE ")) for line in said.splitlines() if line.startswith("STATE ")]
        print(f"{done} kills, {kind} recovered")
        assert [parquet_rows(sink) for sink in sorted(folder.glob("sink-*"))] == expected, about
        if kind != "functions":
            # There the list of what waits for processing time says in which batch a row came. Of a job that was killed
            # when its input had ended already only the last state is left.
            assert found in ([read, ended], [ended, ended]), about
        for operator in life.operators():
            verified = verify(life.changelog(operator, life.number))
            assert [group.problem for group in verified if group.problem] == [], about


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "intervals"),
    [
        pytest.param(["half"], [0], id="published"),
        pytest.param(["written", "exported"], [10**9], id="exported together"),
        pytest.param(publishing.KILLS, [0], id="published, all", marks=pytest.mark.long),
        # The interval changes from run to run. What is killed with three batches has exported the first one alone.
        pytest.param(
            publishing.GROUPED_KILLS, [10**9, 10**9, 10**9, 10**9, 300, 0], id="exported, all", marks=pytest.mark.long
        ),
    ],
)
def test_killed_between_the_writing_the_commit_and_the_publication_of_a_batch(tmp_path, kills, intervals):
    log, copied = DirectoryChangelog(tmp_path / "log"), DirectoryChangelog(tmp_path / "copied")
    shown, files, ended = [], 0, threading.Event()

    def follow():
        until(lambda: log.header() is not None, seconds=PATIENCE)
        with keyed.tables.open_tables(log, tmp_path / "tables") as tables:
            changes = None
            while not ended.wait(0.02):
                tables.poll()
                if changes is None and tables.batch >= 0:
                    changes = tables["drawn"].subscribe(after="beginning")
                if changes is not None:
                    shown.extend(changes.take(0))

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        try:
            for when, interval in zip((*kills, "never"), cycle(intervals), strict=False):
                for _ in range(3):
                    write_file(tmp_path / "in", files, [(k, files, 0) for k in "abcdefg"])
                    files += 1
                program = Program("publishing.main", tmp_path, when, interval)
                try:
                    code = program.process.wait(PATIENCE)
                    assert code == (0 if when == "never" else -signal.SIGKILL), program.said()[-5000:]
                    assert code == 0 or f"KILL {when}" in program.said() or (tmp_path / f"KILL {when}").exists()
                finally:
                    program.kill()
        finally:
            ended.set()
        following.result()
    found = [
        (int(folder.name), row) for folder in (tmp_path / "out").iterdir() for row in pq.read_table(folder).to_pylist()
    ]
    rows = {(batch, row["k"]): row["drawn"] for batch, row in found}
    assert publishing.read_rows(tmp_path / "out") == 7 * files
    # What was shown is what came of the batch in the end: nothing of an attempt that the job did not keep.
    assert len(shown) > (7 * 2 if intervals == [0] else 0)
    assert {(change.batch, change.key): change.new for change in shown}.items() <= rows.items()
    batches = [change.batch for change in shown]
    assert batches == sorted(batches)
    for name, each in ("drawn", log), ("copied", copied):
        assert [group.problem for group in verify(each)] == ["", ""]
        with poll_tables(each, tmp_path / f"fresh {name}") as tables:
            for batch in sorted({batch for batch, _ in rows}):
                values = {entry.key: entry.value for entry in tables[name].scan(as_of=batch)}
                assert values == {k: rows[batch, k] for k in "abcdefg"}
        last_commit = each.reader(0).last()
        assert last_commit is not None
        positions = [decode_position(record) for _, record in all_positions(each)]
        assert [position.batch for position in positions if position] == [*range(last_commit.batch + 1)]
        # What was being written when its writer was killed stays for a day.
        assert list(Path(each.path).glob("groups/*/.*.staged.tmp")) == []
    # Each attempt at a batch gave its rows the same ingestion time, and it never goes back.
    seen = {tuple(line.split()) for line in (tmp_path / "seen").read_text().splitlines()}
    times = {(k, int(t)): int(at) for k, t, at in seen}
    assert len(seen) == len(times) == 7 * files
    assert {(row["k"], row["at"]) for _, row in found} == {(k, at) for (k, _), at in times.items()}
    assert all(len({row["at"] for number, row in found if number == batch}) == 1 for batch, _ in found)
    assert [at for _, at in sorted((batch, row["at"]) for batch, row in found)] == sorted(times.values())
