"""The command ``inspect``: prints the content of a checkpoint of either runtime, without the job or a changelog."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

import attrs
import msgspec

from keyed.base.arguments import clock_text
from keyed.changelog.model import batch_id
from keyed.cli.command import check_checkpoint, command, namespace_text, print_json, print_rows, session_for
from keyed.codec.state_schema import shown_tables
from keyed.content.addresses import key_of, state_id_of
from keyed.content.contents import content_entries
from keyed.engine.group_log import GroupLog, GroupMeta
from keyed.errors import OperatorChanged
from keyed.formats.json_writer import as_json
from keyed.recovery.local_checkpoint import Checkpoint, committed
from keyed.runtimes.recovering import operators_of
from keyed.tables.json_values import key_of as key_of_text
from keyed.tables.operator_view import view_of_entries
from keyed.tables.state_table import timer_of

_TIMERS = "timers"


@attrs.define(kw_only=True)
class Inspected:
    """Content of an operator's checkpoint, over some of its key groups.

    Attributes:
        operator: Its name.
        groups: Number of key groups.
        batch: Id of the last batch.
        watermark: The least watermark.
        processing_time: The greatest processing time.
        ended: True if the input has ended.
        counters: The counters, summed over the key groups; ``commit`` replaces ``batches``.
        states: Kind, types, number of entries and bytes of each state, by name; timers have a name of their own.
        entries: Entries of the requested key, by state.
    """

    operator: str
    groups: int
    batch: int
    watermark: int
    processing_time: int
    ended: bool
    counters: dict[str, int]
    states: dict[str, dict[str, Any]]
    entries: list[dict[str, Any]]


def inspect_group(meta: GroupMeta, log: GroupLog, key: str | None = None) -> Inspected:
    """Inspect one key group.

    Args:
        meta: Its meta record.
        log: Its log.
        key: A key whose entries are requested: text, or JSON if keys are not text.

    Raises:
        CorruptionError: The log is damaged.
        DefinitionError: The text is not a key.
    """
    where = f"checkpoint, operator {meta.operator!r}, key group {meta.group}"
    by_id = {int(state["id"]): name for name, state in meta.states.items()}
    tables = shown_tables(meta.states, meta.operator)
    clocks = meta.watermark, meta.processing_time
    view = view_of_entries(meta.operator, meta.states, clocks, (), {})
    readers = {name: view.reader(name) for name in tables}
    states: dict[str, dict[str, Any]] = {
        name: {"kind": table.schema.kind, "types": table.types, "entries": 0, "bytes": 0}
        for name, table in readers.items()
    }
    names_of = {state: name for name, state in tables.items()}
    states[_TIMERS] = {"kind": _TIMERS, "types": "", "entries": 0, "bytes": 0}
    encoded: Any = None
    described: list[dict[str, Any]] = []
    stored: list[tuple[bytes, bytes, bytes]] = []
    for prefix, sub, value in content_entries(committed(log, meta, where), meta.states, where):
        assert value is not None
        state_id = state_id_of(prefix)
        state = None if state_id is None else by_id[state_id]
        name = _TIMERS if state is None else names_of.get(state, meta.operator)
        # Entries beside a table belong to it.
        states[name]["entries"] += state is None or state in names_of
        states[name]["bytes"] += len(prefix) + len(sub) + len(value)
        entry_key = key_of(prefix)
        if key is None or entry_key is None:
            continue
        encoded = key_of_text(key, entry_key, "--key") if encoded is None else encoded
        if entry_key != encoded:
            continue
        if state is None:
            timer = timer_of(prefix, sub, value)
            described.append(
                {"state": name, "entry": timer.name, "value": timer.timestamp, "about": timer.domain.value}
            )
        else:
            stored.append((prefix, sub, value))
    view = view_of_entries(meta.operator, meta.states, clocks, stored, {})
    for name, table in readers.items():
        described += [
            {"state": name, "entry": entry.entry, "value": entry.value, "about": entry.namespace}
            for entry in (table.entry(*row) for row in view.stored(table, *table.range))
        ]
    return Inspected(
        operator=meta.operator,
        groups=1,
        batch=batch_id(meta.commit),
        watermark=meta.watermark,
        processing_time=meta.processing_time,
        ended=meta.ended,
        # Each key group counts its batches, so their sum means nothing for the operator; the commit does.
        counters={name: count for name, count in meta.counters.items() if name != "batches"},
        states=states,
        entries=described,
    )


def _merge_groups(parts: Iterable[Inspected]) -> dict[str, Inspected]:
    operators: dict[str, Inspected] = {}
    for part in parts:
        merged = operators.setdefault(part.operator, part)
        if merged is part:
            continue
        merged.groups += 1
        merged.watermark = min(merged.watermark, part.watermark)
        merged.processing_time = max(merged.processing_time, part.processing_time)
        merged.ended = merged.ended or part.ended
        merged.entries += part.entries
        for name, count in part.counters.items():
            merged.counters[name] = merged.counters.get(name, 0) + count
        for name, state in part.states.items():
            total = merged.states.setdefault(name, {**state, "entries": 0, "bytes": 0})
            if state["kind"] == "broadcast":
                # All key groups have the same content.
                continue
            total["entries"] += state["entries"]
            total["bytes"] += state["bytes"]
    return operators


def inspect_local(path: str, operator: str | None = None, key: str | None = None) -> dict[str, Inspected]:
    """Inspect the operators in a checkpoint of the local runtime, by name.

    Raises:
        CheckpointError: There is no checkpoint.
        OperatorChanged: There is no such operator.
        CorruptionError: It is damaged.
    """
    with Checkpoint.open(path, copies=True) as opened:
        return _merge_groups(
            inspect_group(meta, log, key)
            for name in _select_operators(path, operators_of(opened), operator)
            for meta, log in opened.groups(name)
        )


def inspect_spark(session: Any, path: str, operator: str | None = None, key: str | None = None) -> dict[str, Inspected]:
    """Inspect the operators in a checkpoint of Spark, by name.

    Raises:
        CheckpointError: There is no checkpoint.
        OperatorChanged: There is no such operator.
        CorruptionError: It is damaged.
    """
    from keyed.base.schemas import schema_of
    from keyed.runtimes.spark.checkpoint.spark_recovery import Selection, committed_metas, for_groups

    def work(meta: GroupMeta, log: GroupLog) -> dict[str, Any]:
        return {"found": as_json(inspect_group(meta, log, key)).decode()}

    states = {meta.operator: state for state, meta in committed_metas(session, path).items()}
    chosen = [Selection(states[name]) for name in _select_operators(path, sorted(states), operator)]
    rows = for_groups(session, path, chosen, work, schema_of("found string"))
    return _merge_groups(msgspec.convert(json.loads(row["found"]), Inspected) for row in rows)


def _select_operators(path: str, names: list[str], operator: str | None) -> list[str]:
    if operator is not None and operator not in names:
        raise OperatorChanged(
            f"the checkpoint {path} has no operator {operator!r}; it has: {', '.join(names) or 'none'}"
        )
    return names if operator is None else [operator]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder of the checkpoint, of the local runtime or of Spark")
    parser.add_argument("--operator", help="only this operator")
    parser.add_argument("--key", help="print the entries of this key: text, or JSON if keys are not text")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per operator")


@command(
    "Print a checkpoint: states, sizes, timers, counters, and one key. A job may be using it.",
    _add_arguments,
    "job-checkpoint",
    "job-checkpoint --operator Sold --key 'Die Hard'",
)
def _inspect(arguments: argparse.Namespace) -> int:
    """Inspect, and print the result. The exit status is 1 if the key has no entries."""
    check_checkpoint(arguments.checkpoint)
    session = session_for(arguments.checkpoint)
    look = inspect_local if session is None else lambda *rest: inspect_spark(session, *rest)
    content = look(arguments.checkpoint, arguments.operator, arguments.key)
    for name, operator in content.items():
        if arguments.json:
            print_json([operator])
            continue
        print(
            f"{name}: batch {operator.batch}, {operator.groups} key groups, watermark {clock_text(operator.watermark)}"
        )
        print_rows([{"state": state, **about} for state, about in operator.states.items()])
        print("counters: " + ", ".join(f"{counter} {count}" for counter, count in operator.counters.items() if count))
        if arguments.key is not None:
            print_rows(map(_with_texts, operator.entries))
    return int(arguments.key is not None and not any(operator.entries for operator in content.values()))


def _with_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with its times as text."""
    if row["state"] == _TIMERS:
        return row | {"value": clock_text(row["value"])}
    return row | {"about": namespace_text(row["about"])}
