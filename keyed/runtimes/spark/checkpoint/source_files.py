"""The logs of file sources: which files a query has taken.

Spark's file source keeps the names of all files that it has taken in the checkpoint, in ``sources/<i>``, a file for
each of its batches; each tenth, with the ending ``.compact``, holds all before it as well:

    v1
    {"path": "file:///...", "timestamp": <milliseconds>, "batchId": <number of the file source's batch>}
    ...

A position in a changelog has the number of the source's last batch (``{"logOffset": 11}``). The entries up to it are
kept beside the positions (`keyed.changelog.model.Changelog.keep`), as they come, under the names
``files-<i>-<from>-<to>-<part>``, for the batches ``from`` to ``to``: JSON ``[number of parts, [entry, ...]]``,
compressed by zlib. An entry may be there more than once.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from keyed.changelog.model import Changelog
from keyed.errors import CheckpointError, CorruptionError
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder

__all__ = ["keep_files", "put_files"]

#: Entries in one part.
_PART = 2_000
_OFFSET = re.compile(r'\{"logOffset":\s*(\d+)\}')
_NAME = re.compile(r"files-(\d+)-(\d+)-(\d+)-(\d+)")
_VERSION = "v1"
_Entry = dict[str, Any]
_decode = msgspec.json.Decoder(tuple[int, list[_Entry]]).decode


def keep_files(folder: CheckpointFolder, changelog: Changelog, before: list[str], lines: list[str]) -> None:
    """Keep in a changelog which files the file sources of a query have taken.

    Args:
        folder: The query's checkpoint.
        changelog: The changelog.
        before: The lines of the sources in the last position that the changelog has; empty if it has none.
        lines: Those of the position that it is to have next.

    Raises:
        ChangelogError: It cannot be written.
        CheckpointError: The checkpoint lacks a part of a log.
    """
    for source, line in enumerate(lines):
        last = _file_batch(line)
        known = _file_batch(before[source]) if source < len(before) else None
        first = 0 if known is None else known + 1
        if last is None or last < first:
            continue
        entries = _logged(folder, source, first, last)
        parts = [entries[start : start + _PART] for start in range(0, len(entries), _PART)] or [[]]
        for part, some in enumerate(parts):
            data = zlib.compress(json.dumps([len(parts), some]).encode())
            changelog.keep(f"files-{source}-{first}-{last}-{part}", data)


def put_files(folder: CheckpointFolder, changelog: Changelog, lines: list[str]) -> list[str]:
    """Give a new checkpoint the logs of its file sources, each as one batch that took all files.

    Args:
        folder: The checkpoint.
        changelog: The changelog that has the position.
        lines: The lines of the sources in the position.

    Returns:
        The lines for the new checkpoint.

    Raises:
        CorruptionError: The changelog lacks a part of a log.
        CheckpointError: The checkpoint cannot be written.
    """
    lasts = {source: last for source, line in enumerate(lines) if (last := _file_batch(line)) is not None}
    if not lasts:
        return lines
    kept = _kept(changelog)
    result = [*lines]
    for source, last in lasts.items():
        entries: dict[str, _Entry] = {}
        missing = set(range(last + 1))
        for first, end, some in kept[source]:
            missing -= set(range(first, end + 1))
            entries |= {entry["path"]: entry for entry in some if entry["batchId"] <= last}
        if missing:
            raise CorruptionError(
                f"the changelog has a position at batch {last} of file source {source}, and not the files of its batch "
                f"{min(missing)}",
                where=str(changelog),
            )
        rows = [_VERSION, *(json.dumps(entry | {"batchId": 0}) for entry in entries.values())]
        folder.write(f"sources/{source}/0", "\n".join(rows).encode())
        result[source] = json.dumps({"logOffset": 0})
    return result


def _file_batch(line: str) -> int | None:
    """The number of a file source's last batch, out of its line in the offset log; ``None`` for other sources."""
    match = _OFFSET.fullmatch(line.strip())
    return None if match is None else int(match[1])


def _logged(folder: CheckpointFolder, source: int, first: int, last: int) -> list[_Entry]:
    """The entries of some batches in the log of a file source."""
    names = folder.names(f"sources/{source}")
    wanted = set(range(first, last + 1))
    alone = {batch for batch in wanted if str(batch) in names}
    files = [str(batch) for batch in sorted(alone)]
    if alone != wanted:
        compacted = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
        covering = [batch for batch in compacted if batch >= max(wanted - alone)]
        if not covering:
            raise CheckpointError(
                f"the checkpoint {folder.path} lacks batch {max(wanted - alone)} of file source {source}"
            )
        files.append(f"{covering[0]}.compact")
    found: dict[tuple[int, str], _Entry] = {}
    for name in files:
        content = (folder.read(f"sources/{source}/{name}") or b"").decode().split("\n")
        if content[0] != _VERSION:
            raise CheckpointError(
                f"sources/{source}/{name} of the checkpoint {folder.path} has version {content[0]!r}, not "
                f"{_VERSION!r}: this Spark writes the logs of file sources in another way"
            )
        for entry in map(json.loads, filter(None, content[1:])):
            if entry["batchId"] in wanted:
                found[entry["batchId"], entry["path"]] = entry
    return [found[key] for key in sorted(found)]


def _kept(changelog: Changelog) -> dict[int, list[tuple[int, int, Iterable[_Entry]]]]:
    """What a changelog keeps of the logs: by source, batches from and to with their entries, where it has all parts."""
    parts: dict[tuple[int, int, int], dict[int, list[_Entry]]] = defaultdict(dict)
    expected: dict[tuple[int, int, int], int] = {}
    for name, data in changelog.kept():
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        source, first, last, part = map(int, match.groups())
        try:
            count, entries = _decode(zlib.decompress(data))
        except (ValueError, zlib.error) as error:
            raise CorruptionError(f"{name} is malformed: {error}", where=str(changelog)) from error
        if not all(entry.keys() >= {"path", "batchId"} for entry in entries):
            raise CorruptionError(f"{name} is malformed: an entry has no path or batch", where=str(changelog))
        expected[source, first, last] = count
        parts[source, first, last][part] = entries
    result: dict[int, list[tuple[int, int, Iterable[_Entry]]]] = defaultdict(list)
    for (source, first, last), found in parts.items():
        if len(found) == expected[source, first, last]:
            result[source].append((first, last, [entry for part in sorted(found) for entry in found[part]]))
    return result
