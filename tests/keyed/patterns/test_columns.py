"""Conditions over columns find what functions of the row find, and leave out rows only where that changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.errors import DefinitionError, StateSchemaChanged, UserFunctionError
from keyed.patterns import OverColumns, Pattern
from keyed.patterns.automaton import compiled
from keyed.patterns.column_conditions import EvaluatedSteps, column_conditions
from keyed.patterns.pattern_conditions import Look

ROWS = st.lists(
    st.tuples(st.sampled_from("xy"), st.sampled_from([0.5, 3.0, 60.0, None]), st.integers(0, 15)), max_size=25
)
FUNCTIONS: dict[str, Any] = {
    "small": lambda row: row["amount"] is not None and row["amount"] < 1,
    "large": lambda row: row["amount"] is not None and row["amount"] > 50,
}
TEXTS: dict[str, Any] = {"small": "amount < 1", "large": "amount > 50"}
MIXED: dict[str, Any] = {
    "small": OverColumns(lambda table: pc.less(table["amount"], pa.scalar(1))),
    "large": FUNCTIONS["large"],
}


def shapes(where: Any) -> dict[str, Pattern]:
    """Return patterns with conditions of one form."""
    small = Pattern.begin("small", where=where["small"])
    return {
        "later": small.followed_by("large", where=where["large"]).within(50),
        "next": small.next("large", where=where["large"]).within(50),
        "any": small.followed_by_any("large", where=where["large"]).within(50),
        "loop": small.one_or_more().followed_by("large", where=where["large"]).within(50),
        "until": small.followed_by("any").one_or_more().until(where["large"]).within(50),
        "silence": small.not_followed_by("large", where=where["large"]).within(50),
        "negated": small.not_next("no", where=where["large"]).followed_by("large", where=where["large"]).within(50),
        "group": Pattern.begin(small.followed_by("large", where=where["large"])).times(2).within(100),
        "guarded": small.followed_by("large", where=where["large"])
        .where(lambda row, match: row["amount"] > match["small"][0]["amount"])
        .within(50),
    }


#: The patterns in which a row that satisfies no condition changes nothing.
DROPPING = {"later", "any", "silence", "group", "guarded"}


def stream_of(rows: Any) -> Any:
    table = pa.table(
        {
            "card": pa.array([row[0] for row in rows], pa.string()),
            "time": pa.array([5 * number - row[2] for number, row in enumerate(rows)], pa.int64()),
            "amount": pa.array([row[1] for row in rows], pa.float64()),
        }
    )
    delay = keyed.bounded_out_of_orderness(milliseconds=15)
    return keyed.stream(table, timestamp="time", watermark=delay).key_by("card")


def outcomes(pattern: Pattern, rows: Any, rows_per_batch: int) -> Counter[Any]:
    """Return the matches and the time-outs, as rows."""

    def plain(match: Any) -> Any:
        return tuple((step, tuple(map(tuple, taken))) for step, taken in match.items())

    output = stream_of(rows).match(pattern).side_output_timed_out("late", lambda match: (plain(match), "timed out"))
    result = output.select(plain)
    values = result.run(rows_per_batch=rows_per_batch).values
    return Counter([*values, *result.side_output("late").run(rows_per_batch=rows_per_batch).values])


@pytest.mark.parametrize("shape", shapes(TEXTS))
@settings(max_examples=10, deadline=None)
@given(rows=ROWS, rows_per_batch=st.sampled_from([1, 4, 100]))
def test_columns_find_what_functions_find(shape, rows, rows_per_batch):
    expected = outcomes(shapes(FUNCTIONS)[shape], rows, 100)
    for where in (TEXTS, MIXED):
        assert outcomes(shapes(where)[shape], rows, rows_per_batch) == expected


def evaluated(pattern: Pattern) -> EvaluatedSteps:
    conditions = column_conditions(pattern)
    nothing = Look((), lambda _: {}, dict.fromkeys(conditions, 0))
    return EvaluatedSteps(conditions, compiled(pattern).ignores_others(nothing))


def test_rows_that_satisfy_no_condition_are_left_out_if_that_changes_nothing():
    small, large = Pattern.begin("small", where="amount < 1"), {"step": "large", "where": "amount > 50"}
    assert evaluated(small.times(2).followed_by(**large).within(50)).drops
    assert not evaluated(small.times(1, 2).followed_by(**large).within(50)).drops
    assert not evaluated(small.followed_by(**large).optional().within(50)).drops
    assert not evaluated(small.followed_by(**large).within(9, since="previous")).drops
    assert {name for name, pattern in shapes(TEXTS).items() if evaluated(pattern).drops} == DROPPING
    # A function would have to be called for each row.
    assert not any(evaluated(pattern).drops for pattern in shapes(MIXED).values())
    table = pa.table({"amount": [0.5, 3.0, None, 60.0]})
    found = evaluated(shapes(TEXTS)["later"])(table)
    assert found.to_pydict() == {"amount": [0.5, 60.0], found.column_names[-1]: [1, 4]}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("amout < 1", "unknown column amout; did you mean amount"),
        ("amount", "a condition is of type BOOLEAN, and this is of type DOUBLE"),
        ("amount <", "the expression is not valid"),
        ("amount < 1) OR (true", "closes nothing"),
        ("", "the condition is empty"),
        # These would differ with the batches in which rows come, or with a second run.
        ("sum(amount) > 1", "sum is refused"),
        ("amount > lag(amount) OVER ()", "OVER .* is not supported"),
        ("amount > (SELECT max(amount) FROM batch)", "a query inside of an expression is not supported"),
        ("random() < 0.5", "random is refused: its value differs from call to call"),
        ("time > epoch_ms(now())", "now is refused: its value differs from batch to batch"),
        ("getvariable('x') IS NULL", "getvariable is refused"),
    ],
)
def test_an_expression_that_is_not_valid_is_refused_before_the_first_row(where, said):
    with pytest.raises(DefinitionError, match=said):
        stream_of([]).match(Pattern.begin("small", where=where)).select(len)


def test_columns_have_to_be_known():
    rows = keyed.stream([{"card": "c", "time": 0}], timestamp="time").key_by("card")
    with pytest.raises(DefinitionError, match="needs the columns of the stream"):
        rows.match(Pattern.begin("small", where="time > 1")).select(len)


def test_an_expression_that_fails_is_named_or_diverts_its_row_alone():
    where = {"small": "amount < 1", "large": "CAST(replace(card, 'x', '7') AS INT) > 5"}
    matched = stream_of([("x", 0.5, 0), ("y", 0.5, 0), ("y", 3.0, 0), ("x", 3.0, 0)]).match(shapes(where)["later"])
    with pytest.raises(UserFunctionError, match=r"the condition of step 'large' .* cannot be computed.*key 'y'"):
        matched.select(len).run()
    output = matched.on_bad_row("bad").select(lambda match: match["large"][0]["card"])
    assert output.run().values == ["x"]
    assert [tuple(row) for row in output.side_output("bad").run().values] == [("y", 10, 3.0)]


def test_a_row_for_which_a_part_that_occurs_twice_fails_is_the_only_one_that_fails():
    part = "100 // (CAST(amount AS BIGINT) - 3)"
    where = {"small": "amount < 1", "large": f"{part} > 1 OR {part} < -90"}
    rows = [("x", 0.5, 0), ("x", 3.0, 0), ("x", 4.0, 0), ("y", None, 0)]
    output = stream_of(rows).match(shapes(where)["later"]).on_bad_row("bad").select(lambda match: match["large"][0][2])
    assert output.run().values == [4.0]
    assert [tuple(row) for row in output.side_output("bad").run().values] == [("x", 5, 3.0)]


def test_a_function_of_a_table_returns_a_boolean_for_each_row():
    wrong = Pattern.begin("small", where=OverColumns(lambda table: table["amount"]))
    with pytest.raises(UserFunctionError, match="step 'small' raised TypeError: it returned"):
        stream_of([("x", 0.5, 0)]).match(wrong).select(len).run()


def test_rows_that_wait_are_not_matched_by_other_conditions(tmp_path):
    def run(large, count):
        matched = stream_of([("x", 0.5, 0)] * count).match(shapes({**TEXTS, "large": large})["later"])
        matched.select(lambda match: ("x",), output="card string").run(
            tmp_path / "out", checkpoint=tmp_path / "checkpoint", drain=False
        )

    run("amount > 50", 1)
    with pytest.raises(StateSchemaChanged, match=r"changed its conditions from .*amount > 50.* to .*amount > 70"):
        run("amount > 70", 2)
