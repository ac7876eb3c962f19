"""The cost model of `tests.benchmarks.scale`: the fit finds the costs that batches were made of."""

import pytest

from tests.benchmarks.cost_model import NAMES, Batch, fitted, predicted

SIZES = [(2, 2), (16, 16), (4, 4), (64, 64), (4, 128)]


def batches(costs):
    """A large and a small batch of each size, with the given costs."""
    found = [Batch(rows, groups, tasks) for tasks, groups in SIZES for rows in (1_000_000, 20_000)]
    return [Batch(each.rows, each.groups, each.tasks, predicted(costs, each)) for each in found]


def test_the_costs_of_batches_are_found():
    costs = dict(zip(NAMES, [0.5, 4.0, 0.1, 0.02, 0.0003], strict=True))
    assert fitted(batches(costs)) == pytest.approx(costs)


def test_no_cost_is_negative():
    costs = dict(zip(NAMES, [0.5, 4.0, 0.1, -0.01, 0.0], strict=True))
    found = fitted(batches(costs))
    assert min(found.values()) >= 0
    assert found["source task"] == 0


def test_the_cost_of_a_batch_is_the_sum_over_its_parts():
    costs = dict(zip(NAMES, [1.0, 10.0, 100.0, 1_000.0, 10_000.0], strict=True))
    assert predicted(costs, Batch(500_000, 2, 3)) == 1 + 5 + 200 + 3_000 + 60_000
