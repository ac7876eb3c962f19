"""The semantics of state, timers and outputs as Flink's harness tests state them, through the public harness."""

from __future__ import annotations

import pytest

from keyed import KeyedProcessFunction, ValueState
from keyed.errors import DefinitionError
from keyed.testing import KeyedTestHarness, Record


class Count(KeyedProcessFunction):
    seen = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        yield ctx.get_current_key(), self.seen.value()


def test_a_batch_is_one_commit_in_event_time_order():
    harness = KeyedTestHarness(Count(), key=lambda v: v)
    with harness.batch():
        harness.process("a", 30)
        harness.process("b", 10)
        harness.process("a", 20)
    assert harness.take_output() == [Record(("b", 1), 10), Record(("a", 1), 20), Record(("a", 2), 30)]
    assert harness.metrics()["batches"] == 1


def test_a_batch_is_in_the_order_of_arrival_where_the_job_is():
    harness = KeyedTestHarness(Count(), order="arrival")
    with harness.batch():
        harness.process("a", 30)
        harness.process("b", 10)
    assert harness.take_output() == [Record(("a", 1), 30), Record(("b", 1), 10)]
    with pytest.raises(DefinitionError, match="order='time' must be 'event_time', 'watermark' or 'arrival'"):
        KeyedTestHarness(Count(), order="time")  # type: ignore[arg-type]


class PerSensor(KeyedProcessFunction):
    n = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.n.update(self.n.value() + value.v)
        yield ctx.get_current_key(), value["v"], self.n.value()


@pytest.mark.parametrize("key", ["sensor", ["sensor"], lambda row: row.sensor, lambda row: row["sensor"]])
def test_keys_by_name_and_rows_out_of_dictionaries_are_as_in_a_stream(key):
    harness = KeyedTestHarness(PerSensor(), key=key)
    for sensor, value in (("a", 1), ("b", 2), ("a", 3)):
        harness.process({"sensor": sensor, "v": value})
    assert [record.value for record in harness.take_output()] == [("a", 1, 1), ("b", 2, 2), ("a", 3, 4)]
    harness = KeyedTestHarness(PerSensor(), key=["sensor", "v"])
    harness.process({"sensor": "a", "v": 1})
    assert [record.value for record in harness.take_output()] == [(("a", 1), 1, 1)]
    with pytest.raises(DefinitionError, match="'sensor' is not in element"):
        harness.process({"v": 1})
