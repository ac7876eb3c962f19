"""The origin of a changelog: the one from which its job was restored, so that followers can continue.

A changelog keeps, under the name ``origin``, the JSON array ``[log id, sequence]``: after batch ``sequence`` of that
changelog the history continues in this one. Under the name ``ancestors`` it keeps the JSON array of the log ids of that
changelog, of its own origin, and so on, the newest first.
"""

from __future__ import annotations

import json

from keyed.changelog.model import Changelog
from keyed.errors import CorruptionError
from keyed.recovery.cut import Restoration, header_of

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
    for name, data in changelog.kept():
        if name == _NAME:
            try:
                log_id, sequence = json.loads(data)
                return str(log_id), int(sequence)
            except (ValueError, TypeError) as error:
                raise CorruptionError(f"the record {_NAME!r} is malformed: {error}", where=str(changelog)) from error
    return None


def ancestors_of(changelog: Changelog) -> list[str]:
    """Return the log ids of the changelogs from which the job was restored in turn, the newest first.

    Raises:
        CorruptionError: The record is damaged.
    """
    for name, data in changelog.kept():
        if name == _ANCESTORS:
            try:
                return [str(log_id) for log_id in json.loads(data)]
            except (ValueError, TypeError) as error:
                where = str(changelog)
                raise CorruptionError(f"the record {_ANCESTORS!r} is malformed: {error}", where=where) from error
    return []
