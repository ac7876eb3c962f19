"""The output type that annotations name: `keyed.job.functions`."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterable, Iterator
from typing import Any, NamedTuple

import attrs
import pytest

import keyed
from keyed.job.functions import inferred_output


@attrs.frozen
class Count:
    word: str
    n: int


@dataclasses.dataclass
class Total:
    total: float


class Named(NamedTuple):
    a: str
    b: int


def function(process: Any, timer: Any = None) -> keyed.KeyedProcessFunction:
    """A function whose methods are annotated to return these."""

    def method(self: Any, value: Any, ctx: Any) -> None: ...

    def on_timer(self: Any, timestamp: int, ctx: Any) -> None: ...

    method.__annotations__["return"] = process
    members: dict[str, Any] = {"process_element": method}
    if timer is not None:
        on_timer.__annotations__["return"] = timer
        members["on_timer"] = on_timer
    return type("Annotated", (keyed.KeyedProcessFunction,), members)()


@pytest.mark.parametrize(
    ("process", "timer", "ddl"),
    [
        ("Iterator[Count]", None, "`word` string, `n` bigint"),
        ("Iterable[Count] | None", None, "`word` string, `n` bigint"),
        ("list[Total]", None, "`total` double"),
        ("Generator[Named, None, None]", None, "`a` string, `b` bigint"),
        (None, "Iterator[Count]", "`word` string, `n` bigint"),
        ("Iterator[Count]", "list[Count]", "`word` string, `n` bigint"),
        (Iterator[Count], "None", "`word` string, `n` bigint"),
    ],
)
def test_the_class_that_is_yielded_is_the_output(process, timer, ddl):
    found = inferred_output(function(process, timer))
    assert found is not None
    assert found.ddl == ddl


@pytest.mark.parametrize(
    ("process", "timer"),
    [
        ("Iterator[Any]", None),
        ("Iterator[tuple[str, int]]", None),
        ("Iterator[tuple]", None),
        ("Iterator[int]", None),
        ("Iterator[keyed.Row]", None),
        ("Iterator[NoSuchName]", None),
        ("Iterator[Count | Total]", None),
        ("Iterable", None),
        ("None", None),
        ("Iterator[Count]", "Iterator[Any]"),
        ("Iterator[Any]", "Iterator[Count]"),
    ],
)
def test_annotations_that_say_nothing_leave_the_output_to_be_given(process, timer):
    assert inferred_output(function(process, timer)) is None


def test_methods_that_are_not_annotated_say_nothing():
    class Plain(keyed.KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield value

        def on_timer(self, timestamp: int, ctx: keyed.OnTimerContext) -> Iterator[Count]:
            yield Count("a", timestamp)

    assert inferred_output(Plain()) is None


def test_methods_that_disagree_are_refused_unless_the_output_is_given():
    stream = keyed.stream([]).key_by("word")
    disagreeing = function("Iterator[Count]", "Iterator[Total]")
    with pytest.raises(keyed.errors.OutputDefinitionError, match="annotated to yield Count and on_timer Total"):
        stream.process(disagreeing)
    assert stream.process(disagreeing, "word string").schema == keyed.extending.schema_of("word string")


def test_what_is_inferred_is_what_parquet_and_the_next_operator_get(tmp_path):
    class Words(keyed.KeyedProcessFunction):
        def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Count]:
            yield Count(value.word, 1)

    rows = [{"word": "a"}, {"word": "b"}]
    output = keyed.stream(rows).key_by("word").process(Words())
    output.run(tmp_path / "out")
    import pyarrow.parquet as pq

    assert pq.read_table(tmp_path / "out").to_pylist() == [{"word": "a", "n": 1}, {"word": "b", "n": 1}]
    with pytest.raises(keyed.errors.DefinitionError, match="'missing' is not in the output of 'Words': word, n"):
        output.key_by("missing").process(Words(), name="again")


# The annotations above name them as text.
_NAMED = (Generator, Iterable)
