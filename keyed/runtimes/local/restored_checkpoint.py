"""Creation of a checkpoint of the local runtime from changelogs, without the program that will run on it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from keyed.base.ids import random_id
from keyed.engine.group_log import GroupLog
from keyed.engine.loader import Loader
from keyed.engine.meta import GroupMeta
from keyed.errors import ChangelogError, CheckpointError
from keyed.job.functions import KeyedProcessFunction
from keyed.job.operators import OperatorSpec, check_parallelism
from keyed.job.restoring import RestorePoint
from keyed.job.results import Restored, RestoreProgress
from keyed.recovery.cut import Cut, header_of, with_cut
from keyed.recovery.loading import load
from keyed.runtimes.local.local_position import commit_restored
from keyed.stores import MemoryStore
from keyed.stores.commit_store import CommitStore


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
        cut, loaders = with_cut(by_name, loaded)
        _, restored = commit_restored(commits, [*by_name], [1] * len(by_name), cut, loaders)
    except BaseException:
        # An incomplete checkpoint is useless, and would block the next attempt.
        commits.close()
        shutil.rmtree(path, ignore_errors=True)
        raise
    commits.close()
    return restored
