"""Patterns over streams: definitions that are refused, times, late and bad rows, state tables, changed definitions."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Mapping
from datetime import timedelta
from functools import cmp_to_key
from numbers import Number
from typing import Any, NamedTuple

import attrs
import pytest

import keyed
from keyed import Row
from keyed.errors import DefinitionError, EncodingError, RowError, StateSchemaChanged, UserFunctionError
from keyed.patterns import AfterMatchSkipStrategy, Pattern, PatternProcessFunction
from tests.keyed.patterns.matching import matches_of


def small(row):
    return row["amount"] < 1


def large(row):
    return row["amount"] > 50


#: A small payment, and then a large one.
FRAUD = Pattern.begin("small", where=small).followed_by("large", where=large).within(seconds=10)
LOOP = Pattern.begin("a").followed_by("b").one_or_more()


def wrong(where: Any) -> Any:
    """Return an argument that type checkers refuse."""
    return where


def payments(*amounts, step=1000):
    return [{"card": "c", "time": index * step, "amount": amount} for index, amount in enumerate(amounts)]


def stream_of(rows):
    return keyed.stream(rows, timestamp="time").key_by("card")


def amounts(match):
    return [row["amount"] for rows in match.values() for row in rows]


def dropped(result):
    return result.metrics["PatternOperator"]["rows_dropped"]


def test_a_match_is_selected_with_the_time_of_its_last_row():
    class Times(PatternProcessFunction):
        def process_match(self, match, ctx):
            yield ctx.timestamp(), ctx.get_current_key(), amounts(match)
            yield keyed.OutputTag("again"), {"amount": match.last("large")["amount"]}

    rows = payments(0.5, 3, 60, 0.2, 70)
    assert stream_of(rows).match(FRAUD).select(amounts).run().values == [[0.5, 60], [0.2, 70]]
    output = stream_of(rows).match(FRAUD).process(Times())
    assert output.run().values == [(2000, "c", [0.5, 60]), (4000, "c", [0.2, 70])]
    assert [row["amount"] for row in output.side_output("again").run().values] == [60, 70]


def test_a_condition_may_use_what_has_matched_so_far():
    tenfold = Pattern.begin("small", small).followed_by(
        "large", lambda row, match: row["amount"] > 100 * match.first("small")["amount"]
    )
    assert stream_of(payments(0.5, 40, 60)).match(tenfold).select(amounts).run().values == [[0.5, 60]]


def test_a_step_that_was_left_out_has_no_rows():
    pattern = Pattern.begin("small", small).next("any").optional().next("large", large)
    seen = stream_of(payments(0.5, 60)).match(pattern).select(lambda m: (list(m), m["any"], m.first("any"), "any" in m))
    assert seen.run().values == [(["small", "large"], [], None, False)]
    with pytest.raises(UserFunctionError, match="'larg' is no step of the pattern; its steps are small, any, large"):
        stream_of(payments(0.5, 60)).match(pattern).select(lambda m: m["larg"]).run()


def test_a_step_may_be_of_a_class():
    pattern = Pattern.begin("text").subtype(str).next("number").subtype(int)
    assert matches_of(pattern, [(1, 5), (2, "a"), (3, 7)]) == [("match", 3, {"text": ["a"], "number": [7]})]


@attrs.frozen
class Payment:
    card: str
    time: int
    amount: float


@dataclasses.dataclass(frozen=True)
class Refund:
    card: str
    time: int
    amount: float


class Pair(NamedTuple):
    card: str
    time: int
    amount: float


@pytest.mark.parametrize("cls", [Payment, Refund, Pair])
def test_objects_of_classes_that_state_cannot_keep_are_refused_with_the_remedy(cls):
    with pytest.raises(DefinitionError, match=rf"subtype\({cls.__name__}\): .*where=lambda row: row.kind"):
        Pattern.begin("a").subtype(cls)
    delayed, rows = keyed.bounded_out_of_orderness(seconds=1), [cls("c", 0, 0.5), cls("c", 1, 60.0)]
    stream = keyed.stream(rows, timestamp="time", watermark=delayed)
    every = Pattern.begin("a", where=lambda row: row.amount < 1).next("b").within(seconds=10)
    for count in (1, 100):
        with pytest.raises(EncodingError, match=r"map (them|the rows).* first: stream.map"):
            stream.key_by("card").match(every).select(amounts).run(rows_per_batch=count)
    mapped = stream.map(
        lambda row: (row.card, row.time, row.amount, type(row).__name__),
        output="card string, time bigint, amount double, kind string",
    )
    of_class = Pattern.begin("a", where=lambda row: row.kind == cls.__name__).next("b").within(seconds=1)
    assert mapped.key_by("card").match(of_class).select(lambda match: [match["a"][0].amount]).run().values == [[0.5]]


@pytest.mark.parametrize("cls", [Row, Mapping, Number, tuple, object])
def test_a_step_may_be_of_an_abstract_class_of_plain_data(cls):
    assert "a" in str(Pattern.begin("a").subtype(cls))


def test_a_step_that_may_wait_forever_has_the_most_partial_matches_of_its_key_as_its_bound():
    # As in Flink, followed_by needs no time limit: each row begins one partial match at most.
    forever = Pattern.begin("small", small).followed_by("large", large)
    stream = stream_of(payments(0.5, 0.2, 0.1, 60)).match(forever)
    assert stream.select(amounts).run().values == [[0.5, 60], [0.2, 60], [0.1, 60]]
    with pytest.raises(RowError, match="would take the key to 3 partial matches, and the limit is 2"):
        stream.most_partial_matches(2).select(amounts).run()
    assert dropped(stream.most_partial_matches(2).on_bad_row("bad").select(amounts).run()) == 1


@pytest.mark.parametrize(
    ("define", "said"),
    [
        (lambda: Pattern.begin("a").next("a"), "two steps of the pattern have the name 'a'"),
        (lambda: Pattern.begin(Pattern.begin("a")).next("a"), "two steps of the pattern have the name 'a'"),
        (lambda: LOOP, r"its state has no bound; add within\(minutes=10\)"),
        (lambda: Pattern.begin("a").followed_by_any("b"), "its state has no bound"),
        (lambda: Pattern.begin("a").not_followed_by("b", small), "at the end waits forever; add within"),
        (lambda: Pattern.begin("a").not_next("b"), "the pattern can never match"),
        (lambda: Pattern.begin("a").not_followed_by("b").followed_by("c"), "the pattern can never match"),
        (lambda: Pattern.begin("a").optional().not_next("b", small), "after the optional step 'a' is not defined"),
        (lambda: Pattern.begin("a").times(0), "must be whole numbers, in order, the last above 0"),
        (lambda: Pattern.begin("a").times(3, 2), "must be whole numbers, in order"),
        (lambda: Pattern.begin("a").times(2).times(2), "it applies once"),
        (lambda: Pattern.begin("a").next("b").not_next("c", small).one_or_more(), "a step that may occur"),
        (lambda: Pattern.begin("a").consecutive(), "it applies to a loop"),
        (lambda: LOOP.consecutive().allow_combinations(), "not beside its opposite"),
        (lambda: LOOP.allow_combinations().greedy(), "without allow_combinations"),
        (lambda: LOOP.greedy().next("c").optional(), "the step before it, 'b', is greedy"),
        (lambda: Pattern.begin("a").until(small), "it ends a loop without upper bound"),
        (lambda: Pattern.begin(Pattern.begin("a")).where(small), "a group has no condition"),
        (lambda: Pattern.begin("a").next(Pattern.begin("b"), small), "a group takes no condition"),
        (
            lambda: Pattern.begin(Pattern.begin("a").not_followed_by("b", small)).next("c"),
            "ends with a step that must not occur",
        ),
        (
            lambda: Pattern.begin(Pattern.begin("a").optional()).one_or_more().within(1),
            "its loop could repeat without a row",
        ),
        (lambda: Pattern.begin("a").within(0), "must be between 1 ms"),
        (lambda: Pattern.begin("a").within(5, seconds=1), "not both"),
        (lambda: Pattern.begin("a").within(5, since="previous"), "no row comes before the first step"),
        (lambda: Pattern.begin("a").next("b").within(9, since="previous").within(8), "more than the 8 ms of the whole"),
        (lambda: Pattern.begin(""), "begin: the step '' needs a name"),
        (
            lambda: Pattern.begin("a", after_match=AfterMatchSkipStrategy.skip_to_last("b")),
            "the pattern has no such step",
        ),
        (lambda: AfterMatchSkipStrategy.no_skip().throw_exception_on_miss(), "names no step"),
        (lambda: Pattern.begin("a", where=wrong(3)), "give a function of the row, or of the row and the match so far"),
        (lambda: Pattern.begin("a", where=wrong(lambda: True)), "it has the parameters"),
        (lambda: Pattern.begin("a", where=lambda row, limit=5: row > limit), "it accepts both"),
        (lambda: Pattern.begin("a", where=lambda *rows: rows), "it accepts both"),
    ],
)
def test_a_definition_is_refused_before_the_first_row(define, said):
    with pytest.raises(DefinitionError, match=said):
        stream_of([]).match(define()).select(amounts)


def test_match_takes_a_pattern():
    for wrong in ("small", Pattern):
        with pytest.raises(DefinitionError, match="give a pattern"):
            stream_of([]).match(wrong)
    with pytest.raises(DefinitionError, match="has no event time"):
        keyed.stream([{"card": 1}]).key_by("card").match(FRAUD).select(amounts)


def test_a_partial_match_that_times_out_goes_to_its_side_output():
    output = stream_of(payments(0.5, 3, 60, 0.2, 0.1, step=6000)).match(FRAUD)
    output = output.side_output_timed_out("unfinished", amounts).select(amounts)
    assert output.run().values == []
    # Two of them begin within the last ten seconds, and the end of the input is the end of all times.
    assert output.side_output("unfinished").run().values == [[0.5], [0.2], [0.1]]


def test_late_rows_are_counted_or_go_to_their_side_output():
    rows = [*payments(0.5, 3, 60), {"card": "c", "time": 0, "amount": 0.1}]
    matched = stream_of(rows).match(FRAUD)
    result = matched.select(amounts).run(rows_per_batch=1)
    assert (result.values, dropped(result)) == ([[0.5, 60]], 1)
    output = matched.side_output_late_data("late").select(amounts)
    assert [row["amount"] for row in output.side_output("late").run(rows_per_batch=1).values] == [0.1]


def test_a_condition_that_raises_is_named_with_its_place():
    matched = stream_of(payments(0.5, "text", 60)).match(FRAUD)
    with pytest.raises(UserFunctionError) as caught:
        matched.select(amounts).run()
    for part in (
        "the condition of step 'small' raised TypeError",
        "in the pattern: next small, followed_by large, within 10000 ms",
        *("key 'c'", "'text'", "operator 'PatternOperator'"),
    ):
        assert part in str(caught.value)
    output = matched.on_bad_row("bad").select(amounts)
    result = output.run()
    assert (result.values, dropped(result)) == ([[0.5, 60]], 1)
    assert [row["amount"] for row in output.side_output("bad").run().values] == ["text"]


def test_a_key_has_a_limit_of_partial_matches():
    combinations = Pattern.begin("a").one_or_more().allow_combinations().next("end", large).within(hours=1)
    matched = stream_of(payments(*range(20))).match(combinations).most_partial_matches(100)
    with pytest.raises(RowError, match="partial matches, and the limit is 100"):
        matched.select(amounts).run()
    result = matched.on_bad_row("bad").select(amounts).run()
    assert 0 < dropped(result) < 20
    with pytest.raises(DefinitionError, match="give a whole number above 0"):
        matched.most_partial_matches(0)


def test_a_strategy_may_refuse_a_match_without_its_step():
    skip = AfterMatchSkipStrategy.skip_to_first("x").throw_exception_on_miss()
    missing = Pattern.begin("a", after_match=skip).next("x", large).optional().next("b", small)
    with pytest.raises(UserFunctionError, match="the match has no row of step 'x'"):
        stream_of(payments(3, 0.5)).match(missing).select(amounts).run()
    first = Pattern.begin("x", large, after_match=skip).next("b", small)
    with pytest.raises(UserFunctionError, match="it would be found again"):
        stream_of(payments(60, 0.5)).match(first).select(amounts).run()


def test_partial_matches_are_rows_of_a_state_table(tmp_path):
    log = keyed.DirectoryChangelog(str(tmp_path / "log"))
    output = stream_of(payments(0.5, 3, 0.2, 4)).match(FRAUD).select(amounts, changelog=log, name="fraud")
    output.run(tmp_path / "out", checkpoint=tmp_path / "checkpoint", drain=False)
    with keyed.tables.open_tables(log, tmp_path / "tables") as tables:
        tables.poll()
        assert list(tables) == ["partial_matches"]
        rows = tables.sql(
            "SELECT key, pattern, step, awaits, since, events, times_out FROM partial_matches ORDER BY since"
        )
        assert [tuple(row.values()) for row in rows.to_pylist()] == [
            ("c", "fraud", "small", "large", 0, 1, 10_000),
            ("c", "fraud", "small", "large", 2000, 1, 12_000),
        ]


def test_a_changed_pattern_is_refused_on_an_old_checkpoint_and_restored_without_partial_matches(tmp_path):
    rows = payments(0.5, 3, 4, 60, 0.5, 60, 3)
    log = keyed.DirectoryChangelog(str(tmp_path / "log"))

    def run(pattern, count, checkpoint="checkpoint", **options):
        output = (
            stream_of(rows[:count])
            .match(pattern)
            .select(lambda match: tuple(amounts(match)), output="a double, b double", **options)
        )
        found = output.run(tmp_path / checkpoint / "out", checkpoint=tmp_path / checkpoint, drain=False)
        return found.metrics["PatternOperator"]["rows_out"]

    run(FRAUD, 1, changelog=log)
    run(FRAUD, 2, changelog=log)
    changed = FRAUD.within(timedelta(seconds=5))
    with pytest.raises(StateSchemaChanged, match="changed its time limit from '10000 ms' to '5000 ms'") as caught:
        run(changed, 3, changelog=log)
    with pytest.raises(StateSchemaChanged, match="changed its step 'large' from 'followed_by large' to 'next large'"):
        run(Pattern.begin("small", small).next("large", large).within(seconds=10), 3, changelog=log)
    longer = Pattern.begin("first", small).followed_by("large", large).within(seconds=10)
    with pytest.raises(StateSchemaChanged, match="its step 'first' from 'none' to 'next first' and its step 'small'"):
        run(longer, 3, changelog=log)
    run(FRAUD, 3, changelog=log)
    # The message has the remedy as code: it drops the partial match, and the rows that have not been matched yet stay.
    (remedy,) = re.findall(r"dropped=(\[.*?\])", str(caught.value))
    migrate = keyed.StateMigration(dropped=ast.literal_eval(remedy))
    point = keyed.RestorePoint(log, migrate=migrate)
    assert run(changed, 7, "new", restore_from=point) == 1


def test_rows_of_equal_times_are_matched_in_the_order_of_their_arrival_or_of_a_key(tmp_path):
    both = Pattern.begin("small", small).next("large", large).within(seconds=10)
    rows = [{"card": "c", "time": 0, "amount": amount} for amount in (60, 0.5, 0.2)]
    rows += [{"card": "c", "time": 1, "amount": 70}]
    matched = stream_of(rows).match(both)
    assert matched.select(amounts).run().values == [[0.2, 70]]
    ordered = matched.order_by(lambda row: row["amount"])
    for count in (1, 2, 100):
        assert ordered.select(amounts).run(rows_per_batch=count).values == [[0.5, 60]]

    def larger_first(a: Any, b: Any) -> int:
        return int(b["amount"] - a["amount"])

    compared = matched.order_by(cmp_to_key(larger_first))
    assert compared.select(amounts).run().values == [[0.2, 70]]
    with pytest.raises(DefinitionError, match="give a function of the row"):
        matched.order_by("amount")


def test_a_key_of_equal_times_that_raises_is_named_or_diverted(caplog):
    rows = [{"card": "c", "time": 0, "amount": amount} for amount in (0.5, None, 60)]
    matched = stream_of(rows).match(FRAUD).order_by(lambda row: -row["amount"] if row["amount"] != 0.5 else 1)
    with pytest.raises(UserFunctionError, match=r"order_by raised TypeError.*the row is .*None.*key 'c'"):
        matched.select(amounts).run()
    output = matched.on_bad_row("bad").select(amounts)
    assert dropped(output.run()) == 1
    # It is not late, and no warning says so.
    assert not caplog.records
    assert [row["amount"] for row in output.side_output("bad").run().values] == [None]
    mixed = stream_of(rows).match(FRAUD).order_by(lambda row: row["amount"])
    with pytest.raises(UserFunctionError, match=r"cannot be compared: .*key 'c'"):
        mixed.select(amounts).run()
