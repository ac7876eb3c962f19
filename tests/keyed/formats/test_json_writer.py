"""Answers as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from keyed.formats.json_writer import as_json
from keyed.tables.entries import Entry

PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def named(value: Any) -> Any:
    """Return a value with floats that JSON has not as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: named(item) for key, item in value.items()}
    return [named(item) for item in value] if isinstance(value, list | tuple) else value


@given(PLAIN)
def test_floats_that_json_has_not_are_text_and_null_is_null(value):
    assert json.loads(as_json(value)) == named(value)


def test_keys_that_are_no_numbers_are_told_from_those_without_bound():
    entries = [
        attrs.asdict(Entry(key=(key, b"a"), namespace=None, entry=None, value=0))
        for key in (math.nan, math.inf, -math.inf, 1.5)
    ]
    found = json.loads(as_json(entries))
    assert [entry["key"] for entry in found] == [
        ["NaN", "YQ=="],
        ["Infinity", "YQ=="],
        ["-Infinity", "YQ=="],
        [1.5, "YQ=="],
    ]
    assert [*found[0]] == ["key", "namespace", "entry", "value", "expires"]
    assert as_json({"a": None, "b": 1.0}) == msgspec.json.encode({"a": None, "b": 1.0})
