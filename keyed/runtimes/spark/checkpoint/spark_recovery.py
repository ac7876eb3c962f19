"""Work on a checkpoint of Spark without its query: flush, verify, and the reader of its commits.

Flush exports committed batches that its changelogs lack. A running query exports a batch with its next one. The last
batch of a query that has ended is exported here, and the whole state of a checkpoint whose changelog is empty. The
workers do it: first with the records of the last batch, and then, for key groups that need more, with all of their
records. Before that the driver logs the query's position, if `run` or `start` have begun it, so that its sources can be
distinguished from the ticks.

Verify compares the state with the hash in its commits, and with its changelog.

The commits of key groups are read with Spark's source ``statestore``. A key group's log is in one partition of the
state. Its rows are sent to a worker in order, the meta record first, and the worker calls a function with them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial, reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import pyarrow as pa

from keyed.arrow.write import arrow_schema
from keyed.base.schemas import Schema, schema_of
from keyed.base.scratch import ScratchFolder
from keyed.changelog.model import Changelog, batch_id
from keyed.destinations.sink import local_folder
from keyed.engine.export import export
from keyed.engine.group_log import GroupLog, GroupMeta, decode_meta, decode_row
from keyed.engine.replica import Replica
from keyed.errors import ChangelogFenced, CheckpointError, OperatorChanged, ParallelismChanged
from keyed.recovery.local_checkpoint import check_changelog
from keyed.recovery.verification import Verified, verify_group
from keyed.runtimes.spark.checkpoint.begin import PositionLog, read_begin
from keyed.runtimes.spark.checkpoint.folder import checkpoint_folder, spark_path
from keyed.runtimes.spark.query.failures import raise_translated
from keyed.runtimes.spark.session.ship import archive_for, shipped
from keyed.runtimes.spark.session.spark_session import checkpoint_settings, is_remote, settings
from keyed.runtimes.spark.worker.processor import WRITERS, state_variables
from keyed.runtimes.spark.worker.wire import group_ids
from keyed.stores import open_rocks_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Characters that are escaped in a URI. Spark's source escapes them twice, and does not find the checkpoint.
_ESCAPED = re.compile(r"""[\s"<>{}|\\^`%#?\[\]]""")

#: Rows of a log have at most a megabyte; number of rows that a worker gets at a time.
_ROWS_AT_ONCE = "32"
_TASKS_FOR_CHANGES = 16


@attrs.frozen
class StateOperator:
    """A keyed operator in a checkpoint.

    Attributes:
        id: Spark's number of its line of chained operators. The last line is 0, the one before it 1, and so on.
        parallelism: Number of key groups.
        batch: Id of the last batch that Spark committed.
        place: Its index in its line of chained operators.
    """

    id: int
    parallelism: int
    batch: int
    place: int = 0


@attrs.frozen
class CheckpointLayout:
    """Layout of the operators of a checkpoint, which is fixed by its first batch.

    Attributes:
        parallelism: Number of key groups.
        sizes: Number of chained keyed operators in each of Spark's operators, in order.
    """

    parallelism: int
    sizes: tuple[int, ...]


def check_path(checkpoint: str) -> None:
    """Check that Spark can read the state in a checkpoint at this path.

    Raises:
        CheckpointError: Spark cannot read it.
    """
    match = _ESCAPED.search(checkpoint)
    if match:
        raise CheckpointError(
            f"the checkpoint {checkpoint!r} has {match[0]!r} in its path: Spark's state reader, which exports the last "
            "batch of a query to its changelogs, does not find it; give a path without it"
        )


def state_operators(session: SparkSession, checkpoint: str) -> list[StateOperator]:
    """Return the keyed operators of a checkpoint; none while no batch was committed.

    Args:
        session: The session.
        checkpoint: Folder of the checkpoint.

    Raises:
        CheckpointError: It cannot be read.
    """
    from pyspark.errors import PySparkException

    check_path(checkpoint)
    try:
        rows = session.read.format("state-metadata").load(checkpoint).collect()
    except PySparkException as error:
        raise CheckpointError(f"the checkpoint {checkpoint} cannot be read: {error}") from error
    return [
        StateOperator(row.operatorId, row.numPartitions, row.maxBatchId, place)
        for row in rows
        if row.maxBatchId >= 0
        for place in range(_size(row.operatorProperties))
    ]


def checked_layout(session: SparkSession, checkpoint: str, count: int | None, *, here: bool) -> CheckpointLayout | None:
    """Return the layout of the operators of a checkpoint, ``None`` if it is new.

    Args:
        session: The session.
        checkpoint: Folder of the checkpoint; it need not exist.
        count: The number of key groups of the query, if it sets one.
        here: True if paths without a scheme are folders of this machine.

    Raises:
        ParallelismChanged: The checkpoint has another number of key groups than the query.
    """
    from pyspark.errors import PySparkException

    folder = local_folder(checkpoint) if here else None
    if folder is not None and not (folder / "commits").is_dir():
        return None
    columns = ("operatorId", "numPartitions", "operatorProperties")
    try:
        rows = session.read.format("state-metadata").load(checkpoint).select(*columns).distinct().collect()
    except PySparkException:
        # There is no other way to check for a checkpoint on a file system that only Spark reaches.
        return None
    if not rows:
        return None
    parallelism = max(row.numPartitions for row in rows)
    if count is not None and count != parallelism:
        raise ParallelismChanged(
            f"the checkpoint {checkpoint} has {parallelism} key groups, and the query has {count}: the number is "
            f"fixed by a query's first batch; set parallelism={parallelism}, or restore the state into a new "
            "checkpoint"
        )
    sizes = [_size(row.operatorProperties) for row in sorted(rows, key=lambda row: -row.operatorId)]
    return CheckpointLayout(parallelism, tuple(sizes))


@attrs.frozen
class Selection:
    """Key groups to read.

    Attributes:
        operator: Their operator.
        keygroups: Their ids on Spark; all if ``None``.
        changes: Read only the changes of so many last batches, at a cost proportional to them, unless it is 0. Groups
            without changes are left out.
    """

    operator: StateOperator
    keygroups: tuple[int, ...] | None = None
    changes: int = 0


def committed_metas(session: SparkSession, checkpoint: str) -> dict[StateOperator, GroupMeta]:
    """Return the meta record of one key group of each operator of a checkpoint, after the last committed batch.

    Raises:
        CheckpointError: It cannot be read, was moved, or has no operator of keyed.
    """
    operators = state_operators(session, checkpoint)
    if not operators:
        raise CheckpointError(f"the checkpoint {checkpoint} has no committed batch of an operator of keyed")
    metas = {}
    for operator in operators:
        for changes in (1, 0):
            # Every number of key groups includes a group with this id.
            with settings(session, checkpoint_settings(session)):
                try:
                    frame = _rows(session, checkpoint, Selection(operator, (0,), changes))
                except Exception:
                    checkpoint_folder(session, checkpoint).check_location(ticks=False)
                    raise
                records = frame.where("row = 0").select("record").collect()
            if records:
                break
        else:
            raise CheckpointError(f"the checkpoint {checkpoint} has no committed batch of operator {_name(operator)}")
        metas[operator] = _newest(bytes(row.record) for row in records)
    return metas


def for_groups(
    session: SparkSession,
    checkpoint: str,
    selections: Sequence[Selection],
    work: Callable[[GroupMeta, GroupLog], dict[str, Any]],
    result: Schema,
) -> list[Any]:
    """Call a function for key groups, in parallel on the workers.

    Args:
        session: The session.
        checkpoint: Folder of the checkpoint.
        selections: The key groups.
        work: Called with the meta record of a group and with its log, which can be read once, and the rows of commits
            that wait for their export any number of times. Returns a row.
        result: The columns of that row. The returned rows have ``keygroup`` before them.

    Returns:
        A row for each key group.

    Raises:
        KeyedError: The error of the work, or `QueryFailed`.
    """
    result = Schema((("keygroup", "int"), *result.columns))
    archive = archive_for([]) if is_remote(session) else None
    session_settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": _ROWS_AT_ONCE, **checkpoint_settings(session)}
    with settings(session, session_settings):
        rows = _sorted_rows(session, checkpoint, selections)
        try:
            return rows.mapInArrow(shipped(archive, partial(_run, work, result)), result.ddl).collect()
        except Exception as error:  # noqa: BLE001 - it is raised again, translated
            raise_translated(error, f"reading the checkpoint {checkpoint}")


def _sorted_rows(session: SparkSession, checkpoint: str, selections: Sequence[Selection]) -> DataFrame:
    """Return the rows of key groups, those of each in one partition and in order."""
    frames = [_rows(session, checkpoint, each) for each in selections]
    rows: DataFrame = reduce(lambda one, other: one.unionAll(other), frames)
    tasks = sum(each.operator.parallelism for each in selections)
    if all(each.changes for each in selections):
        # Starting a task costs more than such a group does.
        tasks = min(tasks, _TASKS_FOR_CHANGES)
    rows = rows.repartition(tasks, "operator", "keygroup")
    return rows.sortWithinPartitions("operator", "keygroup", "row")


def _rows(session: SparkSession, checkpoint: str, selection: Selection) -> DataFrame:
    """Return the rows of the key groups' logs: ``operator string, keygroup int, row long, record binary``.

    Row 0 is the meta record. Rows come in any order.
    """
    operator = selection.operator

    def read(variable: str, row: str, record: str) -> DataFrame:
        reader = session.read.format("statestore").option("operatorId", operator.id).option("stateVarName", variable)
        if selection.changes:
            reader = reader.option("readChangeFeed", "true")
            first = max(operator.batch - selection.changes + 1, 0)
            reader = reader.option("changeStartBatchId", first).option("changeEndBatchId", operator.batch)
        else:
            reader = reader.option("batchId", operator.batch)
        frame = reader.load(checkpoint)
        if selection.changes:
            frame = frame.where("change_type = 'update'")
        if selection.keygroups is not None:
            frame = frame.where(f"key.keygroup IN ({', '.join(map(str, selection.keygroups))})")
        name = f"'{_name(operator)}' AS operator"
        return frame.selectExpr(name, "key.keygroup", f"{row} AS row", f"{record} AS record")

    rows, meta = state_variables(operator.place)
    return read(meta, "0L", "value.record").unionAll(read(rows, "user_map_key.row", "user_map_value.record"))


def _name(operator: StateOperator) -> str:
    return f"{operator.id}.{operator.place}"


def _newest(records: Iterable[bytes]) -> GroupMeta:
    """Return the newest of the meta records that a batch wrote: the first batch of a restored group writes two."""
    return max((decode_meta(record, "checkpoint, meta record") for record in records), key=lambda meta: meta.commit)


def _size(properties: str) -> int:
    """Return the number of keyed operators in a Spark operator, from its properties; 0 if it is not one of ours."""
    names = {each["stateName"] for each in json.loads(properties or "{}").get("stateVariables", [])}
    size = len(names) // 2
    return size if names == {name for place in range(size) for name in state_variables(place)} else 0


# What the Python workers run ------------------------------------------------------------------------------------------


def _run(
    work: Callable[[GroupMeta, GroupLog], dict[str, Any]], result: Schema, batches: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    schema: Any = arrow_schema(result)
    rows = (row for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True))
    for (_, keygroup), group in groupby(rows, key=lambda row: row[:2]):
        numbered = groupby((row[2:] for row in group), key=lambda row: row[0])
        number, records = next(numbered)
        assert number == 0, "the meta record comes first"
        meta = _newest(record for _, record in records)
        log: Any = _Log(meta, (list(same) for _, same in numbered))
        done = {"keygroup": keygroup, **work(meta, log)}
        yield pa.RecordBatch.from_pylist([done], schema=schema)


class _Log:
    """The rows of one key group's log, in order and for one iteration; those that wait for their export are kept.

    Args:
        meta: The meta record.
        rows: The written rows with number and record; some more than once, after a restart within a batch.
    """

    def __init__(self, meta: GroupMeta, rows: Iterator[list[tuple[int, bytes]]]) -> None:
        waiting = meta.unexported()
        self._attempts = {commit.attempt for commit in waiting}
        self._kept_from = meta.last_row - sum(commit.rows for commit in waiting) + 1
        self._rows = rows
        self._kept: list[tuple[int, bytes]] = []

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """See `keyed.engine.group_log.GroupLog.read`."""
        yield from (row for row in [*self._kept] if first <= row[0] <= last)
        for same in self._rows:
            row = same[0] if len(same) == 1 else self._committed(same)
            if row[0] >= self._kept_from:
                self._kept.append(row)
            if first <= row[0] <= last:
                yield row

    def _committed(self, same: list[tuple[int, bytes]]) -> tuple[int, bytes]:
        committed = [row for row in same if decode_row(row[1], f"log row {row[0]}").attempt in self._attempts]
        return committed[0] if committed else same[-1]


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
    with ScratchFolder("flush") as folder, ExitStack() as stack:

        @cache
        def build() -> Any:
            replica = Replica(open_rocks_store(folder.path / "store"))
            stack.callback(replica.close)
            replica.catch_up(log, meta, where)
            return replica.store

        yield build


def _not_enough() -> NoReturn:
    raise _NotEnoughError


def _verify(changelog: Changelog | None, meta: GroupMeta, log: GroupLog) -> dict[str, Any]:
    return attrs.asdict(verify_group(meta, log, changelog))
