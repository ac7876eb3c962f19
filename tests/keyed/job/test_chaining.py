"""The choice of chained operators, and its explanation."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd
import pyarrow as pa
import pytest

import keyed
from keyed import KeyedProcessFunction, OutputTag
from keyed.errors import CheckpointError, DefinitionError, OperatorChanged
from keyed.job.chaining import lines
from keyed.windows import Count, TumblingEventTimeWindows
from tests.support.explained import explained

ROW = "user string, item string, v bigint"


class Hand(KeyedProcessFunction):
    """Hands rows on."""

    forwarded_fields = {"user": "account"}  # noqa: RUF012 - as users write it

    def process_element(self, value, ctx):
        yield value


def first(rows=(), **options):
    return keyed.stream(list(rows)).key_by("user").process(Hand(), ROW, name="first", **options)


def second(output, *keys, name="second", chain=True, **options):
    return output.key_by(*keys, chain=chain).process(Hand(), ROW, name=name, **options)


def said(*outputs):
    lines = explained(*outputs).splitlines()[1:]
    return dict(line.split(": ", 1) for line in lines if not line.startswith((" ", "source")))


def test_an_operator_keyed_by_the_same_columns_is_chained():
    assert said(second(first(), "user")) == {
        "first": "shuffled, because it reads a source",
        "second": "chained to first",
    }


def test_one_keyed_by_what_the_function_forwards_is_chained():
    output = "account string, v bigint"
    one = keyed.stream([]).key_by("user").process(Hand(), output, name="first")
    assert said(second(one, "account"))["second"] == "chained to first"
    assert said(second(one, "v"))["second"] == (
        "shuffled, because it is keyed by 'v', and 'first' by 'user', which it forwards as 'account'"
    )


def test_what_is_not_chained_says_why():
    one = first()
    told = said(second(one, "user", chain=False), second(one, "item", name="third"))
    assert told["second"] == "shuffled, because chain=False"
    assert told["third"] == "shuffled, because it reads 'first', and the operator before it is 'second'"
    assert "it is keyed by 'item', and 'first' by 'user'" in said(second(one, "item"))["second"]
    assert "another parallelism" in said(second(one, "user", parallelism=2))["second"]
    assert "a function computes its keys" in said(second(one, lambda row: row.user))["second"]
    side = OutputTag("side", ROW)
    assert "side output 'side' of 'first'" in said(second(one.side_output(side), "user"))["second"]
    initial = pd.DataFrame({"user": ["a"], "state": ["s"], "entry": [None], "value": [1]})
    assert "initial state" in said(second(one, "user", initial_state=initial))["second"]


def test_keys_of_other_types_are_not_chained():
    one = keyed.stream(pa.table({"user": [1]})).key_by("user").process(Hand(), "user string, v bigint", name="first")
    assert (
        said(second(one, "user"))["second"]
        == "shuffled, because its keys are of type str, those of 'first' of type int"
    )


def test_explain_takes_outputs_of_one_query():
    one = first()
    two = second(one, "user")
    assert explained(one, two) == explained(two)
    with pytest.raises(DefinitionError, match="explain takes outputs"):
        one.explain(one.key_by("user"))


def test_explain_prints_the_whole_query(tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    source = keyed.stream(pa.table({"user": ["a"], "v": [1], "t": [0]}), timestamp="t", watermark=timedelta(seconds=5))
    one = source.key_by("user").process(Hand(), ROW, name="first", parallelism=3, store="rocksdb", changelog=log)
    minutes = one.key_by("user").window(TumblingEventTimeWindows.of(timedelta(minutes=1)))
    last = minutes.aggregate({"n": Count()}, name="minutes", parallelism=3)
    assert (
        explained(last)
        == f"""local runtime
source 1: Table, event time t, watermark 5000 ms behind
first: shuffled, because it reads a source
    reads: source 1 by 'user'
    function: Hand()
    computed: row by row
    key groups: 3
    store: rocksdb
    changelog: {log!r}
    tables: none declared
minutes: chained to first
    reads: first by 'user'
    function: {last.stage.function!r}
    computed: whole columns, a row of state per key and window
    key groups: 3
    store: memory
    changelog: none, so state is in the checkpoint alone
    tables: minutes (to be read with a changelog or tables=)
"""
    )


@pytest.mark.parametrize("fields", [["k"], "k", {"k": 1}, {1: "k"}, None])
def test_forwarded_fields_are_names_by_names(fields):
    class Odd(Hand):
        forwarded_fields = fields

    with pytest.raises(DefinitionError, match=r"Odd.forwarded_fields=.*column by the name of the key column"):
        keyed.stream([]).key_by("k").process(Odd())


def test_a_checkpoint_keeps_the_lines_that_it_began_with():
    three = second(second(first(), "user"), "user", name="third")
    assert [[stage.name for stage in line] for line in lines(three.stage)] == [["first", "second", "third"]]
    for sizes in ([1, 1, 1], [2, 1], [1, 2]):
        assert [len(line) for line in lines(three.stage, sizes)] == sizes
    shuffled = second(second(first(), "user"), "user", name="third", chain=False)
    assert [len(line) for line in lines(shuffled.stage, [2, 1])] == [2, 1]
    with pytest.raises(
        CheckpointError, match=r"'third' runs chained to 'second' in the checkpoint.*chain=False.*restore_from="
    ):
        lines(shuffled.stage, [3])
    with pytest.raises(OperatorChanged, match="the checkpoint has 2 operators, and the query 3"):
        lines(three.stage, [2])


def test_what_is_no_bool_is_refused():
    with pytest.raises(DefinitionError, match="chain='no' must be True or False"):
        first().key_by("user", chain="no")
