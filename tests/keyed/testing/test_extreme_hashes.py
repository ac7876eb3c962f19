"""Hashes of text in the other process of `assert_deterministic`: extreme for the user's code, and only for text."""

from __future__ import annotations

import datetime as dt
import enum
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from keyed.testing.process_state import has_text

ROOT = Path(__file__).parents[3]


class Color(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    LARGE = 1


class Place(NamedTuple):
    name: str


class Numbered(str):
    """Text with a hash of its own."""

    __slots__ = ()

    def __hash__(self):
        return len(self)


VALUES = [
    *("a", b"a", ("a", 1), (1, 2.5), frozenset({"a"}), frozenset({1}), Color.RED, Size.LARGE, Place("a")),
    *(Numbered("a"), dt.date(2000, 1, 1), dt.datetime(2000, 1, 1, tzinfo=dt.UTC)),
    *(dt.datetime(2000, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None), dt.time(1), dt.time(1, tzinfo=dt.UTC)),
    *(dt.timedelta(1), UUID(int=7), 7, 1.5),
]
HASHES = """
import json
from tests.keyed.testing.test_extreme_hashes import VALUES
print(json.dumps([*map(hash, VALUES)]))
"""


def of_seed(seed, program):
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    return json.loads(subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=environment))


def test_values_whose_hashes_depend_on_the_hash_seed_are_recognized():
    pairs = zip(of_seed(1, HASHES), of_seed(2, HASHES), strict=True)
    assert list(map(has_text, VALUES)) == [one != other for one, other in pairs]


@pytest.mark.parametrize(("extreme", "remainder", "sign"), [("low", 0, -1), ("high", -1, 1)])
def test_hashes_of_text_have_an_extreme_remainder_and_sign_while_tables_by_hash_work(extreme, remainder, sign):
    program = f"""
import builtins, json
from keyed.testing.process_state import ExtremeHashes
number, real = hash(7), hash
hashes = ExtremeHashes({extreme!r})
class Text:
    def __hash__(self):
        return hash(("a",))
table = {{hash(each): each for each in ("a", "b")}}
found = [hash("a"), hash(("a", 1)), hash(Text())]
assert [table[hash(each)] for each in ("a", "b")] == ["a", "b"]
assert (hash(7), hash(""), hashes.text_hashes) == (number, 0, 7)
print(json.dumps(found))
"""
    for found in of_seed(1, program):
        assert all(found % buckets == remainder % buckets for buckets in (2, 3, 7, 10, 100, 128, 1_000, 4_096))
        assert 0.98 < found * sign / 2**63 <= 1
