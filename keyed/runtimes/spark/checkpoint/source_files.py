"""The logs of file sources, which list the files that a query has read.

Spark's file source keeps the names of all files that it has read in the checkpoint, in ``sources/<i>``, one log file
for each of its batches. Every tenth log file, with the ending ``.compact``, also holds the content of all earlier ones:

    v1
    {"path": "file:///...", "timestamp": <milliseconds>, "batchId": <number of the file source's batch>}
    ...

A position in a changelog has the number of the source's last batch (``{"logOffset": 11}``). The entries up to it are
stored beside the positions (`keyed.changelog.model.Changelog.keep`) under the names ``files-<i>-<from>-<to>-<part>``,
for the batches ``from`` to ``to``: JSON ``[number of parts, [entry, ...]]``, compressed by zlib. Eight of about the
same size are folded into one, so their number stays small. An entry may occur more than once.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections import defaultdict
from itertools import takewhile
from typing import Any

import msgspec

from keyed.changelog.model import Changelog
from keyed.errors import CheckpointError, CorruptionError
from keyed.runtimes.spark.checkpoint.folder import CheckpointFolder

#: Entries in one part.
_PART = 2_000
#: Number of records of about the same size that are folded into one.
_FOLDED = 8
_OFFSET = re.compile(r'\{"logOffset":\s*(\d+)\}')
_NAME = re.compile(r"files-(\d+)-(\d+)-(\d+)-(\d+)")
_VERSION = "v1"
_Entry = dict[str, Any]
_Range = tuple[int, int]
_decode = msgspec.json.Decoder(tuple[int, list[_Entry]]).decode


class KeptFiles:
    """Stores the logs of a query's file sources in a changelog.

    Args:
        folder: The query's checkpoint.
        changelog: The changelog.

    Raises:
        CorruptionError: The stored data is damaged.
    """

    def __init__(self, folder: CheckpointFolder, changelog: Changelog) -> None:
        self._folder = folder
        self._changelog = changelog
        self._names: dict[int, dict[_Range, list[str]]] = defaultdict(dict)
        for source, ranges in _stored_entries(changelog).items():
            for range_, entries in ranges.items():
                self._names[source][range_] = _names(source, range_, len(_parts(entries)))

    def keep(self, lines: list[str]) -> None:
        """Store the entries up to a position.

        Args:
            lines: The lines of the sources in the position.

        Raises:
            ChangelogError: It cannot be written.
            CheckpointError: The checkpoint lacks a part of a log.
        """
        for source, line in enumerate(lines):
            last = file_batch(line)
            first = 0
            for range_ in sorted(self._names[source]):
                if range_[0] <= first:
                    first = max(first, range_[1] + 1)
            if last is None or last < first:
                continue
            self._keep(source, (first, last))
            while len(some := self._newest(source)) >= _FOLDED:
                self._keep(source, (some[-1][0], last))
                self._changelog.forget([name for range_ in some for name in self._names[source].pop(range_)])

    def _newest(self, source: int) -> list[_Range]:
        """Return the newest record, and the preceding ones that are not larger."""
        ranges = sorted(self._names[source], reverse=True)
        return list(takewhile(lambda range_: _tier(range_) <= _tier(ranges[0]), ranges))

    def _keep(self, source: int, range_: _Range) -> None:
        """Store the entries of some batches."""
        parts = _parts(logged(self._folder, source, *range_))
        names = _names(source, range_, len(parts))
        for name, part in zip(names, parts, strict=True):
            self._changelog.keep(name, zlib.compress(json.dumps([len(parts), part]).encode()))
        self._names[source][range_] = names


def put_files(folder: CheckpointFolder, changelog: Changelog, lines: list[str]) -> list[str]:
    """Write the logs of file sources to a new checkpoint, each as one batch with all files.

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
    lasts = {source: last for source, line in enumerate(lines) if (last := file_batch(line)) is not None}
    if not lasts:
        return lines
    kept = _stored_entries(changelog)
    result = [*lines]
    for source, last in lasts.items():
        entries: dict[str, _Entry] = {}
        missing = set(range(last + 1))
        for (first, end), some in kept[source].items():
            missing -= set(range(first, end + 1))
            entries |= {entry["path"]: entry for entry in some if entry["batchId"] <= last}
        if missing:
            raise CorruptionError(
                f"the changelog has a position at batch {last} of file source {source}, and lacks the files of its "
                f"batch {min(missing)}",
                where=str(changelog),
            )
        rows = [_VERSION, *(json.dumps(entry | {"batchId": 0}) for entry in entries.values())]
        folder.write(f"sources/{source}/0", "\n".join(rows).encode())
        result[source] = json.dumps({"logOffset": 0})
    return result


def file_batch(line: str) -> int | None:
    """Return the number of a file source's last batch, from its line in the offset log; ``None`` for other sources."""
    match = _OFFSET.fullmatch(line.strip())
    return None if match is None else int(match[1])


def logged(folder: CheckpointFolder, source: int, first: int, last: int) -> list[_Entry]:
    """Return the entries of some batches in the log of a file source."""
    names = folder.names(f"sources/{source}")
    batches = set(range(first, last + 1))
    alone = {batch for batch in batches if str(batch) in names}
    files = [str(batch) for batch in sorted(alone)]
    if alone != batches:
        compacted = sorted(int(name.removesuffix(".compact")) for name in names if name.endswith(".compact"))
        covering = [batch for batch in compacted if batch >= max(batches - alone)]
        if not covering:
            raise CheckpointError(
                f"the checkpoint {folder.path} lacks batch {max(batches - alone)} of file source {source}"
            )
        files.append(f"{covering[0]}.compact")
    entries: dict[tuple[int, str], _Entry] = {}
    for name in files:
        content = (folder.read(f"sources/{source}/{name}") or b"").decode().split("\n")
        if content[0] != _VERSION:
            raise CheckpointError(
                f"sources/{source}/{name} of the checkpoint {folder.path} has version {content[0]!r}, not "
                f"{_VERSION!r}: this version of Spark has another format of the logs of file sources"
            )
        for entry in map(json.loads, filter(None, content[1:])):
            if entry["batchId"] in batches:
                entries[entry["batchId"], entry["path"]] = entry
    return [entries[key] for key in sorted(entries)]


def _stored_entries(changelog: Changelog) -> dict[int, dict[_Range, list[_Entry]]]:
    """Return the stored entries of a changelog by source and batches, of records with all parts."""
    parts: dict[tuple[int, _Range], dict[int, list[_Entry]]] = defaultdict(dict)
    expected: dict[tuple[int, _Range], int] = {}
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
        expected[source, (first, last)] = count
        parts[source, (first, last)][part] = entries
    result: dict[int, dict[_Range, list[_Entry]]] = defaultdict(dict)
    for (source, range_), lines in parts.items():
        if len(lines) == expected[source, range_]:
            result[source][range_] = [entry for part in sorted(lines) for entry in lines[part]]
    return result


def _parts(entries: list[_Entry]) -> list[list[_Entry]]:
    return [entries[start : start + _PART] for start in range(0, len(entries), _PART)] or [[]]


def _names(source: int, range_: _Range, parts: int) -> list[str]:
    return [f"files-{source}-{range_[0]}-{range_[1]}-{part}" for part in range(parts)]


def _tier(range_: _Range) -> int:
    """Return the size class of a record: the logarithm of its number of batches, to the base of `_FOLDED`."""
    return int(math.log(range_[1] - range_[0] + 1, _FOLDED) + 1e-9)
