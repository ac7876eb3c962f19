"""Operations on checkpoints without the program that runs on them, for `keyed.recovery`: flush, verify, restore."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.ids import random_id
from keyed.changelog.model import Changelog, close_positions
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.engine.group_log import GroupLog, GroupMeta
from keyed.engine.replica import Loader
from keyed.errors import ChangelogError, CheckpointError, DefinitionError
from keyed.job.functions import KeyedProcessFunction, OperatorSpec, check_parallelism
from keyed.job.restoring import RestorePoint
from keyed.job.results import Restored, RestoreProgress
from keyed.recovery.cut import Cut, header_of, with_cut
from keyed.recovery.loading import load
from keyed.recovery.local_checkpoint import Checkpoint, flush_checkpoint
from keyed.recovery.verification import Verified, verify_changelog, verify_group
from keyed.runtimes.local.local_position import commit_restored, decode_position
from keyed.stores import MemoryStore
from keyed.stores.commit_store import COMMITS_FOLDER, CommitStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def flush(
    checkpoint: str | os.PathLike[str],
    changelogs: Mapping[str, Changelog | str],
    *,
    session: SparkSession | None = None,
) -> dict[str, int]:
    """Export the committed batches of a checkpoint that its changelogs lack.

    Queries of `keyed.run` and `keyed.start` do this when they end. Use it after plain ``writeStream``, after a kill,
    and for a changelog that is added to a checkpoint: an empty one starts with a snapshot.

    Args:
        checkpoint: Its folder, which no local run may be using; a query of Spark may.
        changelogs: Changelogs, or URLs of those in object stores, by name of operator.
        session: Reads a checkpoint of Spark; by default `keyed.spark_session`.

    Returns:
        Id of the last batch by operator, which its changelog now has.

    Raises:
        CheckpointError: There is no checkpoint, a run is using it, or it has no such operator.
        ChangelogDiverged: A changelog does not belong to this checkpoint.
        ChangelogError: A changelog cannot be written.
    """
    used = _session_for(checkpoint, session)
    logs: dict[str, Changelog] = {name: changelog_at(each) for name, each in changelogs.items()}
    with ExitStack() as stack:
        for each in logs.values():
            stack.callback(close_positions, each)
        if used is None:
            return flush_checkpoint(checkpoint, logs)
        from keyed.runtimes.spark.checkpoint.spark_recovery import spark_flush

        return spark_flush(used, checkpoint, logs)


def verify(
    source: Changelog | str | os.PathLike[str],
    changelog: Changelog | str | None = None,
    *,
    session: SparkSession | None = None,
) -> list[Verified]:
    """Check state against the hashes in its commits.

    A changelog is checked commit by commit, in the memory of one key group's state. A checkpoint is checked at its
    last commit, and compared with its changelog entry by entry.

    Args:
        source: A changelog, or the folder of a checkpoint, which no local run may be using; a query of Spark may.
        changelog: That of one operator of the checkpoint, which alone is checked and compared; by default all
            operators are checked.
        session: Reads a checkpoint of Spark; by default `keyed.spark_session`.

    Returns:
        A `Verified` for each key group; its ``problem`` is empty if the group is correct.

    Raises:
        CheckpointError: There is no checkpoint, a run is using it, or it has no such operator.
        ChangelogError: The changelog was never written, or cannot be read.
        DefinitionError: ``source`` is neither, or two changelogs are given.
    """
    log: Changelog | None = changelog_at(changelog)
    if isinstance(source, Changelog):
        if log is not None:
            raise DefinitionError("verify(changelog, changelog): give a checkpoint and its changelog, or one changelog")
        return verify_changelog(source)
    operator = None if log is None else header_of(log).operator
    used = _session_for(source, session)
    if used is not None:
        from keyed.runtimes.spark.checkpoint.spark_recovery import spark_verify

        return spark_verify(used, source, operator, log)
    with Checkpoint.open(source) as opened:
        names = operators_of(opened) if operator is None else [operator]
        return [verify_group(meta, rows, log) for name in names for meta, rows in opened.groups(name)]


def operators_of(opened: Checkpoint) -> list[str]:
    """Return the names of the operators in a checkpoint of the local runtime, in order."""
    record = opened.commits.read("run")
    return [] if record is None else decode_position(record, f"checkpoint {opened.path}, record 'run'").operators


def _session_for(checkpoint: str | os.PathLike[str], session: SparkSession | None) -> SparkSession | None:
    """Return a session that reads a checkpoint of Spark, ``None`` for a checkpoint of the local runtime."""
    if not isinstance(checkpoint, str | os.PathLike):
        raise DefinitionError(f"{checkpoint!r:.100} is neither a changelog nor the folder of a checkpoint")
    text = os.fspath(checkpoint)
    # Spark reads all file systems except this machine's.
    if "://" not in text and ":/" not in text:
        path = Path(text)
        if (path / COMMITS_FOLDER).is_dir():
            return None
        if session is None and not (path / "offsets").is_dir():
            raise CheckpointError(f"there is no checkpoint in {text}, of the local runtime or of Spark")
    if session is not None:
        return session
    from keyed.runtimes.spark.session.spark_session import spark_session

    return spark_session("keyed")


@attrs.frozen
class _Target:
    """A key group to be loaded without its function: its states are checked when it runs."""

    index: int
    parallelism: int
    operator: str
    log: GroupLog

    def loader(self, commit: int, states: dict[str, Any]) -> Loader:
        """See `KeyGroup.loader`."""
        operator, parallelism = self.operator, self.parallelism
        meta = GroupMeta(random_id(), operator, self.index, parallelism, commit, random_id(), states=states)
        return Loader(self.log, MemoryStore(), meta)


def restore(
    path: str | os.PathLike[str],
    points: Sequence[RestorePoint],
    parallelism: int | None = None,
    on_progress: Callable[[RestoreProgress], object] = lambda _: None,
) -> Restored:
    """Create a checkpoint of the local runtime from changelogs, without the job's program.

    Args:
        path: Folder for it; missing or empty. After an error it is removed.
        points: The restore point of each operator, in their order in the query.
        parallelism: Number of key groups of each operator; by default unchanged.
        on_progress: Called while changelogs are read.

    Raises:
        CheckpointError: The folder is not empty.
        DefinitionError: The parallelism is out of range.
        ChangelogError: A changelog cannot be restored, two belong to one operator, or the new parallelism is not
            possible for an operator with tables.
        HistoryCompacted: The batch of a restore point was compacted away.
        CorruptionError: A changelog is damaged.
    """
    if parallelism is not None:
        check_parallelism(parallelism)
    if Path(path).is_dir() and any(Path(path).iterdir()):
        raise CheckpointError(f"{os.fspath(path)} is not empty; give a new folder for the checkpoint")
    by_name = {header_of(point.changelog).operator: point for point in points}
    if len(by_name) != len(points):
        raise ChangelogError("two of the changelogs belong to one operator; give one for each operator")
    commits = CommitStore(path)

    def loaded(cut: Cut) -> tuple[Cut, list[Loader]]:
        loaders: list[Loader] = []
        for operator, restoration in cut.operators.items():
            count = parallelism if parallelism is not None else len(restoration.markers)
            tables = [state for state in restoration.markers[0].states.values() if state["schema"]["kind"] == "table"]
            if tables and len(restoration.markers) % count:
                raise ChangelogError(
                    f"operator {operator!r} has tables, and the key columns of its stream are unknown here; give the "
                    "parallelism that it had, or restore_from= in the program"
                )
            spec = OperatorSpec(operator, KeyedProcessFunction(), True, None, "event_time", count)
            logs = (commits.group_log(operator, index) for index in range(count))
            targets = [_Target(index, count, operator, log) for index, log in enumerate(logs)]
            loaders += load(restoration, spec, targets, on_progress, commits.commit)
        return cut, loaders

    try:
        with closing(commits):
            cut, loaders = with_cut(by_name, loaded)
            return commit_restored(commits, [*by_name], [1] * len(by_name), cut, loaders)[1]
    except BaseException:
        # An incomplete checkpoint is useless, and would block the next attempt.
        shutil.rmtree(path, ignore_errors=True)
        raise
