"""The text of `Output.explain`: how a query would run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import attrs

from keyed.base.arguments import named
from keyed.job.chaining import shuffle_reason
from keyed.job.functions import VectorizedFunction, declared_states, store_name
from keyed.job.graph import Input, Port, Source, Stage, is_dataframe, shown_steps, shown_tag
from keyed.job.watermarks import WatermarkStrategy


@runtime_checkable
class Explained(Protocol):
    """A function of a library that explains how it is computed."""

    @property
    def explanation(self) -> str:
        """The path and its reason, in one line: ``whole columns``, or ``row by row, because ...``."""


def explained(last: Stage) -> str:
    """Return the explanation of the query of which ``last`` is the last operator.

    First there is a line for the runtime and one for each source, then for each operator, in the order in which they
    run, a line with whether it is chained or shuffled and why, with details below it.
    """
    on_spark = is_dataframe(last.source.data)
    numbers = {source: number for number, source in enumerate(last.sources, start=1)}
    lines = ["Spark" if on_spark else "local runtime"]
    lines += [f"source {number}: {_source(source)}" for source, number in numbers.items()]
    for index, stage in enumerate(last.chain):
        reason = shuffle_reason(last.chain, index)
        how = f"shuffled, because {reason}" if reason else f"chained to {last.chain[index - 1].name}"
        reads = "; ".join(_read(each, numbers) for each in stage.inputs)
        if stage.is_relay:
            lines += [f"{stage.name}: written as it comes, without a shuffle or state", f"    reads: {reads}"]
            continue
        lines.append(f"{stage.name}: {how}")
        details = {"reads": reads, **dict(_details(last, stage, on_spark=on_spark))}
        lines += [f"    {name}: {text}" for name, text in details.items()]
    return "\n".join(lines)


def _source(source: Source) -> str:
    if source.timestamp is None:
        time = "no event time"
    elif source.ingests:
        time = "event time is the time of the batch"
    else:
        time = f"event time {source.timestamp if isinstance(source.timestamp, str) else named(source.timestamp)}"
    return f"{type(source.data).__name__}, {time}{'' if source.timestamp is None else _watermark(source.watermark)}"


def _watermark(strategy: WatermarkStrategy) -> str:
    fields = attrs.asdict(strategy, filter=lambda field, value: value is not None and field.name != "delay_ms")
    others = "".join(f", {name}={value!r}" for name, value in fields.items())
    return f", watermark {strategy.delay_ms} ms behind{others}"


def _read(each: Input, numbers: dict[Source, int]) -> str:
    if isinstance(each.origin, Port):
        origin = f"{each.origin.stage.name}{shown_tag(each.origin.tag)}"
    else:
        origin = f"source {numbers[each.origin]}"
    origin += shown_steps(each.steps)
    if each.is_broadcast or not each.keys:
        return f"{origin}{', broadcast' * each.is_broadcast}"
    keys = f"the function {named(each.keys)}" if callable(each.keys) else ", ".join(map(repr, each.keys))
    return f"{origin} by {keys}"


def waited_inputs(last: Stage, stage: Stage) -> dict[int, str]:
    """Return the inputs and operators that hold the watermark of an operator while silent, with their idleness.

    The watermark is the lowest of theirs. The numbers are those of `keyed.engine.batch.Advance.held_by`.
    """
    inputs = {}
    for number, each in stage.source_inputs.items():
        if each.counts:
            idle = each.source.watermark.idleness_ms
            name = f"source {last.sources.index(each.source) + 1}"
            inputs[number] = f"{name}, {'no idleness' if idle is None else f'idle after {idle} ms'}"
    return inputs | {number: f"operator {name!r}" for number, name in enumerate(stage.waits_for, len(stage.inputs))}


def _details(last: Stage, stage: Stage, *, on_spark: bool) -> Iterator[tuple[str, str]]:
    function = stage.function
    computed = "whole columns" if isinstance(function, VectorizedFunction) else "row by row"
    yield "function", repr(function)
    yield "computed", function.explanation if isinstance(function, Explained) else computed
    waited = waited_inputs(last, stage)
    if len(waited) > 1:
        yield "waits for", "; ".join(waited.values())
    yield "key groups", _key_groups(last, stage, on_spark=on_spark)
    yield "store", store_name(stage.store)
    if stage.changelog is None:
        yield "changelog", "none, so state is in the checkpoint alone"
    else:
        yield "changelog", repr(stage.changelog)
    tables = ", ".join(_tables(stage)) or "none declared"
    yield "tables", tables if stage.changelog is not None else f"{tables} (to be read with a changelog or tables=)"
    if stage.restore_from is not None:
        yield "restored from", repr(stage.restore_from.changelog)


def _tables(stage: Stage) -> list[str]:
    """Return the names of the tables of an operator, as far as they are known before it runs.

    A library's operator that declares its state when it is opened has one table of its name.
    """
    declared = declared_states(stage.function).items()
    if not declared and isinstance(stage.function, Explained):
        return [stage.name]
    # Inner states are shown under the operator's name, or not at all.
    shown_as = {name: None if state.shown_as is None else state.shown_as["view"] for name, (_, state) in declared}
    return [name if view is None else stage.name for name, view in shown_as.items() if view != ""]


def _key_groups(last: Stage, stage: Stage, *, on_spark: bool) -> str:
    if not on_spark:
        return str(stage.parallelism or 1)
    # The operators of a Spark query have as many key groups as it has shuffle partitions.
    parallelism = next((each.parallelism for each in last.chain if each.parallelism is not None), None)
    if parallelism is not None:
        return str(parallelism)
    name = "spark.sql.shuffle.partitions"
    return f"{last.source.data.sparkSession.conf.get(name)} ({name})"
