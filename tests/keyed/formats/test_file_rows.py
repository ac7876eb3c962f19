"""Rows of files: lines of any length and any cut, with the reasons of bad ones."""

import csv
import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.errors import SourceError
from keyed.formats import file_rows
from keyed.formats.file_rows import file_parts
from keyed.formats.sql_types import INT, STRING

COLUMNS = {"k": STRING, "n": INT}


def read(path, *, waits=False):
    """The rows of a file, and the reasons of bad ones by their place."""
    rows: list[Any] = []
    bad: dict[str, str] = {}
    for part in file_parts(path, COLUMNS, lambda names: {name: name for name in names}, waits=waits):
        cells = [part.cells[name] for name in COLUMNS]
        rows += [row for place, row in enumerate(zip(*cells, strict=True)) if place not in part.bad]
        bad |= {part.where(place).rpartition(", ")[2]: reason for place, reason in part.bad.items()}
    return rows, bad


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(file_rows, "LONGEST", 60)
    monkeypatch.setattr(file_rows, "_BLOCK", 7)


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_line_that_is_too_long_is_a_bad_row_and_no_other(suffix, tmp_path, short):
    lines = ['{"k":"a","n":1}', '{"k":"' + "x" * 200 + '"}', '{"k":"b","n":2}'] if suffix == "jsonl" else []
    lines = lines or ["k,n", "a,1", "x" * 200, "b,2"]
    path = tmp_path / f"rows.{suffix}"
    path.write_text("\n".join(lines))
    rows, bad = read(path)
    assert [(k, int(n)) for k, n in rows] == [("a", 1), ("b", 2)]
    assert [*bad.values()] == ["it is longer than 16 MiB"]


def test_a_line_of_any_length_takes_bounded_memory(tmp_path):
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        for _ in range(128):
            file.write(b"x" * (1 << 20))
        file.write(b'\n{"k":"a","n":1}\n')
    tracemalloc.start()
    try:
        rows, bad = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (rows, [*bad]) == ([("a", 1)], ["line 1"])
    assert peak < 60 << 20


def test_a_quote_that_is_never_closed_is_a_bad_row_of_bounded_length(tmp_path, short):
    path = tmp_path / "rows.csv"
    path.write_text('k,n\na,1\n"open,2\n' + "".join(f"r{number},{number}\n" for number in range(40)))
    rows, bad = read(path)
    assert [*bad.values()] == ["it is longer than 16 MiB"]
    assert (rows[0], rows[-1]) == (("a", "1"), ("r39", "39"))


@given(
    st.lists(st.tuples(st.text(max_size=8).filter(lambda text: "\r" not in text), st.integers(0, 99)), max_size=9),
    st.integers(3, 30),
)
def test_rows_do_not_depend_on_the_blocks_that_are_read(tmp_path_factory, rows, block):
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows.jsonl").write_bytes(b"".join(json.dumps({"k": k, "n": n}).encode() + b"\n" for k, n in rows))
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([("k", "n"), *rows])
    (folder / "rows.csv").write_bytes(b"\xef\xbb\xbf" + text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_rows, "_BLOCK", block)
        patch.setattr(file_rows, "ROWS", 4)
        assert read(folder / "rows.jsonl") == (rows, {})
        assert read(folder / "rows.csv") == ([(k or None, str(n)) for k, n in rows], {})


@pytest.mark.parametrize("waits", [False, True])
def test_a_last_line_without_its_end_waits_with_a_checkpoint(waits, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("k,n\na,1\nb,2")
    assert len(read(path, waits=waits)[0]) == 2 - waits


@pytest.mark.parametrize("end", ['b,"2', 'b,"2\n', 'b,"2\n3', '"b\n\n', 'b,"2\n""'])
def test_a_last_row_of_csv_with_an_open_quote_waits_with_a_checkpoint_and_is_bad_without(end, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("k,n\na,1\n" + end)
    assert read(path, waits=True) == ([("a", "1")], {})
    _, bad = read(path)
    assert list(bad.values()) == ["a quote is not closed"]
    path.write_text("k,n\na,1\n" + end.rstrip('"') + '3"\n' if end[0] == "b" else "k,n\na,1\n" + end + '",2\n')
    rows, bad = read(path, waits=True)
    assert (len(rows), bad) == (2, {})


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "r.parquet"
    path.write_text("junk")
    with pytest.raises(SourceError, match=r"r\.parquet cannot be read as Parquet: Parquet file size is 4 bytes"):
        next(file_parts(path, {}, lambda names: {}, waits=False))
