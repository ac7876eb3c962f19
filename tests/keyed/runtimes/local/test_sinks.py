"""Sinks of the local runtime: what they get, what they refuse, and what is said when they fail."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import keyed
from keyed import KeyedProcessFunction, OutputTag
from keyed.errors import DefinitionError, OutputDefinitionError, QueryFailed
from keyed.rows import row
from tests.keyed.runtimes.conftest import long_on_spark
from tests.keyed.runtimes.spark.functions import COUNTED, Count

SIDE = OutputTag("side", "n bigint")


class Emit(KeyedProcessFunction):
    """Emits what a row says."""

    def process_element(self, value, ctx):
        if value.k == "side":
            ctx.output(SIDE, (value.v,))
        else:
            yield value.v, value.k


def emitting(*values, k="a"):
    return keyed.stream([{"k": k, "v": value} for value in values]).key_by("k").process(Emit(), "n bigint, k string")


@pytest.mark.parametrize("sink", [keyed.collect_sink, lambda: lambda batch, number: None])
@pytest.mark.parametrize("value", ["text", 2**70, 1.5])
def test_values_that_do_not_fit_the_columns_are_refused_as_on_spark(sink, value):
    with pytest.raises(OutputDefinitionError, match=r"(?s)'Emit', main output.*'n'"):
        emitting(1, value).run(sink())
    output = emitting(value, k="side")
    with pytest.raises(OutputDefinitionError, match=r"(?s)'Emit', side output 'side'.*'n'"):
        keyed.run(output.side_output(SIDE).to(sink()))


class Wide(NamedTuple):
    k: str
    more: int
    n: int


@pytest.mark.parametrize("made", [lambda k, n: row(k=k, more=0, n=n), lambda k, n: Wide(k, 0, n)], ids=["row", "tuple"])
def test_rows_with_other_fields_become_rows_of_the_declared_columns_as_on_spark(made):
    class Widen(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield made(value.k, value.v)

    class Show(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield (repr(value),)

    def widened(output):
        return keyed.stream([{"k": "a", "v": 1}]).key_by("k").process(Widen(), output)

    output = widened("n bigint, k string")
    assert repr(output.run().values) == "[Row(n=1, k='a')]"
    for chain in (True, False):
        seen = output.key_by("k", chain=chain).process(Show(), "seen string")
        assert [found.seen for found in seen.run().values] == ["Row(n=1, k='a')"]
    with pytest.raises(OutputDefinitionError, match="lacks 'm'"):
        widened("m bigint").run()


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (lambda batch: None, r"sink=<lambda> is called with two arguments, function\(batch, batch_id\), .*: too many"),
        (lambda batch, number, more: None, r"function\(batch, batch_id\), .*: missing a required argument: 'more'"),
        (keyed.collect_sink, r"call it: collect_sink\(\.\.\.\)"),
        (keyed.topics.KafkaSink, r"sink=KafkaSink makes a sink, and is none; call it: KafkaSink\(\.\.\.\)"),
    ],
)
def test_a_function_that_takes_no_batches_is_refused_before_the_first_row(sink, said):
    with pytest.raises(DefinitionError, match=said):
        emitting(1).to(sink)


def test_functions_get_rows():
    got = []
    emitting(1, 2).run(lambda batch, number: got.append((number, [(row.n, row["k"]) for row in batch])))
    assert got == [(0, [(1, "a"), (2, "a")]), (1, [])]


def test_a_collecting_sink_has_the_values_of_the_last_query_alone(tmp_path):
    sink = keyed.collect_sink()

    def run(*numbers, **options):
        emitting(*numbers).run(sink, rows_per_batch=1, drain=False, **options)
        return [row.n for row in sink.values]

    assert run(1, 2, 3) == [1, 2, 3]
    assert run(4) == [4]
    assert run(5, checkpoint=tmp_path) == [5]
    assert run(5, 6, checkpoint=tmp_path) == [5, 6]


def test_a_sink_that_raises_is_named_with_the_batch():
    def store(batch, number):
        if number == 1:
            raise OSError(28, "No space left on device")

    with pytest.raises(QueryFailed, match=r"store cannot take batch 1: OSError: .*No space left") as raised:
        emitting(1, 2, 3).run(store, rows_per_batch=1)
    assert isinstance(raised.value.__cause__, OSError)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    def block(progress):
        (tmp_path / f"part-{progress.batch_id + 1:010d}-0000.parquet").mkdir()

    with pytest.raises(QueryFailed, match=rf"the Parquet sink '{tmp_path}' cannot take batch 1: IsADirectoryError"):
        emitting(1, 2).run(tmp_path, rows_per_batch=1, on_progress=block)


@long_on_spark
def test_a_function_with_a_parameter_query_id_gets_the_id_of_the_query(runtime, tmp_path):
    seen = []

    def write(values, batch_id, query_id):
        if runtime.session is not None:
            values.collect()
        seen.append((batch_id, query_id))

    def run(**options):
        source = runtime.source(tmp_path / "in")
        source.key_by("k").process(Count(), COUNTED).run(write, drain=False, **options, **runtime.batches)

    runtime.size = 1
    for number in range(2):
        runtime.add(tmp_path / "in", [("a", number, 1)])
        run(checkpoint=tmp_path / "one")
    run(checkpoint=tmp_path / "two")
    assert [number for number, _ in seen] == [0, 1, 0, 1]
    one, again, two, same = [query for _, query in seen]
    assert one == again != two == same
    if runtime.session is None:
        # Without a checkpoint each run is a query of its own.
        run()
        assert seen[-1][1] not in {one, two}
