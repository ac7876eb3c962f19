"""Rows of tables in a directory log: kept as Arrow blocks, folded by compaction as a dictionary would."""

from random import Random

import attrs
import pyarrow as pa
import pytest

from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.content.blocks import TableBlock
from keyed.content.contents import MODULUS, hash_sum, hash_text
from keyed.content.row_hash import rows_hash
from keyed.errors import CorruptionError
from tests.keyed.changelog.directory.support import compact_all, made

KEY = pa.schema([pa.field("user", pa.string())]).append(pa.field("start", pa.int64()))
FULL = KEY.append(pa.field("amount", pa.decimal128(9, 2))).append(pa.field("score", pa.float64()))
STATES = {
    "rows": {"id": 3, "schema": {"name": "rows", "kind": "table", "key": ["user", "start"], "value": {}, "ttl": None}}
}


def row(number):
    user = number.choice([None, "", "a", "b", "ü"])
    return {"user": user, "start": number.choice([None, 0, 1, -5, 2**62])}


def block(number, model):
    """Random changes of the table as a block, which also go into a dictionary."""
    removed = [row(number) for _ in range(number.randrange(4))]
    written = [row(number) | {"amount": None, "score": number.random()} for _ in range(number.randrange(5))]
    for key in removed:
        model.pop((key["user"], key["start"]), None)
    for full in written:
        model[full["user"], full["start"]] = full
    return TableBlock(
        3,
        len(removed) + len(written),
        write_stream(pa.Table.from_pylist(removed, KEY)) if removed else None,
        write_stream(pa.Table.from_pylist(written, FULL)) if written else None,
    )


def vouched(sample, rows, schema=FULL):
    """Number and hash of the sample's entries and some rows in a marker."""
    table = pa.Table.from_pylist(list(rows), schema)
    entries = ((*address, value) for address, value in sample.state.items())
    total = (hash_sum(entries) + rows_hash(table, 3)) % MODULUS
    return {"states": STATES, "entries": len(sample.state) + table.num_rows, "hash": hash_text(total)}


def folded(reader):
    """The result of reading a log from the beginning: entries and rows."""
    entries: dict = {}
    rows: dict = {}
    for commit, blocks in reader.commits():
        if commit.snapshot:
            entries, rows = {}, {}
        for found in blocks:
            if not isinstance(found, TableBlock):
                entries |= {change[:2]: change[2] for change in found}
                continue
            assert found.state_id == 3
            for key in read_stream(found.removed, "here").to_pylist() if found.removed else ():
                rows.pop((key["user"], key["start"]), None)
            for full in read_stream(found.written, "here").to_pylist() if found.written else ():
                rows[full["user"], full["start"]] = full
    return {address: value for address, value in entries.items() if value is not None}, rows


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_folded_as_in_a_dictionary(tmp_path, seed):
    number = Random(seed)
    changelog, sample = made(tmp_path, seed=seed)
    writer = changelog.writer(0)
    model: dict = {}
    for _ in range(4):
        for _ in range(number.randrange(4)):
            commit, blocks = sample.commit(5)
            blocks += [block(number, model) for _ in range(number.randrange(3))]
            marker = attrs.evolve(commit, **vouched(sample, model.values()))
            assert writer.append(marker, blocks).records >= len(blocks) - 2
        compact_all(changelog, sample, **vouched(sample, model.values()))
        assert folded(changelog.reader(0)) == (sample.state, model)
        for _, content in changelog.reader(0).commits():
            assert all(part.removed is None for part in content if isinstance(part, TableBlock))


def test_columns_that_were_added_are_null_in_rows_before(tmp_path):
    changelog, sample = made(tmp_path)
    writer = changelog.writer(0)
    wide = pa.schema([*FULL, pa.field("note", pa.string())])
    old, new = row(Random(1)), {"user": "new", "start": 1, "note": "x"}
    for written, there, schema in (([old], [old], FULL), ([new], [old, new], wide)):
        part = TableBlock(3, 1, None, write_stream(pa.Table.from_pylist(written, schema)))
        commit, _ = sample.commit(0)
        writer.append(attrs.evolve(commit, **vouched(sample, there, schema)), [part])
    compact_all(changelog, sample)
    _, rows = folded(changelog.reader(0))
    assert [full["note"] for full in rows.values()] == [None, "x"]


def test_a_large_table_is_cut_into_blocks(tmp_path):
    changelog, sample = made(tmp_path)
    rows = pa.table({"user": [str(number) for number in range(70_000)], "start": list(range(70_000))})
    commit, _ = sample.commit(0)
    parts = [TableBlock(3, rows.num_rows, None, write_stream(rows))]
    changelog.writer(0).append(attrs.evolve(commit, **vouched(sample, rows.to_pylist(), rows.schema)), parts)
    compact_all(changelog, sample)
    (commit, blocks), _ = ((commit, list(blocks)) for commit, blocks in changelog.reader(0).commits())
    assert len(blocks) == 2
    assert pa.concat_tables(read_stream(part.written, "") for part in blocks).sort_by("start").equals(rows)


@pytest.mark.parametrize(
    ("part", "states"),
    [
        (TableBlock(3, 1, None, b"no stream"), STATES),
        (TableBlock(3, 1, None, write_stream(pa.table({"other": [1]}))), STATES),
        (TableBlock(9, 1, None, write_stream(pa.table({"user": ["a"], "start": [1]}))), STATES),
        (TableBlock(3, 1, None, write_stream(pa.table({"user": ["a"], "start": [1]}))), {}),
        (TableBlock(3, 2, None, write_stream(pa.table({"user": ["a"], "start": [1]}))), STATES),
        (TableBlock(3, 1, None, write_stream(pa.table({"user": ["a"], "start": [1]}))), STATES),
    ],
    ids=["no-stream", "no-key", "no-table", "no-states", "fewer-than-said", "of-another-hash"],
)
def test_rows_that_do_not_fit_are_not_folded(tmp_path, part, states):
    changelog, sample = made(tmp_path)
    commit, _ = sample.commit(0)
    changelog.writer(0).append(attrs.evolve(commit, states=states, entries=part.rows), [part])
    with pytest.raises(CorruptionError, match="groups/00000"):
        compact_all(changelog, sample)
