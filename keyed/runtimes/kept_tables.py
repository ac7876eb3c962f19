"""The state tables that a query keeps for its operators: `keyed.run` and `keyed.start` with ``tables=``.

The result of a run reads them, and has the values that its sinks have collected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from keyed.arrow.write import table_of_values
from keyed.base.background import Status
from keyed.base.private_files import folder_path
from keyed.changelog.directory import DirectoryChangelog
from keyed.errors import ChangelogDiverged, DefinitionError, KeyedError
from keyed.job.graph import BoundOutput, Stage
from keyed.job.options import Options
from keyed.job.results import Restored, RunResult
from keyed.tables.state_tables import StateTables, discard_unwritten, keep_tables, read_kept_tables

#: Seconds between two polls of the changelogs.
_EVERY = 0.05


class KeptTables:
    """The tables of a query, followed while it runs, in a context that releases their folder.

    If the query is refused, the stores that no batch has reached are deleted: if it was refused for its operators, the
    next one does not have them.

    Args:
        last: The last stage.
        options: The options of the query, with the folder if tables are wanted.

    Raises:
        DefinitionError: The folder holds tables of another query.
        LocalStoreError: Another program writes the tables.
    """

    def __init__(self, last: Stage, options: Options) -> None:
        self._tables: StateTables | None = None
        #: The tables that were followed, also after `leave`.
        self._followed: StateTables | None = None
        #: Opens the tables for reading, after `leave` has released them; ``None`` if there are none.
        self.read: Callable[[], StateTables] | None = None
        if options.tables is not None:
            if options.checkpoint is None:
                _check_unwritten(last, folder_path(options.tables, "tables"))
            types = {stage.name: stage.function for stage in last.chain}
            changelogs = {stage.name: stage.changelog for stage in last.chain if stage.changelog is not None}
            self._tables = keep_tables(options.tables, changelogs, types).start(every=_EVERY, wait=False)
            self._followed = self._tables
            self.read = partial(read_kept_tables, options.tables, types)

    @property
    def tables(self) -> StateTables:
        """The tables; after `leave` they are read-only.

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
        tables = self._followed
        return {} if tables is None else {"tables_status": tables.status.number, "tables_failures": tables.failures}

    def finish(self) -> None:
        """Apply the last batch once all changelogs have it, and stop following; not if the program has closed them."""
        if self._tables is not None and self._tables.status is not Status.CLOSED:
            self._tables.stop()
            self._tables.poll()

    def leave(self) -> None:
        """Release the folder after a failure of the query, so that another query can keep tables there."""
        try:
            # The next query reads a changelog that cannot be read now.
            with suppress(KeyedError, OSError):
                self.finish()
        finally:
            tables, self._tables = self._tables, None
            if tables is not None:
                tables.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._tables is not None and kind is None:
            self._tables.close()
        elif self._tables is not None:
            discard_unwritten(self._tables)


def _check_unwritten(last: Stage, folder: str) -> None:
    """Check that a folder for the tables of a query without a checkpoint has no state of an earlier run.

    Raises:
        ChangelogDiverged: It has: the query would start from the beginning, and contradict it.
    """
    root = Path(folder).absolute()
    for stage in last.chain:
        changelog = stage.changelog
        if isinstance(changelog, DirectoryChangelog) and root in Path(changelog.path).absolute().parents:
            commit = None if changelog.header() is None else changelog.reader(0).last()
            if commit is not None:
                raise ChangelogDiverged(
                    f"tables={folder!r} holds the state of an earlier run, up to batch {commit.batch}, and a run "
                    "without checkpoint= starts from the beginning: so does a notebook's cell that runs again. Delete "
                    f"the folder first, with shutil.rmtree({folder!r}, ignore_errors=True) in the same cell; or, to "
                    "continue, begin once with a new folder and a checkpoint=, and give both to every run"
                )


def result_of(
    outputs: Sequence[BoundOutput],
    batches: range,
    metrics: dict[str, dict[str, int]],
    restored: Restored | None,
    read_tables: Callable[[], StateTables] | None = None,
) -> RunResult:
    """Return the result of a run.

    Args:
        outputs: Its outputs. Several collected ones have no common columns.
        batches: Ids of the batches that it has committed.
        metrics: Counters at its end.
        restored: The restored batch.
        read_tables: Opens its state tables, if it has kept any.
    """
    schemas, values = [], []
    for bound in outputs:
        if (collected := bound.sink.collected) is not None:
            schemas.append(bound.output.schema)
            values += [value for batch in batches for value in collected.get(batch, ())]
    table = partial(table_of_values, schema=schemas[0] if len(schemas) == 1 else None)
    return RunResult(values, len(batches), metrics, restored, read_tables, table)
