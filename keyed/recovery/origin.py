"""The origin of a changelog: the one from which its job was restored, so that followers can continue.

A changelog keeps, under the name ``origin``, the JSON array ``[log id, sequence]``: after batch ``sequence`` of that
changelog the history continues in this one. Under the name ``ancestors`` it keeps the JSON array of the log ids of that
changelog, of its own origin, and so on, the newest first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from keyed.changelog.model import Changelog
from keyed.errors import CorruptionError
from keyed.recovery.cut import Restoration, header_of

_T = TypeVar("_T")
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
