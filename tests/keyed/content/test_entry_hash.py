"""The order-independent hash of entries: of what it depends, and of what it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.content.entry_hash import MODULUS, hash_of_text, hash_sum, hash_text
from keyed.errors import CorruptionError

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
    with pytest.raises(CorruptionError, match="is no hash"):
        hash_of_text(text, "x")
