"""Verify: the state in a checkpoint compared with the hash in its commits, and with its changelog."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.schemas import schema_of
from keyed.changelog.model import Changelog
from keyed.engine.group_log import GroupLog
from keyed.engine.meta import GroupMeta
from keyed.errors import OperatorChanged
from keyed.recovery.verification import Verified, verify_group
from keyed.runtimes.spark.checkpoint.folder import spark_path
from keyed.runtimes.spark.checkpoint.state_reader import Selection, committed_metas, for_groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RESULT = schema_of(Verified)


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
    states = {meta.operator: state for state, meta in committed_metas(session, checkpoint).items()}
    if operator is not None and operator not in states:
        raise OperatorChanged(f"the checkpoint {checkpoint} has no operator {operator!r}; it has {sorted(states)}")
    verified = []
    for name in sorted(states) if operator is None else [operator]:
        rows = for_groups(session, checkpoint, [Selection(states[name])], partial(_verify, changelog), _RESULT)
        groups = [Verified(**{field: row[field] for field in _RESULT.names}) for row in rows]
        verified += sorted(groups, key=lambda each: each.group)
    return verified


def _verify(changelog: Changelog | None, meta: GroupMeta, log: GroupLog) -> dict[str, Any]:
    return attrs.asdict(verify_group(meta, log, changelog))
