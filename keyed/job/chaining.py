"""Chaining: an operator whose rows have the keys of the operator before it runs in the same tasks, without a shuffle.

The rows that a key group emits then belong to the same key group of the next operator: results, state and changelogs
are the same as with a shuffle between them. Flink's ``reinterpretAsKeyedStream`` and its forwarded fields are the
model; every row is checked (`keyed.engine.key_checks`).

Operators that run together are a *line*. On Spark a line is one operator with the state of all, so the lines are fixed
by the first batch of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from keyed.codec.key_hash import spark_key_type
from keyed.errors import CheckpointError, OperatorChanged
from keyed.job.graph import Port, Stage, is_dataframe


def shuffle_reason(chain: Sequence[Stage], index: int) -> str:
    """Return the reason why the rows of an operator are shuffled; an empty one if it is chained to the one before it.

    Args:
        chain: The operators of the query, in the order in which they run.
        index: Its index among them.
    """
    stage, (read, *others) = chain[index], chain[index].inputs
    if stage.is_relay:
        return "it has no key"
    if others:
        return "it reads several streams"
    if not isinstance(read.origin, Port):
        return "it reads a source"
    before, tag = read.origin.stage, read.origin.tag
    if not read.chains:
        return "chain=False"
    if read.steps:
        return f"{read.steps[-1]!r} is before its key"
    if tag is not None:
        return f"it reads side output {tag.name!r} of {before.name!r}"
    if before.name != chain[index - 1].name:
        return f"it reads {before.name!r}, and the operator before it is {chain[index - 1].name!r}"
    if callable(stage.keys) or callable(before.keys):
        return f"a function computes {'its keys' if callable(stage.keys) else f'the keys of {before.name!r}'}"
    forwarded_as = tuple(before.function.forwarded_fields.get(key, key) for key in before.keys)
    if stage.keys not in (before.keys, forwarded_as):
        forwarded = f", which it forwards as {_named(forwarded_as)}" if forwarded_as != before.keys else ""
        return f"it is keyed by {_named(stage.keys)}, and {before.name!r} by {_named(before.keys)}{forwarded}"
    types = [_key_type(each) for each in (before, stage)]
    if None not in types and types[0] != types[1]:
        return f"its keys are of type {types[1]}, those of {before.name!r} of type {types[0]}"
    if not is_dataframe(stage.source.data) and (stage.parallelism or 1) != (before.parallelism or 1):
        return f"it has another parallelism than {before.name!r}"
    if stage.initial_state is not None:
        return "it has an initial state"
    return ""


def _named(keys: tuple[str, ...]) -> str:
    return ", ".join(map(repr, keys))


def _key_type(stage: Stage) -> str | None:
    """Return the type of an operator's keys, ``None`` if it is not known before its first row."""
    columns = stage.inputs[0].columns or {}
    types = [columns.get(key) for key in stage.key_columns]
    return None if None in types else spark_key_type([type_ for type_ in types if type_ is not None])


def lines(last: Stage, sizes: Sequence[int] | None = None) -> list[list[Stage]]:
    """Return the operators of a query in order, grouped into chained lines.

    Args:
        last: The last operator.
        sizes: Number of operators of each line in the checkpoint, ``None`` without one. An operator that was not
            chained there stays unchained.

    Raises:
        OperatorChanged: The checkpoint has another number of operators.
        CheckpointError: It has chained operators that cannot be chained any more.
    """
    chains: list[list[Stage]] = []
    begins = None
    relays = [1 for stage in last.chain if stage.is_relay]
    if sizes is not None:
        if sum(sizes) + len(relays) == len(last.chain):
            # On Spark the checkpoint knows only operators with state.
            sizes = [*sizes, *relays]
        if sum(sizes) != len(last.chain):
            raise OperatorChanged(
                f"the checkpoint has {sum(sizes)} operators, and the query {len(last.chain)}: "
                f"{[stage.name for stage in last.chain]}; use the same operators and names, or a new checkpoint"
            )
        begins = {sum(sizes[:number]) for number in range(len(sizes))}
    for number, stage in enumerate(last.chain):
        reason = shuffle_reason(last.chain, number)
        if begins is None:
            begins_line = bool(reason)
        else:
            begins_line = number in begins
            if reason and not begins_line:
                raise CheckpointError(
                    f"operator {stage.name!r} runs chained to {chains[-1][-1].name!r} in the checkpoint, and could not "
                    f"be chained now: {reason}. The first batch of a checkpoint fixes the chaining; keep it, or start "
                    "from a new checkpoint with restore_from= the changelogs"
                )
        if begins_line:
            chains.append([])
        chains[-1].append(stage)
    return chains
