"""The files of local stores are damaged between runs: no wrong output, no crash loop, a right changelog.

The slow ones do 300 damages to each store; ``KEYED_DAMAGES`` is the number of each of the 15.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.dataset
import pytest

import keyed
from keyed import DirectoryChangelog, KeyedProcessFunction, MapState, ValueState
from keyed.errors import KeyedError, QueryFailed
from keyed.recovery.verification import verify_changelog
from keyed.stores.store_mark import StoreMark
from tests.keyed.runtimes.spark.functions import COUNTED, Count, files_source, write_file
from tests.support.damages import KINDS, damage, is_leaf_of_entries

DAMAGES = int(os.environ.get("KEYED_DAMAGES", "20"))
ROWS, STOPS = 500, (150, 350)


def mark_as_written(file):
    """Leave the mark of a store as a crash in a batch does."""
    mark = StoreMark(file.parent, file.name)
    mark.written()
    mark._write(1)
    mark.close()


class Stopped(Exception):
    pass


class Source:
    """Rows, of which a run gets those before a stop."""

    def __init__(self, stop):
        self.stop = stop

    def __iter__(self):
        random = Random(1)
        for number in range(ROWS):
            if number == self.stop:
                raise Stopped
            yield {"k": f"key{random.randrange(100)}", "t": number, "v": random.randrange(100)}


class Ledger(KeyedProcessFunction):
    total = ValueState(int, default=0)
    last = MapState(int, str)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.v)
        self.last[value.v % 5] = "x" * value.v
        ctx.timer_service().register_event_time_timer(value.t + 200)
        yield value.k, self.total.value(), sum(map(len, self.last.values()))

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, len(self.last)


def run(folder: Path, stop: int, store: Any) -> None:
    """Run until a stop; the rows of a batch are in a file."""

    def sink(batch, batch_id):
        rows = [list(row) for row in batch]
        (folder / "out" / f"{batch_id:05}.json").write_text(json.dumps(rows, default=list))

    (folder / "out").mkdir(parents=True, exist_ok=True)
    stream = keyed.stream(Source(stop), timestamp="t").key_by("k")
    output = stream.process(
        Ledger(), "k string, a bigint, b bigint", store=store, changelog=DirectoryChangelog(folder / "log")
    )
    try:
        output.run(sink, checkpoint=folder / "checkpoint", local_dir=folder / "stores", rows_per_batch=50)
    except (Stopped, QueryFailed):
        if stop == ROWS:
            raise


def written(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted((folder / "out").iterdir())]


def files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in (folder / "stores").rglob("*")
        if path.is_file() and not path.name.startswith(("LOG", "LOCK", "lock"))
    )


def in_a_child(*arguments: Any) -> int:
    process = context().Process(target=run, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def context() -> Any:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(
        [__name__, "keyed.runtimes.local.local_query", "rocksdict", "lmdb", "xxhash", "pyarrow.parquet"]
    )
    return found


@pytest.mark.parametrize("store", ["lmdb", "rocksdb"])
@pytest.mark.parametrize(
    ("seed", "damages"),
    [(0, 3), *(pytest.param(seed, DAMAGES, marks=[pytest.mark.slow, pytest.mark.long]) for seed in range(1, 16))],
)
def test_no_damage_of_a_store_changes_what_a_job_writes(tmp_path, store, damages, seed):
    run(tmp_path / "whole", ROWS, store)
    expected = written(tmp_path / "whole")
    run(tmp_path / "first", STOPS[0], store)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    run(tmp_path / "second", STOPS[1], store)
    random, ends = Random(seed), Counter[int]()
    for number in range(damages):
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "second", folder)
        kind = KINDS[(seed + number // 2) % len(KINDS)]
        file = random.choice(files(folder))
        # Each second damage of LMDB is one that leaves the status of the file, as that of a disk does, after a crash.
        hidden = store == "lmdb" and number % 2 == 1
        if hidden:
            (file,) = folder.rglob("data.mdb")
        old = tmp_path / "first" / file.relative_to(folder)
        among = is_leaf_of_entries if hidden else bool
        damage(file, kind, random, old.read_bytes() if old.exists() else b"", among=among)
        if hidden:
            mark_as_written(file)
        deaths = 0
        while code := in_a_child(folder, ROWS, store):
            deaths += 1
            assert code < 0, f"{kind} {file.name}: an error instead of a store that is rebuilt"
            assert deaths < 3, f"{kind} {file.name} ends each process"
        ends[deaths] += 1
        assert written(folder) == expected, f"{kind} {file.name} {number}"
        assert all(not each.problem for each in verify_changelog(DirectoryChangelog(folder / "log"))), kind
        shutil.rmtree(folder)
    assert ends[0] > 0


# On Spark ------------------------------------------------------------------------------------------------------------


def test_no_damage_between_runs_changes_what_a_query_writes(spark, tmp_path):
    random = Random(3)
    changelog = DirectoryChangelog(tmp_path / "log")
    expected: list[tuple[str, int, int]] = []
    totals: dict[str, tuple[int, int]] = {}

    def run(number):
        rows = [(f"key{random.randrange(150)}", number, random.randrange(90)) for _ in range(400)]
        write_file(tmp_path / "in", number, rows)
        for k, _, v in rows:
            n, total = totals.get(k, (0, 0))
            totals[k] = n + 1, total + v
            expected.append((k, *totals[k]))
        stream = files_source(spark, tmp_path / "in").key_by("k")
        output = stream.process(Count(), COUNTED, parallelism=1, store="lmdb", changelog=changelog, name="count")
        sink = keyed.parquet_sink(tmp_path / "out")
        for attempt in range(3):
            try:
                output.run(sink, checkpoint=tmp_path / "checkpoint", local_dir=tmp_path / "stores")
            except KeyedError:
                assert attempt < 2
            else:
                break

    older = b""
    run(0)
    for number, kind in enumerate(("old page", "flip", "swap pages", "zero page"), 1):
        hidden = number % 2 == 0
        (file,) = (tmp_path / "stores").rglob("data.mdb")
        content = file.read_bytes()
        damage(file, kind, random, older, among=is_leaf_of_entries if hidden else bool)
        older = content
        if hidden:
            # As a disk does it, and while a worker ended.
            mark_as_written(file)
        run(number)
        rows = pyarrow.dataset.dataset(tmp_path / "out").to_table().to_pylist()
        assert sorted((row["k"], row["n"], row["total"]) for row in rows) == sorted(expected), kind
        assert not any(each.problem for each in verify_changelog(changelog)), kind
