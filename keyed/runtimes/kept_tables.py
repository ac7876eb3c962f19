"""The state tables that a query keeps of its operators: `keyed.run` and `keyed.start` with ``tables=``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from keyed.errors import DefinitionError, KeyedError
from keyed.graph import Stage
from keyed.options import Options
from keyed.tables.state_tables import StateTables, keep_tables, read_kept_tables

#: Seconds from one look at the changelogs to the next.
_EVERY = 0.05


class KeptTables:
    """The tables of a query, followed beside it.

    Args:
        last: The last stage.
        options: With the folder, if there are to be tables.

    Raises:
        DefinitionError: The folder holds tables of another query.
        LocalStoreError: Another program keeps the tables level.
    """

    def __init__(self, last: Stage, options: Options) -> None:
        self._tables: StateTables | None = None
        #: Opens the tables to be read, when this has let go of them; ``None`` if there are none.
        self.read: Callable[[], StateTables] | None = None
        if options.tables is not None:
            types = {stage.name: stage.function for stage in last.chain}
            changelogs = {stage.name: stage.changelog for stage in last.chain if stage.changelog is not None}
            self._tables = keep_tables(options.tables, changelogs, types).start(every=_EVERY, wait=False)
            self.read = partial(read_kept_tables, options.tables, types)

    @property
    def tables(self) -> StateTables:
        """The tables; after `leave` they are only read.

        Raises:
            DefinitionError: There are none.
        """
        if self._tables is None and self.read is not None:
            self._tables = self.read()
        if self._tables is None:
            raise DefinitionError("the query keeps no tables: start it with tables=, the path of a folder for them")
        return self._tables

    def statuses(self) -> dict[str, int]:
        """Return the status of the tables and their failures, for metrics; nothing if there are none."""
        tables = self._tables
        return {} if tables is None else {"tables_status": tables.status.number, "tables_failures": tables.failures}

    def finish(self) -> None:
        """Apply the last batch, when all changelogs have it, and stop following."""
        if self._tables is not None:
            self._tables.stop()
            self._tables.poll()

    def leave(self) -> None:
        """Release the folder, because the query has failed: another one may keep tables there."""
        # A changelog that cannot be read now is read by the next query.
        with suppress(KeyedError):
            self.finish()
        tables, self._tables = self._tables, None
        if tables is not None:
            tables.close()

    def close(self) -> None:
        """Release the folder."""
        if self._tables is not None:
            self._tables.close()


@contextmanager
def kept_tables(last: Stage, options: Options, *, stay: bool) -> Iterator[KeptTables]:
    """Return the tables of a query.

    Args:
        last: The last stage.
        options: Those of the query.
        stay: Whether they stay open when the query was started as it should be.
    """
    kept = KeptTables(last, options)
    try:
        yield kept
    except BaseException:
        kept.close()
        raise
    if not stay:
        kept.close()
