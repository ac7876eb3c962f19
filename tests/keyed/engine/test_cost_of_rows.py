"""The cost of a row does not grow with what its batch has written for its key: four times the rows, as many steps."""

from __future__ import annotations

from functools import partial

import pytest

import keyed
from keyed import KeyedProcessFunction, MapState
from tests.keyed.engine.groups import Group
from tests.support.steps import steps

ROWS = 200


class Calls(KeyedProcessFunction):
    """Runs one operation at each row."""

    map = MapState(int, int)

    def __init__(self, operation):
        self.operation = operation

    def process_element(self, value, ctx):
        self.operation(self, value[1], ctx)


def growing_map(f, i, ctx):
    f.map.put(i, i)
    assert f.map


def map_of_one(f, i, ctx):
    f.map.put(i, i)
    f.map.remove(i - 1)
    assert not f.map.is_empty()


def first_of_a_map(f, i, ctx):
    f.map.put(-i, i)
    assert next(f.map.keys()) == -i


OPERATIONS = [growing_map, map_of_one, first_of_a_map]


def retained(operation, rows):
    """Run rows in one batch, with state that is retained in memory."""
    keyed.stream(rows).key_by(lambda row: row[0]).process(Calls(operation)).run()


def stored(operation, rows):
    """Run rows in one batch, with state in a local store."""
    Group(Calls(operation)).run(*rows)


@pytest.mark.parametrize("run", [retained, stored])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_cost_of_a_row_does_not_grow_with_the_rows_of_its_key(operation, run):
    few, many = (steps(partial(run, operation, rows_of(count))) for count in (ROWS, 4 * ROWS))
    assert many < 5 * few, f"{few:,} and {many:,} steps"


def rows_of(count):
    return [("a", i) for i in range(count)]
