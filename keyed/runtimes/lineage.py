"""The queries that a restored query continues, on any runtime: it may write to the folders of their sinks."""

from __future__ import annotations

import attrs

from keyed.changelog.model import batch_id
from keyed.codec.frames import RecordFormat
from keyed.recovery.cut import Cut


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
