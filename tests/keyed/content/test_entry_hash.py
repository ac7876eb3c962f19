"""The order-independent hash of entries: of what it depends, and of what it does not."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.content.blocks import TableDelta
from keyed.content.contents import MODULUS, LiveHash, contents_hash, hash_of_text, hash_sum, hash_text
from keyed.content.delta import Delta
from keyed.errors import CorruptionError
from keyed.stores import MemoryStore

small = st.binary(max_size=4)
entries = st.dictionaries(st.tuples(small, small), small, max_size=8)


def flat(entries):
    return [(prefix, sub, value) for (prefix, sub), value in entries.items()]


def test_layout_is_fixed():
    assert hash_text(hash_sum([(b"ab", b"c", b"de")])) == "2827d86ad2b3a3c8ee1110889297a89d"
    assert hash_text(hash_sum([])) == "0" * 32


@given(entries, st.randoms())
def test_order_does_not_matter(entries, random):
    shuffled = flat(entries)
    random.shuffle(shuffled)
    assert hash_sum(shuffled) == hash_sum(flat(entries))


@given(entries, entries)
def test_a_commit_needs_only_what_it_changes(before, written):
    after = before | written
    replaced = [(*address, before[address]) for address in written if address in before]
    running = (hash_sum(flat(written), hash_sum(flat(before))) - hash_sum(replaced)) % MODULUS
    assert running == hash_sum(flat(after))


def test_where_a_part_ends_matters():
    parts = [(b"ab", b"c", b"d"), (b"a", b"bc", b"d"), (b"abc", b"", b"d"), (b"", b"abc", b"d")]
    assert len({hash_sum([part]) for part in parts}) == len(parts)


@given(st.integers(0, MODULUS - 1))
def test_text_round_trip(value):
    assert hash_of_text(hash_text(value), "x") == value


@pytest.mark.parametrize("text", ["", "1", "g" * 32, "A" * 32, "0" * 33, "-" + "0" * 31, "1_" * 16])
def test_what_is_no_hash_is_refused(text):
    with pytest.raises(CorruptionError, match="is not a hash"):
        hash_of_text(text, "x")


STATES = {"t": {"id": 7, "schema": {"kind": "table", "key": ["k"]}}}
ENTRIES = st.dictionaries(
    st.sampled_from([b"\x01a", b"\x01b", b"\x05c"]), st.none() | st.binary(min_size=8, max_size=9)
)
ROWS = st.dictionaries(st.integers(0, 5), st.none() | st.integers(0, 9))


@given(st.lists(st.tuples(ENTRIES, ROWS), max_size=6))
def test_what_is_kept_level_with_changes_is_what_is_live(changes):
    store = MemoryStore()
    live = LiveHash(store)
    for number, (entries, rows) in enumerate(changes, 1):
        removed = pa.table({"k": pa.array([key for key, value in rows.items() if value is None], pa.int64())})
        written = {key: value for key, value in rows.items() if value is not None}
        upserts = pa.table({"k": pa.array(written, pa.int64()), "v": pa.array(written.values(), pa.int64())})
        table = TableDelta(7, ("k",), removed=removed, upserts=upserts)
        delta = Delta([(prefix, b"", value) for prefix, value in entries.items()], [table])
        live.add(delta)
        store.apply("log", number, delta.entries, delta.tables)
        found = contents_hash(store, STATES)
        assert (live.value, live.live) == (found.value, found.live)


def test_rows_that_are_at_hand_are_not_looked_up():
    store = MemoryStore()
    old, new = (pa.table({"k": [1], "v": [value]}) for value in (1, 2))
    store.apply("log", 1, [], [TableDelta(7, ("k",), upserts=old)])
    change = Delta(tables=[TableDelta(7, ("k",), upserts=new)])
    looked_up, given_ = LiveHash(store), LiveHash()
    looked_up.add(change)
    given_.add(change, {7: old})
    assert (looked_up.value, looked_up.live) == (given_.value, given_.live)
