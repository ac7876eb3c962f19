"""Reads of parts of a list state: iterations that are left early or whose list changes meanwhile, ends and indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import KeyedProcessFunction, ListState
from tests.keyed.engine.groups import Group

STEPS = st.one_of(
    st.tuples(st.sampled_from(["add", "update"]), st.lists(st.integers(), max_size=5)),
    st.tuples(st.sampled_from(["start", "next"]), st.integers(0, 2)),
    st.tuples(st.just("index"), st.integers(-9, 9)),
    st.tuples(st.sampled_from(["get", "len", "bool"]), st.none()),
)


class Program(KeyedProcessFunction):
    elements = ListState(int)
    copied = ListState(dict)
    model: list[Any]

    def process_element(self, value, ctx):
        states: list[tuple[ListState[Any], Any]] = [(self.elements, int), (self.copied, lambda each: {"v": each})]
        for state, stored in states:
            model = list(map(stored, Program.model))
            walks: list[Iterator[Any]] = [iter(())] * 3
            expected: list[Iterator[Any]] = [iter(())] * 3
            for name, argument in value[1]:
                if name in ("add", "update"):
                    model = [*(model if name == "add" else []), *map(stored, argument)]
                    (state.add_all if name == "add" else state.update)(map(stored, argument))
                elif name == "start":
                    # It yields the elements at its start.
                    walks[argument], expected[argument] = iter(state), iter(model)
                elif name == "next":
                    assert next(walks[argument], None) == next(expected[argument], None)
                elif name == "index":
                    assert at(state, argument) == at(model, argument)
                elif name == "len":
                    assert len(state) == len(model)
                elif name == "bool":
                    assert bool(state) == bool(model)
                else:
                    assert state.get() == list(state) == state[:] == model
            assert [list(walk) for walk in walks] == [list(walk) for walk in expected]
            assert state.get() == model
        Program.model = [each["v"] for each in model]


def at(elements, index):
    try:
        return elements[index]
    except IndexError:
        return "beyond"


@pytest.mark.parametrize("runs", ["retained", "stored"])
@given(batches=st.lists(st.lists(STEPS, max_size=12), min_size=1, max_size=5))
def test_reads_of_parts_agree_with_a_list(runs, batches):
    Program.model = []
    rows = [("a", steps) for steps in batches]
    if runs == "retained":
        keyed.stream(rows).key_by(lambda row: row[0]).process(Program()).run(rows_per_batch=1)
    else:
        group = Group(Program())
        for row in rows:
            group.run(row)
