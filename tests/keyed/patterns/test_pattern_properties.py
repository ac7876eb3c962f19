"""Batch cuts, crashes, another number of key groups, and the runtime change nothing of what patterns find."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import bounded_out_of_orderness
from keyed.patterns import AfterMatchSkipStrategy, Match, Pattern, PatternProcessFunction
from keyed.patterns.pattern_operator import PatternContext
from keyed.testing import (
    assert_batch_split_invariant,
    assert_deterministic,
    assert_recovery_invisible,
    assert_rescale_invisible,
    assert_runtimes_agree,
    strategies,
)
from tests.keyed.patterns.matching import operator_of


def named(name):
    return lambda row: row.what == name


SKIP = AfterMatchSkipStrategy.skip_past_last_event()
A = Pattern.begin("a", named("a"))
PATTERNS = {
    "in a row": A.next("b", named("b")).within(50),
    "later": A.followed_by("b", lambda row, match: row.n > match["a"][0].n).within(50),
    "any": A.followed_by_any("b", named("b")).times(1, 2).allow_combinations().within(50),
    "loop": A.one_or_more().greedy().followed_by("b", named("b")).within(50),
    "silence": A.not_followed_by("b", named("b")).within(30),
    "group": Pattern.begin(A.followed_by("b", named("b"))).times(2).within(100),
    "skipping": Pattern.begin("a", named("a"), after_match=SKIP).one_or_more().followed_by("b", named("b")).within(50),
}
ROWS = strategies.rows(
    "k string, what string, n bigint", k=st.sampled_from("xy"), what=st.sampled_from("abc"), n=st.integers(0, 3)
)
TIMED = strategies.rows(
    "k string, what string, n bigint, t bigint",
    k=st.sampled_from("xy"),
    what=st.sampled_from("abc"),
    n=st.integers(0, 3),
)
STREAM = strategies.streams(ROWS, gap=20)
OPTIONS: dict[str, Any] = {"key": "k", "watermark": bounded_out_of_orderness(15), "order": "watermark", "examples": 40}


class Outcomes(PatternProcessFunction):
    """Emits each match, and each partial match that times out, as text."""

    def process_match(self, match: Match, ctx: PatternContext) -> Any:
        yield ctx.get_current_key(), ctx.timestamp(), repr({step: [row.n for row in match[step]] for step in match})

    def process_timed_out_match(self, match: Match, ctx: PatternContext) -> Any:
        yield ctx.get_current_key(), ctx.timestamp(), repr(("timed out", list(match)))


def operator(name):
    return operator_of(PATTERNS[name], function=Outcomes())


PROPERTIES = (assert_batch_split_invariant, assert_recovery_invisible, assert_rescale_invisible)
#: Of each pattern one property is fast, and of each property two patterns or three.
CASES = [
    pytest.param(property_, name, marks=() if pattern % 3 == number else pytest.mark.slow)
    for number, property_ in enumerate(PROPERTIES)
    for pattern, name in enumerate(PATTERNS)
]


@pytest.mark.parametrize(("property_", "name"), CASES)
def test_batches_crashes_and_key_groups_change_nothing(property_, name):
    property_(operator(name), STREAM, **OPTIONS)


@pytest.mark.parametrize("name", PATTERNS)
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("abc"), st.integers(0, 15)), max_size=20))
def test_the_order_of_arrival_changes_nothing_within_the_delay(name, rows):
    arrived = [
        {"k": key, "what": what, "n": number, "t": 1000 * (number // 3) + 5 * number - late}
        for number, (key, what, late) in enumerate(rows)
    ]
    outcomes = []
    for given_rows, count in ((arrived, 1), (arrived, 100), (sorted(arrived, key=lambda row: row["t"]), 3)):
        stream = keyed.stream(given_rows, timestamp="t", watermark=bounded_out_of_orderness(15)).key_by("k")
        found = stream.match(PATTERNS[name]).process(Outcomes()).run(rows_per_batch=count)
        outcomes.append(sorted(found.values))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["later", "skipping"])
def test_matches_are_deterministic(name):
    # Rows of equal times are matched in the order of their arrival.
    assert_deterministic(operator(name), STREAM, same_order=True, **OPTIONS)


def test_the_harness_and_the_local_runtime_agree():
    stream = strategies.streams(TIMED, gap=20, timestamp="t")
    assert_runtimes_agree(operator("loop"), stream, timestamp="t", **OPTIONS)


@pytest.mark.slow
def test_spark_agrees(spark):
    stream = strategies.streams(TIMED, gap=20, timestamp="t")
    schema = "k string, what string, n bigint, t bigint"
    output = "k string, t bigint, match string"
    given = {**OPTIONS, "examples": 3}
    assert_runtimes_agree(operator("any"), stream, timestamp="t", schema=schema, output=output, spark=spark, **given)
