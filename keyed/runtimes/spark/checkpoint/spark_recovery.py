"""Flush and verify of a checkpoint of Spark: flush exports committed batches that its changelogs lack.

A running query exports a batch with its next one. The last batch of a query that has ended is exported here, and the
whole state of a checkpoint whose changelog is empty. The workers do it: first with the records of the last batch, and
then, for key groups that need more, with all of their records. Before that the driver logs the query's position, if
`run` or `start` have begun it, so that its sources can be distinguished from the ticks.

Verify compares the state with the hash in its commits, and with its changelog.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from keyed.base.lease import ScratchFolder
from keyed.base.schemas import Schema, schema_of
from keyed.changelog.model import Changelog, batch_id
from keyed.engine.export import export
from keyed.engine.group_log import GroupLog, GroupMeta
from keyed.engine.replica import Replica
from keyed.errors import ChangelogFenced, OperatorChanged
from keyed.recovery.local_checkpoint import check_changelog
from keyed.recovery.verification import Verified, verify_group
from keyed.runtimes.spark.checkpoint.begin import read_begin
from keyed.runtimes.spark.checkpoint.folder import checkpoint_folder, spark_path
from keyed.runtimes.spark.checkpoint.spark_position import PositionLog
from keyed.runtimes.spark.checkpoint.state_reader import Selection, StateOperator, committed_metas, for_groups
from keyed.runtimes.spark.worker.processor import WRITERS
from keyed.runtimes.spark.worker.wire import group_ids
from keyed.stores import open_rocks_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXPORTED = Schema((("name", "string"), ("commit", "bigint"), ("done", "boolean")))
_VERIFIED = schema_of(Verified)


@attrs.frozen
class _Target:
    """A changelog to export to, and its identity."""

    changelog: Changelog
    log_id: str


def spark_flush(
    session: SparkSession, checkpoint: str | os.PathLike[str], changelogs: Mapping[str, Changelog]
) -> dict[str, int]:
    """Export the committed batches of a Spark checkpoint that changelogs lack.

    These are the last batch of a query that was started and stopped with plain ``writeStream``, and the whole state if
    a changelog is empty. The query may be running. Queries of `run` and `start` do this themselves when they end.

    Args:
        session: A Spark session; it need not be the one of the query.
        checkpoint: Folder of the checkpoint.
        changelogs: Changelogs by name of operator.

    Returns:
        Id of the last batch by operator, which its changelog now has.

    Raises:
        CheckpointError: There is no checkpoint, or it has no such operator.
        ChangelogDiverged: A changelog does not belong to this checkpoint.
        ChangelogError: It cannot be written.
    """
    checkpoint = spark_path(session, os.fspath(checkpoint))
    metas = committed_metas(session, checkpoint)
    _check_operators(checkpoint, metas, changelogs.keys())
    operators = {operator: meta.operator for operator, meta in metas.items()}
    for operator, name in operators.items():
        if name in changelogs:
            changelogs[name].prepare(name, operator.parallelism)
    _log_position(session, checkpoint, metas, changelogs)
    waiting = {meta.operator: 1 + meta.commit - meta.unexported()[0].sequence for meta in metas.values()}
    return export_last(session, checkpoint, operators, changelogs, waiting)


def spark_verify(
    session: SparkSession, checkpoint: str | os.PathLike[str], operator: str | None, changelog: Changelog | None = None
) -> list[Verified]:
    """Check the operators of a Spark checkpoint, or one of them, and compare it with its changelog if one is given.

    Args:
        session: A Spark session; it need not be the one of the query.
        checkpoint: Folder of the checkpoint.
        operator: Name of the operator; ``None`` for all.
        changelog: Its changelog, to compare with, commit by commit and entry by entry.

    Returns:
        A `Verified` for each key group.

    Raises:
        CheckpointError: There is no checkpoint, or it has no such operator.
        ChangelogError: The changelog was never written, or cannot be read.
    """
    checkpoint = spark_path(session, os.fspath(checkpoint))
    metas = committed_metas(session, checkpoint)
    _check_operators(checkpoint, metas, () if operator is None else (operator,))
    states = {meta.operator: state for state, meta in metas.items()}
    verified = []
    for name in sorted(states) if operator is None else [operator]:
        rows = for_groups(session, checkpoint, [Selection(states[name])], partial(_verify, changelog), _VERIFIED)
        groups = [Verified(**{field: row[field] for field in _VERIFIED.names}) for row in rows]
        verified += sorted(groups, key=lambda each: each.group)
    return verified


def export_last(
    session: SparkSession,
    checkpoint: str,
    operators: Mapping[StateOperator, str],
    changelogs: Mapping[str, Changelog],
    waiting: Mapping[str, int],
) -> dict[str, int]:
    """Export the last batches of a checkpoint, whose positions are logged.

    Args:
        session: The session.
        checkpoint: The checkpoint.
        operators: Its operators, with their names.
        changelogs: The changelogs, by name of the operator.
        waiting: Number of batches that the changelogs may lack, by operator.

    Returns:
        As `spark_flush`.
    """
    chosen = {operator: name for operator, name in operators.items() if name in changelogs}
    targets = {
        name: _Target(changelogs[name], changelogs[name].prepare(name, operator.parallelism).log_id)
        for operator, name in chosen.items()
    }
    done: dict[tuple[str, int], Any] = {}
    for changes in (waiting, {}):
        missing = [
            Selection(operator, keygroups, changes.get(name, 0))
            for operator, name in chosen.items()
            if (keygroups := tuple(g for g in group_ids(operator.parallelism) if (name, g) not in done))
        ]
        if missing:
            results = for_groups(session, checkpoint, missing, partial(_export_group, targets, changes), _EXPORTED)
            done |= {(row.name, row.keygroup): row for row in results if row.done}
    newest: dict[str, int] = {}
    for row in done.values():
        batch = batch_id(row.commit)
        newest[row.name] = min(batch, newest.get(row.name, batch))
    return newest


def _check_operators(checkpoint: str, metas: Mapping[StateOperator, GroupMeta], names: Iterable[str]) -> None:
    """Check that a checkpoint has operators.

    Raises:
        OperatorChanged: It lacks one.
    """
    present = {meta.operator for meta in metas.values()}
    if unknown := {*names} - present:
        raise OperatorChanged(f"the checkpoint {checkpoint} has no operator {min(unknown)!r}; it has {sorted(present)}")


def _log_position(
    session: SparkSession,
    checkpoint: str,
    metas: Mapping[StateOperator, GroupMeta],
    changelogs: Mapping[str, Changelog],
) -> None:
    """Log the position of the query after its last batch in its changelogs."""
    for meta in metas.values():
        if meta.operator in changelogs:
            reader = changelogs[meta.operator].reader(meta.group)
            check_changelog(reader, meta, f"checkpoint {checkpoint}, operator {meta.operator!r}")
    folder = checkpoint_folder(session, checkpoint)
    record = read_begin(folder)
    # The checkpoint does not have it yet if a restored query was killed right after its first batch.
    if record is not None and record.sources is None:
        sequences = {meta.operator: meta.commit for meta in metas.values()}
        positions = PositionLog(
            folder,
            changelogs,
            ticks=record.ticks,
            first_batch=record.first_batch,
            queries=record.queries,
            sequences=lambda _: sequences,
        )
        positions.log(max(operator.batch for operator in metas))


# What the Python workers run ------------------------------------------------------------------------------------------


class _NotEnoughError(Exception):
    """The records of the last batches are not sufficient to export them."""


def _export_group(
    targets: Mapping[str, _Target], changes: Mapping[str, int], meta: GroupMeta, log: GroupLog
) -> dict[str, Any]:
    where = f"checkpoint, operator {meta.operator!r}, key group {meta.group}"
    batches = changes.get(meta.operator, 0)
    with _lazy_store(log, meta, where) as store:
        try:
            commit = _export(meta, log, targets[meta.operator], _not_enough if batches else store, where, batches)
        except _NotEnoughError:
            return {"name": meta.operator, "commit": meta.commit, "done": False}
    return {"name": meta.operator, "commit": commit, "done": True}


def _export(meta: GroupMeta, log: GroupLog, target: _Target, store: Callable[[], Any], where: str, batches: int) -> int:
    """Export one key group. Returns the number of the last commit that its changelog has.

    Raises:
        _NotEnoughError: The log has only the rows of the last ``batches``, if it is not 0, and others are needed.
    """
    writer = WRITERS.writer(target.changelog, target.log_id, meta.group, meta)
    last = writer.last()
    if last is not None and last.source_log == meta.log_id and last.sequence > meta.commit:
        # The query is running, and has committed more batches in the meantime.
        return last.sequence
    oldest = min((each.sequence for each in meta.unexported() if last and each.sequence > last.sequence), default=None)
    if batches and oldest is not None and oldest <= meta.commit - batches:
        raise _NotEnoughError
    try:
        export(log, meta, writer, store, where)
    except ChangelogFenced:
        # The group runs on another worker at the same time, which may have exported the missing commits.
        WRITERS.discard(target.log_id, meta.group)
        export(log, meta, WRITERS.writer(target.changelog, target.log_id, meta.group, meta), store, where)
    return meta.commit


@contextmanager
def _lazy_store(log: GroupLog, meta: GroupMeta, where: str) -> Iterator[Callable[[], Any]]:
    """Return a function that builds the group's local store from all its rows at its first call."""
    with ScratchFolder("flush") as folder:
        replicas: list[Replica] = []

        @cache
        def build() -> Any:
            replicas.append(Replica(open_rocks_store(folder.path / "store")))
            replicas[0].catch_up(log, meta, where)
            return replicas[0].store

        try:
            yield build
        finally:
            for replica in replicas:
                replica.close()


def _not_enough() -> NoReturn:
    raise _NotEnoughError


def _verify(changelog: Changelog | None, meta: GroupMeta, log: GroupLog) -> dict[str, Any]:
    return attrs.asdict(verify_group(meta, log, changelog))
