"""The state machine drives a harness by its rules, and finds what its invariants say."""

from __future__ import annotations

import unittest
from collections import Counter
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from keyed import KeyedProcessFunction, ValueState, bounded_out_of_orderness
from keyed.testing import KeyedStateMachine, KeyedTestHarness


class Count(KeyedProcessFunction):
    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield value, self.count.value()


class OnSelf(KeyedProcessFunction):
    def open(self, context):
        self.counts: Counter[str] = Counter()

    def process_element(self, value, ctx):
        self.counts[value] += 1
        yield value, self.counts[value]


class Counts(KeyedStateMachine):
    rows = st.sampled_from("ab")
    function: type[KeyedProcessFunction] = Count

    def make_harness(self):
        return KeyedTestHarness(self.function(), watermark=bounded_out_of_orderness(0))

    @invariant()
    def each_row_is_counted(self):
        wanted: Counter[Any] = Counter()
        for row in self.seen:
            wanted[row.value] += 1
        assert {key: max(n for k, n in self.values() if k == key) for key in wanted} == wanted

    def values(self):
        return [record.value for record in self.outputs]


TestCounts = Counts.TestCase


class WrongCounts(Counts):
    function = OnSelf


def test_a_fault_is_found_and_its_steps_are_said():
    case: Any = WrongCounts.TestCase("runTest")
    # Without the phase that explains examples, which takes longer than to find them.
    case.settings = settings(
        max_examples=200,
        database=None,
        stateful_step_count=8,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
    )
    result = unittest.TestResult()
    case.run(result)
    said = "".join(text for _, text in [*result.failures, *result.errors])
    assert "process_dies" in said or "key_groups_change" in said
    assert said.count("rows_come(") >= 2
    assert "    harness = WrongCounts().make_harness()\n" in said
    assert "    harness.process('a', 0)\n" in said
