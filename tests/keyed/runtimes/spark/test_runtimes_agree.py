"""The ready property that compares runtimes, with Spark among them."""

from __future__ import annotations

from typing import Any

import pytest

from keyed import KeyedProcessFunction, bounded_out_of_orderness
from keyed.testing import Falsified, assert_runtimes_agree, strategies
from tests.keyed.testing.test_right_functions import Minutes
from tests.keyed.testing.test_two_inputs import BOTH, DELAY, RULED, RULES, Purchases, ToldRules

ROWS = strategies.rows("user string, time bigint", user=strategies.skewed("ann", "bob"))
STREAM = strategies.streams(ROWS, timestamp="time", gap=60_000, delay=3_000, min_size=2)
OPTIONS: dict[str, Any] = {
    "timestamp": "time",
    "schema": "user string, time bigint",
    "key": "user",
    "watermark": bounded_out_of_orderness(3_000),
    "examples": 2,
}


class Where(KeyedProcessFunction):
    def process_element(self, value, ctx):
        import sys

        yield "pyspark.worker" in sys.modules, 0, 0


def test_spark_gives_what_the_harness_and_the_local_runtime_give(spark):
    told = assert_runtimes_agree(Minutes(), STREAM, output="user string, end bigint, n bigint", spark=spark, **OPTIONS)
    assert "the harness, the local runtime and Spark give the same outputs" in told


def test_a_function_that_is_another_on_spark_is_found(spark):
    with pytest.raises(Falsified, match="on Spark"):
        assert_runtimes_agree(Where(), STREAM, output="here boolean, a bigint, b bigint", spark=spark, **OPTIONS)


VIEWS = "user string, page string, time bigint"
TWO_INPUTS = [
    (Purchases, BOTH, "user string, at bigint, clicks bigint", "who string, amount bigint, time bigint"),
    (ToldRules, RULED, "user string, page string", "page string, limit int, time bigint"),
]


@pytest.mark.long
@pytest.mark.parametrize(("function", "elements", "output", "schema2"), TWO_INPUTS)
def test_spark_agrees_over_two_inputs_and_broadcast_elements(spark, function, elements, output, schema2):
    options: dict[str, Any] = {"broadcast": [RULES]}
    if function is Purchases:
        options = {"key2": "who", "watermark": DELAY}
    options |= {"timestamp": "time", "key": "user", "schema": VIEWS, "schema2": schema2, "output": output}
    told = assert_runtimes_agree(function(), elements, spark=spark, **options)
    assert "and Spark give the same outputs, in 5 different examples" in told
