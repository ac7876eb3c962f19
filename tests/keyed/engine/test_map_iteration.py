"""Iterations of a map state that are left early, run beside each other, or whose map changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import KeyedProcessFunction, MapState
from tests.keyed.engine.groups import Group

KEYS = st.integers(0, 12)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS),
    st.tuples(st.just("remove"), KEYS),
    st.tuples(st.just("get"), KEYS),
    st.tuples(st.just("start"), st.integers(0, 2)),
    st.tuples(st.sampled_from(["start at 0", "start at 1", "start at 2"]), KEYS),
    st.tuples(st.just("next"), st.integers(0, 2)),
    st.tuples(st.just("clear"), st.just(0)),
)


class Model(dict[int, int]):
    """A map whose iterations yield the keys that existed at their start and still do; they end when it is cleared."""

    cleared = 0

    def items(self) -> Iterator[Any]:  # type: ignore[override]
        return self.items_from(min(self, default=0))

    def items_from(self, first: int) -> Iterator[Any]:
        cleared = self.cleared
        for key in sorted(key for key in self if key >= first):
            if cleared != self.cleared:
                return
            if key in self:
                yield key, self[key]

    def clear(self) -> None:
        super().clear()
        self.cleared += 1


class Program(KeyedProcessFunction):
    entries = MapState(int, int)
    model = Model()

    def process_element(self, value, ctx):
        model, steps = Program.model, value[1]
        walks: list[Any] = [None] * 3
        for number, (name, argument) in enumerate(steps):
            if name == "put":
                self.entries[argument] = model[argument] = number
            elif name == "remove":
                self.entries.remove(argument)
                model.pop(argument, None)
            elif name == "get":
                assert self.entries.get(argument) == model.get(argument)
            elif name == "clear":
                self.entries.clear()
                model.clear()
            elif name.startswith("start"):
                # An iteration starts with its first entry.
                walk = int(name[-1]) if name != "start" else argument
                if name == "start":
                    walks[walk] = self.entries.items(), model.items()
                else:
                    walks[walk] = self.entries.items_from(argument), model.items_from(argument)
                assert next(walks[walk][0], None) == next(walks[walk][1], None)
            elif walks[argument] is not None:
                assert next(walks[argument][0], None) == next(walks[argument][1], None)
        for first in (7, 3):
            assert list(self.entries.items_from(first)) == list(model.items_from(first))
        assert list(self.entries.items()) == list(model.items())
        assert self.entries.is_empty() == (not model)


@pytest.mark.parametrize("runs", ["retained", "stored"])
@settings(max_examples=settings().max_examples * 4)
@given(batches=st.lists(st.lists(st.lists(STEPS, max_size=12), min_size=1, max_size=3), min_size=1, max_size=4))
def test_an_iteration_yields_what_existed_at_its_start_and_still_exists(runs, batches):
    rows = [[("a", steps) for steps in batch] for batch in batches]
    Program.model = Model()
    if runs == "stored":
        group = Group(Program())
        for batch in rows:
            group.run(*batch)
    else:
        for size in (1, 100):
            Program.model = Model()
            keyed.stream([row for batch in rows for row in batch]).key_by(lambda row: row[0]).process(Program()).run(
                rows_per_batch=size
            )
