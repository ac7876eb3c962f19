"""A standby: a warm copy of a running job's state, kept level with its changelog and ready to take over.

One local store on disk per key group, ``<folder>/<operator>/<group>``, follows the changelog to the newest commit that
all groups have, so that the stores always are at one batch together. A job that is restored from the standby reads from
the changelog only what the stores lack (as Kafka Streams' standby replicas).
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import attrs

from keyed.changelog.model import Changelog, ChangelogReader
from keyed.errors import ChangelogError, HistoryCompacted, LocalStoreError
from keyed.recovery.cut import newest_sequence
from keyed.recovery.follow import follow
from keyed.restoring import RestorePoint
from keyed.stores import RocksStore, open_rocks_store

_log = logging.getLogger(__name__)


@attrs.frozen
class Lag:
    """How far a standby is behind its changelog, which itself ends one batch before the running job.

    Attributes:
        records: Records of the changelog that it has not applied, over all key groups.
        seconds: Processing time from the batch that it has to the newest one.
    """

    records: int
    seconds: float


class Standby:
    """A copy of the state that a changelog holds.

    Args:
        changelog: The changelog of the running job's operator.
        path: Folder for the copy. What it holds from earlier is gone on from.

    Raises:
        ChangelogError: The changelog was never written.
        LocalStoreError: Another standby is using the folder.
    """

    def __init__(self, changelog: Changelog, path: str | os.PathLike[str]) -> None:
        self.changelog = changelog
        self.path = os.fspath(path)
        header = changelog.header()
        if header is None:
            raise ChangelogError(f"{changelog} is no changelog yet: start the job that writes it first")
        self._header = header
        self._stores: list[RocksStore] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        with ExitStack() as stack:
            for group in range(header.parallelism):
                folder = Path(path) / header.operator / str(group)
                store = open_rocks_store(folder)
                stack.callback(store.close)
                if store.path != folder:
                    raise LocalStoreError(f"{folder} is in use by another standby; give another folder")
                self._stores.append(store)
            self._closing = stack.pop_all()

    def catch_up(self) -> int:
        """Apply what the changelog has and the copy lacks.

        Returns:
            How many records were applied.

        Raises:
            CorruptionError: The changelog is damaged.
        """
        newest = newest_sequence(self.changelog, self._header)
        if newest is None:
            return 0
        readers = (self.changelog.reader(group) for group in range(self._header.parallelism))
        log_id = self._header.log_id
        return sum(follow(*pair, log_id, newest) for pair in zip(self._stores, readers, strict=True))

    def lag(self) -> Lag:
        """How far the copy is behind the changelog.

        Raises:
            CorruptionError: The changelog is damaged.
        """
        records, milliseconds = 0, 0
        for group, store in enumerate(self._stores):
            position = store.position()
            at = position[1] if position is not None and position[0] == self._header.log_id else 0
            behind = _behind(self.changelog.reader(group), at)
            records += behind[0]
            milliseconds = max(milliseconds, behind[1])
        return Lag(records, milliseconds / 1000)

    def start(self, every: float = 1.0) -> Self:
        """Follow the changelog in a thread of its own. While it cannot be read the log says so.

        Args:
            every: Seconds from one look at the changelog to the next.
        """

        def work() -> None:
            try:
                while not self._stop.wait(every):
                    try:
                        self.catch_up()
                    except ChangelogError as error:
                        # A broker or a disk that is away comes back. If not, `take_over` fails with it.
                        _log.warning("the standby of operator %s tries again: %s", self._header.operator, error)
            except BaseException as error:  # noqa: BLE001 - given to whoever stops it
                _log.exception("the standby of operator %s has stopped", self._header.operator)
                self._error = error

        self._thread = threading.Thread(target=work, name="keyed-standby", daemon=True)
        self._thread.start()
        return self

    def take_over(self) -> RestorePoint:
        """End following, apply what the changelog has, and give what a new query is restored from.

        Stop the job first, or cut it off: what it commits from now on is not in what the new query takes up.

        Raises:
            CorruptionError: The changelog is damaged.
        """
        self.stop()
        self.catch_up()
        self.close()
        return RestorePoint(self.changelog, standby=self.path)

    def stop(self) -> None:
        """End the thread that `start` began.

        Raises:
            KeyedError: What it failed with.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End following and close the stores. Closing again does nothing."""
        try:
            self.stop()
        finally:
            self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _behind(reader: ChangelogReader, at: int) -> tuple[int, int]:
    """The records after a sequence, and the milliseconds of processing time from it to the newest commit."""
    last = reader.last()
    if last is None or last.sequence <= at:
        return 0, 0
    try:
        markers = [commit for commit, _ in reader.commits(max(at - 1, 0), last.sequence)]
    except HistoryCompacted:
        markers = [commit for commit, _ in reader.commits(0, last.sequence)]
    missing = sum(commit.records for commit in markers if commit.sequence > at)
    return missing, last.processing_time - markers[0].processing_time
