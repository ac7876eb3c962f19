"""Vectorized functions of two connected streams, in the local runtime and the harness."""

import pyarrow as pa
import pytest

import keyed
from keyed.errors import DefinitionError, KeyTypeError, StateDefinitionError
from keyed.testing import KeyedTestHarness
from tests.keyed.runtimes.spark.functions import BothColumns
from tests.keyed.runtimes.test_two_inputs import expected, last_counts, rows_of


def both(left, right, **options):
    first = keyed.stream(left, timestamp="t", watermark=keyed.bounded_out_of_orderness(5))
    second = keyed.stream(right, timestamp="u", watermark=keyed.bounded_out_of_orderness(7))
    columns = "k string, first bigint, second bigint"
    return first.connect(second).key_by("k", "other").process(BothColumns(), columns, name="both", **options)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("make", [list, pa.Table.from_pylist])
def test_both_sides_share_the_tables_of_their_keys(make, parallelism):
    left, right = rows_of(1, 200, disorder=5), rows_of(2, 150, key="other", time="u", disorder=7)
    for size in (7, 1000):
        result = both(make(left), make(right), parallelism=parallelism).run(rows_per_batch=size)
        assert last_counts(result.values) == expected(left, right)
        assert result.metrics["both"]["rows_in"] == 350


def late_of(harness):
    return [tuple(record.value) for record in harness.take_side_output("late")]


def test_late_rows_are_told_of_the_first_side_and_then_of_the_second():
    first, second = ([{key: "a", "t": t} for t in times] for key, times in (("k", [50, 9]), ("other", [9, 50])))
    with KeyedTestHarness(BothColumns(), key="k", key2="other") as harness:
        harness.advance_watermark1(10)
        harness.advance_watermark2(20)
        harness.process_batches(pa.Table.from_pylist(first), pa.Table.from_pylist(second), "t")
        assert late_of(harness) == [("first", 9), ("second", 9)]
        harness.process_batches(None, pa.Table.from_pylist(second), "t")
        assert late_of(harness) == [("second", 9)]
        assert harness.state_entries() == 1


def test_what_is_refused():
    rows = pa.table({"k": ["a"], "t": [1]})
    one, other = keyed.stream(rows, timestamp="t"), keyed.stream(rows, timestamp="t")
    with pytest.raises(DefinitionError, match="BothColumns takes two streams"):
        one.key_by("k").process(BothColumns())

    class NoMethod(keyed.vectorized.VectorizedCoFunction):
        pass

    class Combines(BothColumns):
        def combine(self, table):
            return table

    for function, said in ((NoMethod, "does not define process_batches"), (Combines, "of two streams has none")):
        with pytest.raises(StateDefinitionError, match=said):
            one.connect(other).key_by("k").process(function())
    numbers = keyed.stream(pa.table({"k": [1], "t": [1]}), timestamp="t")
    with pytest.raises(KeyTypeError, match="keys of types int and str"):
        one.connect(numbers).key_by("k").process(BothColumns()).run()
    with KeyedTestHarness(BothColumns(), key="k") as harness, pytest.raises(DefinitionError, match="process_batches"):
        harness.process_batch(rows, "t")
