"""The start of a query on a checkpoint: empty, at the checkpoint's state, or with the state of changelogs.

The record ``keyed-begin`` in the checkpoint of a query of `run` or `start` is JSON of the fields of `Begin`. It is
written before the first batch; for a restored query it is written again once the checkpoint is complete.

The first batch of a restored query has only ticks as its source: the key groups, which have no state yet, load their
state (`keyed.recovery.loading`). Then the line of each source is written to ``offsets/0``, as if the batch had read the
rows of the earlier query, and batch 1 continues from there. Without a position in the changelog, the key groups load
their state in the first ordinary batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import attrs

from keyed.base.ids import random_id
from keyed.changelog.model import Changelog, all_positions, batch_id
from keyed.codec.frames import refusal_of_version
from keyed.codec.state_schema import StateSchema, check_compatible
from keyed.engine.bound import Scope
from keyed.engine.registry import Registry
from keyed.errors import CheckpointError, CorruptionError, HistoryCompacted
from keyed.job.graph import Stage
from keyed.job.restoring import RestorePoint
from keyed.recovery.cut import Cut
from keyed.runtimes.lineage import lineage
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder
from keyed.runtimes.spark.checkpoint.source_files import put_files
from keyed.runtimes.spark.checkpoint.spark_position import decode_position
from keyed.stores import MemoryStore
from keyed.stores.commit_store import COMMITS_FOLDER

_log = logging.getLogger(__name__)
_NAME, _VERSION = "keyed-begin", 1
#: Descriptions of states, by the name of their operator.
Defined = dict[str, list[dict[str, Any]]]


@attrs.frozen
class Begin:
    """The kind of start of a query, and its pending steps.

    Attributes:
        first_batch: Id of Spark's batch 0 for sinks. Ids continue after those of the earlier query, and its outputs
            after the restored batch are replaced.
        sequence: Number of the restored commit in the changelogs, 0 if nothing was restored.
        sources: Lines of the sources that still have to be written to ``offsets/0``.
        with_position: True if the changelogs had a position.
        ticks: True if the last of the query's sources are the ticks.
        queries: Id of the query, after those of the queries that it was restored from.
        states: The states that depend on a definition: see `defined_states`.
        version: Version of the record.
    """

    first_batch: int = 0
    sequence: int = 0
    sources: list[str] | None = None
    with_position: bool = False
    ticks: bool = True
    queries: list[str] = attrs.field(factory=list)
    states: Defined = attrs.field(factory=dict)
    version: int = _VERSION


def defined_states(chain: Sequence[Stage]) -> Defined:
    """Return descriptions of the states that depend on a definition (`StateSchema.meaning`), by operator."""
    schemas = {}
    for stage in chain:
        function: Any = copy(stage.function)
        registry = Registry(stage.spec(stage.parallelism or 1), 0, Scope(MemoryStore()), {})
        registry.bind_declared(function)
        described = [state["schema"] for state in registry.described().values()]
        if defined := [schema for schema in described if schema.get("meaning")]:
            schemas[stage.name] = defined
    return schemas


def begin(
    folder: CheckpointFolder, points: Mapping[str, RestorePoint], *, ticks: bool = True, states: Defined | None = None
) -> Begin | None:
    """Return the record of a query's start, after writing it to the checkpoint.

    Args:
        folder: The checkpoint.
        points: The restore points of operators, by name.
        ticks: True if the query has ticks.
        states: Its states that depend on a definition.

    Returns:
        The record, ``None`` if the key groups have to load their state: see `begin_at`.

    Raises:
        CheckpointError: The checkpoint belongs to the local runtime, or its restore was not completed and is not
            requested again.
        StateSchemaChanged: The definition of a state has changed.
    """
    record = before = read_begin(folder)
    is_new = folder.last_commit() is None
    if is_new and folder.names(COMMITS_FOLDER):
        raise CheckpointError(
            f"the checkpoint {folder.path} was written by the local runtime, and a query on Spark cannot continue it; "
            "give checkpoint= a new folder, and restore_from= the changelog of the local query to take over its state"
        )
    if is_new and points:
        if (record is None or not record.sequence) and folder.names("offsets"):
            raise CheckpointError(
                f"a query without restore_from= has begun its first batch in the checkpoint {folder.path} and has not "
                "finished it: give a new checkpoint"
            )
        return None
    if is_new and record is not None and record.sequence:
        raise CheckpointError(
            f"the checkpoint {folder.path} has to begin after batch {batch_id(record.sequence)} of a changelog, and "
            "has not: give restore_from= again, or a new checkpoint"
        )
    if is_new or record is None:
        # Sinks of a query that `writeStream` has started have Spark's id.
        queries = record.queries if record is not None else [random_id() if is_new else _spark_id(folder)]
        record = Begin(ticks=ticks, queries=queries)
    states = states or {}
    if not is_new:
        _check_defined(record.states, states)
    record = attrs.evolve(record, states=states)
    if record != before:
        _write(folder, record)
    return record


def _check_defined(stored: Defined, declared: Defined) -> None:
    """Check that states have kept their definition; a state that is stored compares whole when a key group opens it."""
    for operator in stored.keys() & declared.keys():
        old, new = (
            {schema["name"]: StateSchema.from_json(schema) for schema in each[operator]} for each in (stored, declared)
        )
        check_compatible(operator, [old[name] for name in old if name in new], new.values())


def begin_at(folder: CheckpointFolder, cut: Cut, *, ticks: bool = True, states: Defined | None = None) -> Begin:
    """Write and return the record of a query whose key groups load the state of changelogs at a cut.

    Args:
        folder: The checkpoint.
        cut: The cut.
        ticks: True if the query has ticks.
        states: Its states that depend on a definition.

    Raises:
        HistoryCompacted: The changelogs were compacted beyond the cut.
    """
    before = read_begin(folder)
    # The folders of its sinks may have its id, if it has begun before.
    own = before.queries[-1:] if before is not None else []
    queries = [*lineage(cut), *(own or [random_id()])]
    position = None if cut.position is None else decode_position(cut.position)
    if position is None:
        _log.warning(
            "batch %d is restored without a position: the state is restored, and the source is read as its options say",
            batch_id(cut.sequence),
        )
        record = Begin(cut.sequence, cut.sequence)
    else:
        # The changelogs of all operators have the position, except new ones.
        changelogs = [restoration.point.changelog for restoration in cut.operators.values()]
        changelog = next((each for each in changelogs if _position_of(each, cut.sequence) == cut.position), None)
        if changelog is None:
            raise HistoryCompacted(f"the changelog no longer has the position of batch {batch_id(cut.sequence)}")
        sources = put_files(folder, changelog, position.sources)
        record = Begin(position.batch + 1, cut.sequence, sources, with_position=True)
    record = attrs.evolve(record, ticks=ticks, queries=queries, states=states or {})
    _write(folder, record)
    return record


def read_begin(folder: CheckpointFolder) -> Begin | None:
    """Return the record of a checkpoint's query; ``None`` if it was not started by `run` or `start`.

    Raises:
        CorruptionError: The record is damaged, or of another version.
    """
    content = folder.read(_NAME)
    if content is None:
        return None
    where = f"{folder.path}/{_NAME}"
    try:
        record = Begin(**json.loads(content))
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"malformed record: {error}", where=where) from error
    if record.version != _VERSION:
        raise CorruptionError(f"the record has {refusal_of_version(record.version, _VERSION)}", where=where)
    return record


def take_position(folder: CheckpointFolder, record: Begin) -> Begin:
    """Make the sources of a restored query resume at the earlier query's position, after its first batch.

    Args:
        folder: The checkpoint.
        record: The record of the query's start.
    """
    assert record.sources is not None
    # The last line belongs to the ticks, of which none was read. This may be repeated after a crash.
    lines = (folder.read("offsets/0") or b"").decode().split("\n")
    after = [*lines[:2], *record.sources, *(["-"] if record.ticks else [])]
    folder.write("offsets/0", "\n".join(after).encode())
    record = attrs.evolve(record, sources=None)
    _write(folder, record)
    return record


def _spark_id(folder: CheckpointFolder) -> str:
    """Return Spark's id of a query that has begun."""
    metadata = folder.read("metadata")
    return random_id() if metadata is None else str(json.loads(metadata)["id"])


def _position_of(changelog: Changelog, sequence: int) -> bytes | None:
    number, record = next(all_positions(changelog, sequence - 1), (0, None))
    return record if number == sequence else None


def _write(folder: CheckpointFolder, record: Begin) -> None:
    folder.write(_NAME, json.dumps(attrs.asdict(record)).encode())
