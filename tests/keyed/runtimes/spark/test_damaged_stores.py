"""The stores of Spark's workers are damaged between runs: no wrong row, no crash loop, a right changelog."""

from __future__ import annotations

from random import Random

import pyarrow.dataset
import pytest

import keyed
from keyed import DirectoryChangelog
from keyed.errors import KeyedError
from keyed.recovery.verification import verify_changelog
from keyed.stores.store_mark import StoreMark
from tests.keyed.runtimes.spark.functions import COUNTED, Count, files_source, write_file
from tests.support.damages import damage, is_leaf_of_entries

pytestmark = pytest.mark.spark


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
            mark = StoreMark(file.parent, file.name)
            mark.written()
            mark._write(1)
            mark.close()
        run(number)
        rows = pyarrow.dataset.dataset(tmp_path / "out").to_table().to_pylist()
        assert sorted((row["k"], row["n"], row["total"]) for row in rows) == sorted(expected), kind
        assert not any(each.problem for each in verify_changelog(changelog)), kind
