"""A job with everything that commands are given: changelog, checkpoint, tables, sink and record."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import keyed
from tests.support.tables import poll_tables


class Count(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield {"word": value["word"], "n": self.count.value()}


class Twice(Count):
    def process_element(self, value, ctx):
        yield from super().process_element(value, ctx)
        yield from super().process_element(value, ctx)


@pytest.fixture(scope="session")
def job_folder(tmp_path_factory) -> Path:
    """A folder with what a job has left, in two key groups, and with folders that no job has written."""
    folder = tmp_path_factory.mktemp("places")
    log = keyed.DirectoryChangelog(folder / "changelog", auto_compact=False)
    rows = [{"word": word} for word in ("to", "be", "or", "not", "to", "be")]
    counted = (
        keyed.stream(rows)
        .key_by("word")
        .process(Count(), "word string, n bigint", name="count", parallelism=2, changelog=log)
    )
    counted.run(
        keyed.parquet_sink(folder / "sink"),
        checkpoint=folder / "checkpoint",
        rows_per_batch=2,
        drain=False,
        record=folder / "record",
    )
    with poll_tables(log, folder / "tables"):
        pass
    (folder / "empty").mkdir()
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("x")
    (folder / "file").write_text("x")
    (folder / "views.sql").write_text(
        "CREATE STREAM words (word STRING, n INT); CREATE STREAM out AS SELECT * FROM words; "
        "INSERT INTO words VALUES ('to', 1);"
    )
    for name in ("offsets", "commits"):
        (folder / "spark" / name).mkdir(parents=True)
    (folder / "spark" / "metadata").write_text('{"id":"x"}')
    return folder


@pytest.fixture
def places(job_folder, tmp_path, monkeypatch) -> Path:
    """A copy of `job_folder`, as the working directory."""
    shutil.copytree(job_folder, tmp_path / "places")
    monkeypatch.chdir(tmp_path / "places")
    return tmp_path / "places"
