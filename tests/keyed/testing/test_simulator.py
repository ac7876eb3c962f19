"""The simulator: it finds nothing in the library as it is, and bugs that are planted; `make simulate` tries more."""

from __future__ import annotations

import pytest

from keyed import KeyedProcessFunction
from keyed.testing import Record
from tests.keyed.testing import exercise, simulations
from tests.support.simulator.simulation import Simulation, SimulationFailed, simulate


def test_the_library_goes_as_undisturbed():
    simulate(exercise.Exercise(), exercise.rows, key=exercise.key, simulations=25, seed=0)


#: Some that take few seeds; `make simulate` finds them all. Which seeds find a bug changes with each change of what the
#: library calls, since these calls draw the faults in turn: a bug found at 1 of 50 seeds is missed in 100 at times.
FAST = [
    "engine: cleaning drops what is still live",
    "recovery: timers are not restored",
    "Kafka: what is not committed is read",
]


@pytest.mark.parametrize("bug", FAST)
def test_a_planted_bug_is_found(bug):
    assert simulations.finding(bug, 100) is not None


def test_a_failure_says_its_seed_and_its_steps_and_is_repeated_by_the_seed():
    class OnSelf(KeyedProcessFunction):
        def __init__(self):
            self.count = 0

        def process_element(self, value, ctx):
            self.count += 1
            yield self.count

    rows = [Record(n, n) for n in range(20)]
    with pytest.raises(SimulationFailed, match="take_output") as caught:
        simulate(OnSelf(), rows, simulations=50, seed=1)
    again = Simulation(OnSelf(), rows, seed=caught.value.seed)
    with pytest.raises(SimulationFailed) as repeated:
        again.run(again.expected())
    assert repeated.value.script == caught.value.script
    assert "harness.process(" in str(caught.value)
    assert f"Repeat it with seed {caught.value.seed}." in str(caught.value)


class Count(KeyedProcessFunction):
    runs = 0

    def process_element(self, value, ctx):
        type(self).runs += 1
        yield type(self).runs


def test_what_another_simulation_left_in_the_process_is_put_back():
    rows = [Record(n, n) for n in range(8)]
    with pytest.raises(SimulationFailed) as caught:
        simulate(Count(), rows, simulations=50, seed=0)
    with pytest.raises(SimulationFailed) as repeated:
        simulate(Count(), rows, simulations=1, seed=caught.value.seed)
    assert (str(repeated.value), Count.runs) == (str(caught.value), 0)
