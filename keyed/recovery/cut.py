"""The *cut* of a restore: one batch that all key groups of all operators have committed; and the origin it leaves.

The origin of a changelog is the one from which its job was restored, so that followers can continue. A changelog keeps,
under the name ``origin``, the JSON array ``[log id, sequence]``: after batch ``sequence`` of that changelog the history
continues in this one. Under the name ``ancestors`` it keeps the JSON array of the log ids of that changelog, of its own
origin, and so on, the newest first.

A cut has the queries that a restored query continues, on any runtime: it may write to the folders of their sinks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import attrs

from keyed.base.arguments import instant_ms
from keyed.changelog.model import Changelog, ChangelogReader, Commit, LogHeader, all_positions, batch_id, sequence_of
from keyed.codec.frames import RecordFormat
from keyed.errors import ChangelogError, CorruptionError, DefinitionError, HistoryCompacted, OperatorChanged
from keyed.job.restoring import RestorePoint

#: Reads of changelogs whose compaction by a running job overtakes them.
TRIES = 10
_T = TypeVar("_T")


@attrs.frozen
class Restoration:
    """The restore of one operator. Data only: it is sent to the workers.

    Attributes:
        point: The requested restore point.
        header: Identity of the changelog.
        markers: The marker of the cut in each old key group.
    """

    point: RestorePoint
    header: LogHeader
    markers: tuple[Commit, ...]

    @property
    def sequence(self) -> int:
        """Number of the commit after which the state is restored."""
        return self.markers[0].sequence


@attrs.frozen
class Cut:
    """The point at which a restored query resumes.

    Attributes:
        sequence: Number of the commit after which the state is restored.
        position: Position of the earlier query's sources after that batch; ``None`` if it kept none.
        operators: The restore of each operator, by name.
    """

    sequence: int
    position: bytes | None
    operators: dict[str, Restoration]

    @property
    def is_past(self) -> bool:
        """True if a past state was requested, not the newest."""
        return any(restoration.point.as_of is not None for restoration in self.operators.values())


def with_cut(points: Mapping[str, RestorePoint], take: Callable[[Cut], _T]) -> _T:
    """Read the state at the cut of a query; at a newer one if the compaction of a running job removed the cut.

    Args:
        points: The restore point of each operator that is restored, by name; there is one at least.
        take: Reads the changelogs at a cut, from the beginning each time that it is called.

    Raises:
        HistoryCompacted: The batch or time that ``as_of=`` names is older than what compaction left.
        ChangelogError: As in `cut_of`.
    """
    for _ in range(TRIES):
        try:
            return take(cut_of(points))
        except HistoryCompacted:
            if any(point.as_of is not None for point in points.values()):
                raise
    return take(cut_of(points))


def cut_of(points: Mapping[str, RestorePoint]) -> Cut:
    """Return the cut of a query.

    Args:
        points: The restore point of each operator that is restored, by name; there is one at least.

    Raises:
        ChangelogError: A changelog was not written, or the batch is not there yet.
        HistoryCompacted: The batch or time was compacted away.
        OperatorChanged: A changelog is another operator's.
        CorruptionError: A position was kept before the batch, and not after it.
        DefinitionError: The operators are to be restored to different batches.
    """
    first, *others = points.values()
    if any(point.as_of != first.as_of for point in others):
        raise DefinitionError("the operators of a query have different as_of= in restore_from; give all of them one")
    headers = {}
    for operator, point in points.items():
        headers[operator] = header = header_of(point.changelog)
        if header.operator != operator:
            raise OperatorChanged(
                f"the changelog {header.log_id} belongs to operator {header.operator!r}, the query has {operator!r}; "
                f"give name={header.operator!r}, or another changelog"
            )
    sequence = min(_newest(point.changelog, headers[operator]) for operator, point in points.items())
    if isinstance(first.as_of, datetime):
        sequence = _batch_at(first.changelog, sequence, first.as_of)
    elif first.as_of is not None:
        if sequence_of(first.as_of) > sequence:
            raise ChangelogError(
                f"as_of={first.as_of}: the newest batch that all key groups have is {batch_id(sequence)}"
            )
        sequence = sequence_of(first.as_of)
    operators = {}
    for operator, point in points.items():
        groups = range(headers[operator].parallelism)
        markers = tuple(_marker_at(point.changelog.reader(group), sequence) for group in groups)
        operators[operator] = Restoration(point, headers[operator], markers)
    return Cut(sequence, _position_at(points, sequence), operators)


def _position_at(points: Mapping[str, RestorePoint], sequence: int) -> bytes | None:
    """Return the position after a commit; ``None`` if the job kept none.

    Raises:
        CorruptionError: It is lost.
    """
    for point in points.values():
        position = next(all_positions(point.changelog, sequence - 1), None)
        if position is not None and position[0] == sequence:
            return position[1]
    for point in points.values():
        before = max((number for number, _ in all_positions(point.changelog) if number < sequence), default=None)
        if before is not None:
            raise CorruptionError(
                f"there is a position of the sources after batch {batch_id(before)} and none after batch "
                f"{batch_id(sequence)}, which is to be restored: the sources would be read again over its state; "
                f"restore the file of the position, or give as_of={batch_id(before)}",
                where=str(point.changelog),
            )
    return None


def header_of(changelog: Changelog) -> LogHeader:
    """Return the identity of a changelog.

    Raises:
        ChangelogError: It was never written.
    """
    header = changelog.header()
    if header is None:
        raise ChangelogError(f"{changelog} does not exist yet: nothing was written to it")
    return header


def newest_sequence(readers: Iterable[ChangelogReader], known: int = 0) -> int:
    """Return the newest sequence that all key groups have, 0 if one has none.

    Args:
        readers: Readers of all key groups.
        known: A sequence that all of them have: if one ends with it, the others need not be read.
    """
    newest = []
    for reader in readers:
        last = reader.last()
        newest.append(0 if last is None else last.sequence)
        if newest[-1] == known:
            break
    return min(newest)


def _newest(changelog: Changelog, header: LogHeader) -> int:
    """Return the newest sequence that all key groups have.

    Raises:
        ChangelogError: A group has none.
    """
    newest = newest_sequence(changelog.reader(group) for group in range(header.parallelism))
    if not newest:
        raise ChangelogError(
            f"the changelog {header.log_id} of operator {header.operator!r} does not have a commit of each key group "
            "yet, so there is nothing to restore; start without restore_from="
        )
    return newest


def _marker_at(reader: ChangelogReader, sequence: int) -> Commit:
    """Return the marker of a commit that exists or was compacted away."""
    last = reader.last()
    if last is not None and last.sequence == sequence:
        return last
    try:
        marker = next(reader.commits(sequence - 1, sequence), None)
    except HistoryCompacted:
        # It may be the snapshot itself that compaction left.
        marker = next(reader.commits(0, sequence), None)
    if marker is None or marker[0].sequence != sequence:
        raise HistoryCompacted(f"the changelog no longer has batch {batch_id(sequence)}; it goes back to a later one")
    return marker[0]


def _batch_at(changelog: Changelog, newest: int, time: datetime) -> int:
    """Return the newest commit whose processing time is not after ``time``: the same in all key groups of a query."""
    limit = instant_ms(time)
    batch = None
    for commit, _ in changelog.reader(0).commits(0, newest):
        if commit.processing_time > limit:
            break
        batch = commit.sequence
    if batch is None:
        raise HistoryCompacted(f"as_of={time.isoformat()}: the changelog has nothing that is so old")
    return batch


_NAME, _ANCESTORS = "origin", "ancestors"
#: Ancestors that are kept.
_GENERATIONS = 1_000


def keep_origin(changelog: Changelog, restoration: Restoration) -> None:
    """Store the origin of a restored job in its new changelog, unless that has commits already."""
    header = header_of(changelog)
    if any(changelog.reader(group).last() is not None for group in range(header.parallelism)):
        return
    # An earlier attempt may have begun with another batch.
    changelog.forget([_NAME, _ANCESTORS])
    log_id = restoration.header.log_id
    ancestors = [log_id, *ancestors_of(restoration.point.changelog)][:_GENERATIONS]
    changelog.keep(_ANCESTORS, json.dumps(ancestors).encode())
    changelog.keep(_NAME, json.dumps([log_id, restoration.sequence]).encode())


def origin_of(changelog: Changelog) -> tuple[str, int] | None:
    """Return the changelog from which the job was restored and its last valid batch; ``None`` if it was not restored.

    Raises:
        CorruptionError: The record is damaged.
    """

    def origin(data: Any) -> tuple[str, int]:
        log_id, sequence = data
        return str(log_id), int(sequence)

    return _read(changelog, _NAME, origin)


def ancestors_of(changelog: Changelog) -> list[str]:
    """Return the log ids of the changelogs from which the job was restored in turn, the newest first.

    Raises:
        CorruptionError: The record is damaged.
    """
    return _read(changelog, _ANCESTORS, lambda data: [str(log_id) for log_id in data]) or []


def _read(changelog: Changelog, name: str, convert: Callable[[Any], _T]) -> _T | None:
    """Return the converted JSON under a name; ``None`` if there is none."""
    data = next((data for kept, data in changelog.kept() if kept == name), None)
    try:
        return None if data is None else convert(json.loads(data))
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"the record {name!r} is malformed: {error}", where=str(changelog)) from error


@attrs.frozen
class _Queries:
    """Common fields of the positions of all runtimes."""

    queries: list[str] = attrs.field(factory=list)


#: Formats by the kind of a position: `LocalPosition` and `SparkPosition`.
_FORMATS: dict[bytes, RecordFormat[_Queries]] = {kind: RecordFormat(kind, 1, _Queries) for kind in (b"KRUN", b"KSPK")}


def lineage(cut: Cut) -> list[str]:
    """Return the ids of the queries that a query restored at a cut continues.

    A query restored to a past state continues none: it is a branch beside the query that continued from there.

    Raises:
        CorruptionError: The position of the cut is damaged.
    """
    position = cut.position
    if cut.is_past or position is None or position[:4] not in _FORMATS:
        return []
    return _FORMATS[position[:4]].decode(position, f"position of batch {batch_id(cut.sequence)} in a changelog").queries
