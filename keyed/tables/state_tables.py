"""The tables of a job, by name: followed in this program, or read from the folder of another program."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from copy import copy
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from keyed.base.arguments import Duration, html_table, milliseconds_of, without_credentials
from keyed.base.background import Background, Following
from keyed.base.closing import Closeable, closing_on_error
from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.model import Changelog, batch_id
from keyed.changelog.objects.object_changelog import changelog_at
from keyed.codec.state_schema import shown_tables
from keyed.errors import DefinitionError, KeyedError, LocalStoreError, StateAccessError, TableNotFound
from keyed.job.functions import Function, VectorizedFunction, declared_states
from keyed.job.restoring import RestorePoint
from keyed.recovery.cut import header_of
from keyed.stores.database import delete_folder
from keyed.stores.growth import GrowthBound
from keyed.stores.version_store import Extent
from keyed.tables.follower import FolderReader, Follower, Lag, shown_groups
from keyed.tables.operator_view import AsOf, Operator, Position, View, Viewing
from keyed.tables.state_table import StateTable, TimersTable
from keyed.tables.subscription import Feed

if TYPE_CHECKING:
    import pyarrow as pa

_HOUR_MS = 3_600_000
#: Seconds between two polls while `wait_for` waits and no thread follows the changelogs.
_LOOK_AGAIN = 0.05
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
Types = Function | Mapping[str, Any] | None


class _Tables(Mapping[str, StateTable], Closeable):
    """Tables by name, over one or several operators."""

    is_share = False

    def __init__(self, operators: dict[str, Operator]) -> None:
        self._operators = operators

    @property
    def share(self) -> Self:
        """The same tables, which answer scans, SQL and other calls about all keys from their own key groups.

        `Position.groups` of an answer has the groups.
        """
        share = copy(self)
        share.is_share = True
        return share

    @abstractmethod
    def _viewing(self, operator: Operator) -> Viewing:
        """Return the function that opens an operator's state for an answer."""

    def _feed(self, operator: Operator) -> Feed | None:
        """Return the source of changes; ``None`` if there are none."""
        return None

    @abstractmethod
    def _all(self) -> AbstractContextManager[Snapshot]:
        """Return all tables as of one batch."""

    def _shown(self) -> Iterator[tuple[Operator, str]]:
        """Yield the operator and state of each table."""
        for operator in self._operators.values():
            operator.source.pinned.check_open()
            store = operator.source.pinned.store
            if store.extent is not None:
                for table in shown_tables(store.batch(store.extent.newest).states, operator.name):
                    yield operator, table

    def _names(self) -> dict[str, tuple[Operator, str]]:
        """Return the operator and state of each table. A name of several operators becomes ``operator.state``."""
        tables = list(self._shown())
        return {
            name if count == 1 else f"{operator.name}.{name}": (operator, name)
            for name, count in Counter(name for _, name in tables).items()
            for operator, each in tables
            if each == name
        }

    def __getitem__(self, name: str) -> StateTable:
        names = self._names()
        if name not in names:
            available = ", ".join(sorted(names)) or "none, because no batch was applied yet (see wait_for)"
            raise TableNotFound(f"there is no table {name!r}; the tables are: {available}")
        operator, state = names[name]
        return StateTable(operator.name, state, self._viewing(operator), self._feed(operator), is_share=self.is_share)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def sql(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> pa.Table:
        """Run a SQL query over the tables, all at one batch. Needs DuckDB: ``keyed-streams[sql]``.

        Columns are those of `StateTable.dataset`. The query cannot reach files, the network or this program.

        Args:
            query: One statement, in DuckDB's dialect.
            parameters: Values for ``?`` in it, or by name for ``$name``.

        Raises:
            DefinitionError: The query is invalid, or names an unknown table or column.
            QueryFailed: It failed while it ran.
        """
        from keyed.tables.sql import run_sql

        with self._all() as tables:
            return run_sql(tables, query, parameters)

    @property
    def timers(self) -> TimersTable:
        """The pending timers.

        Raises:
            DefinitionError: There are several operators: use `timers_of`.
        """
        if len(self._operators) > 1:
            first = next(iter(self._operators))
            raise DefinitionError(
                f"timers: there are several operators; use timers_of({first!r}), over HTTP ?operator={first}"
            )
        return self.timers_of(next(iter(self._operators)))

    def timers_of(self, operator: str) -> TimersTable:
        """Return the pending timers of an operator."""
        if operator not in self._operators:
            raise TableNotFound(f"there is no operator {operator!r}; there are: {', '.join(self._operators)}")
        return TimersTable(operator, self._viewing(self._operators[operator]), is_share=self.is_share)

    @property
    def positions(self) -> dict[str, Position]:
        """The state from which answers are taken, by operator."""
        positions = {}
        for name, operator in self._operators.items():
            with self._viewing(operator)(None) as view:
                positions[name] = view.position
        return positions


class Snapshot(_Tables):
    """The tables at one batch, while the snapshot is open. `StateTables.snapshot` opens one."""

    def __init__(self, operators: dict[str, Operator], commits: Mapping[str, int]) -> None:
        super().__init__(operators)
        with ExitStack() as stack:
            self._views = {name: stack.enter_context(operators[name].view(commit)) for name, commit in commits.items()}
            self._context = stack.pop_all()
        self.batch = next(iter(self._views.values())).position.batch

    def _viewing(self, operator: Operator) -> Viewing:
        def view(as_of: AsOf) -> AbstractContextManager[View]:
            if as_of not in (None, self.batch):
                raise DefinitionError(
                    f"as_of={as_of!r}: the snapshot has batch {self.batch}; read other batches from the tables"
                )
            if not self._views:
                raise StateAccessError(f"the snapshot of batch {self.batch} is closed; use it within its with block")
            return nullcontext(self._views[operator.name])

        return view

    def close(self) -> None:
        """Release the state."""
        self._views.clear()
        self._context.close()

    def _all(self) -> AbstractContextManager[Snapshot]:
        return nullcontext(self)

    def __repr__(self) -> str:
        return f"<Snapshot of batch {self.batch}: {', '.join(self) or 'no tables'}>"


class StateTables(_Tables, Following):
    """The tables of a job's operators, a mapping from names to `StateTable`. `open_tables` opens them.

    Answers are of batches that all key groups of all operators have committed. When following ends with an error,
    every later read raises it. `poll`, `lag` and `take_over` raise `ChangelogError` for a changelog that cannot be
    read; the latter two `DefinitionError` if another program writes the tables.

    Attributes:
        path: The folder.
    """

    def __init__(
        self, path: Path, operators: dict[str, Operator], context: ExitStack, types: Mapping[str, Any]
    ) -> None:
        super().__init__(operators)
        self.path = path
        self._context = context
        self._changed = threading.Condition()
        self._every = 1.0
        # Small, because what a server keeps between requests is small: clients come and go for weeks.
        self._growth = GrowthBound(least=4 << 20, share=32)
        # `share` is a copy; the thread has this one.
        self._origin = self
        self._work = Background(f"tables of {', '.join(operators)}", self._step, is_transient=self._is_transient)
        for operator in operators.values():
            operator.source.pinned.check = self._work.check
            operator.source.pinned.is_stopping = lambda: self._work.is_stopping
        self._types = types

    def _viewing(self, operator: Operator) -> Viewing:
        return lambda as_of: operator.view(self._commit(operator, as_of))

    def _all(self) -> AbstractContextManager[Snapshot]:
        return self.snapshot()

    def _commit(self, operator: Operator, as_of: AsOf) -> int:
        """Return the commit of an operator that an answer reads."""
        if as_of is None:
            return operator.extent.newest if len(self._operators) == 1 else self._level()[operator.name]
        if isinstance(as_of, datetime):
            if as_of.tzinfo is None:
                raise DefinitionError(f"as_of={as_of!r} has no time zone; give an aware datetime")
            operators = self._operators.values()
            as_of = min(batch_id(each.extent.batch_of(each.commit_at(as_of))) for each in operators)
        if type(as_of) is not int:
            raise DefinitionError(f"as_of={as_of!r}: give the id of a batch or an aware datetime")
        return operator.commit_of(as_of)

    def _level(self) -> dict[str, int]:
        """Return the newest commits that belong to one batch, by operator."""
        operators = self._operators
        batch = batch_id(min(operator.extent.batch for operator in operators.values()))
        while True:
            commits = {name: operator.commit_of(batch) for name, operator in operators.items()}
            stores = ((operator.source.pinned.store, commits[name]) for name, operator in operators.items())
            # After a restore, a batch of one operator may belong to the earlier job. The processing times differ.
            if len({store.batch(commit).processing_time for store, commit in stores}) == 1 or all(
                len(operator.extent.eras) == 1 for operator in operators.values()
            ):
                return commits
            batch -= 1

    @property
    def batch(self) -> int:
        """Id of the newest batch of the tables; −1 before the first one."""
        operator = next(iter(self._operators.values()))
        try:
            return batch_id(operator.extent.batch_of(self._commit(operator, None)))
        except TableNotFound:
            return -1

    @property
    def rebuilds(self) -> int:
        """Number of rebuilds of stores since the tables were opened."""
        return sum(getattr(operator.source, "rebuilds", 0) for operator in self._operators.values())

    def poll(self) -> int:
        """Apply new commits of the changelogs; refresh tables that another program writes.

        Returns:
            The number of applied records.

        Raises:
            DefinitionError: ``types`` has an unknown name.
            KeyedError: The error that ended following in a thread.
        """
        self.check()
        began = time.monotonic()
        before = self._extents()
        applied = sum(operator.source.poll() for operator in self._operators.values())
        if self._extents() != before:
            with self._changed:
                self._changed.notify_all()
        self._check_types()
        self._work.succeeded(began)
        return applied

    def _step(self) -> float:
        self.poll()
        self._growth.trim()
        return self._every

    def _is_transient(self, error: Exception) -> bool:
        return all(operator.source.is_transient(error) for operator in self._operators.values())

    def check(self) -> None:
        """Raise the error that ended following, as every read does.

        Raises:
            StateAccessError: The tables are closed, or belong to the process that this one was forked from.
        """
        for operator in self._operators.values():
            operator.source.pinned.check_open()

    @property
    def is_gone(self) -> bool:
        """True if the last poll did not find a changelog; the tables stay at their batch."""
        return any(getattr(operator.source, "is_gone", False) for operator in self._operators.values())

    @property
    def age(self) -> float | None:
        """Seconds since the start of the last successful poll; ``None`` before it."""
        return self._work.age

    def _check_types(self) -> None:
        """Check the names in ``types``, as soon as all states are known."""
        if not self._types or None in self._extents().values():
            return
        states = dict.fromkeys(state for _, state in self._shown())
        known = {*states, *(f"{operator.name}.{state}" for operator, state in self._shown())}
        for name in self._types:
            if name not in known:
                available = ", ".join(states) or "none"
                raise DefinitionError(f"types: there is no table {name!r}; the tables are: {available}")
        self._types = {}

    def _extents(self) -> dict[str, Extent | None]:
        return {name: operator.source.pinned.store.extent for name, operator in self._operators.items()}

    def start(self, every: float = 1.0, *, wait: bool = True) -> Self:
        """Follow in a thread, and return after its first poll.

        While a changelog cannot be read or the disk is full, the thread retries. Any other error ends following.

        Args:
            every: Seconds between two polls of the changelogs.
            wait: Wait for the first poll, which applies all content.

        Raises:
            KeyedError: The first poll failed permanently. The tables are closed.
        """
        if self._work.is_running:
            raise DefinitionError("start: the tables follow their changelogs already")
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0 < every < math.inf:
            raise DefinitionError(f"start(every={every!r}): give seconds, a number above 0")
        self.check()
        vars(self._origin)["_every"] = every
        self._work.start()
        if wait:
            with closing_on_error(self):
                self._work.wait()
                self._work.check()
        return self

    def stop(self) -> None:
        """End the thread of `start`."""
        self._work.stop()
        self._work.check()

    def wait_for(self, position: int | Position, timeout: float = 30.0) -> int:
        """Wait until the tables have a batch.

        Args:
            position: Id of the batch, or a `Position`.
            timeout: Seconds.

        Returns:
            The newest batch.

        Raises:
            TimeoutError: It did not come in time; the message has `trouble`.
            DefinitionError: ``position`` is neither.
        """
        batch = position.batch if isinstance(position, Position) else position
        if type(batch) is not int:
            raise DefinitionError(f"wait_for({position!r}): give the id of a batch, or a Position")
        if not self._wait(lambda: self.batch >= batch, timeout):
            trouble = self.trouble
            raise TimeoutError(
                f"wait_for({batch}): the tables are at batch {self.batch} after {timeout:g} s"
                f"{f'; their last poll failed: {trouble}' if trouble else ''}"
            )
        return self.batch

    def _feed(self, operator: Operator) -> Feed:
        return Feed(operator, partial(self._commit, operator, None), self._wait, self._work)

    def _wait(self, is_there: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not is_there():
            self.check()
            left = _LOOK_AGAIN if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            is_followed = self._work.is_running
            if not is_followed and self.poll():
                continue
            with self._changed:
                if not is_there():
                    self._changed.wait(min(left, 10 * _LOOK_AGAIN if is_followed else _LOOK_AGAIN))
        return True

    def snapshot(self, as_of: AsOf = None) -> Snapshot:
        """Return the tables at a batch, to be closed, best by ``with``.

        Raises:
            HistoryCompacted: The batch is older than the history that is kept.
            TableNotFound: There is no batch yet.
        """
        commits = (
            self._level()
            if as_of is None
            else {name: self._commit(operator, as_of) for name, operator in self._operators.items()}
        )
        snapshot = Snapshot(self._operators, commits)
        return snapshot.share if self.is_share else snapshot

    def lag(self) -> Lag:
        """Return the lag of the tables behind their changelogs."""
        self.check()
        lags = [follower.lag() for follower in self._followers("lag")]
        return Lag(sum(lag.records for lag in lags), max(lag.seconds for lag in lags))

    def take_over(self) -> dict[str, RestorePoint]:
        """End following at the end of the changelogs, and return restore points for a new query.

        Stop the job first: later commits would be lost.

        Returns:
            The restore points for ``restore_from=``, by operator.
        """
        followers = self._followers("take_over")
        self.stop()
        self.poll()
        self.close()
        points = (RestorePoint(follower.changelog, standby=str(self.path)) for follower in followers)
        return dict(zip(self._operators, points, strict=True))

    def _followers(self, what: str) -> list[Follower]:
        followers = [each.source for each in self._operators.values() if isinstance(each.source, Follower)]
        if len(followers) < len(self._operators):
            raise DefinitionError(f"{what}: another program writes these tables; open tables with their changelogs")
        return followers

    def close(self) -> None:
        """End following and release the folder."""
        if not self._work.is_inherited:
            self._work.close()
            self._context.close()

    def _repr_html_(self) -> str:
        try:
            rows = [(name, self[name].operator, self[name].types) for name in self]
        except KeyedError:
            rows = []
        return html_table(repr(self), ["table", "operator", "types"], rows, more=False)

    def __repr__(self) -> str:
        of = f"StateTables of {', '.join(self._operators)}"
        try:
            return f"<{of} at batch {self.batch}, {self.status.value}: {', '.join(self) or 'no tables'}>"
        except Exception as error:  # noqa: BLE001 - following may have ended with any
            return f"<{of}, {self.status.value}: {error}>"


def open_tables(
    changelog: Changelog | str | Iterable[Changelog | str],
    path: str | os.PathLike[str],
    *,
    types: Function | Mapping[str, Any] | None = None,
    history: Duration = _HOUR_MS,
    groups: Iterable[int] | None = None,
) -> StateTables:
    """Open the state of changelogs as tables, in local stores that follow them.

    Nothing is read before `StateTables.poll` or `StateTables.start`. Earlier tables in the folder are resumed.

    Args:
        changelog: The changelog of an operator, or its URL in an object store; or those of several operators of one
            query. The job must have been started once.
        path: Folder for the stores; created if missing.
        types: Types of values by name of the state (``operator.state`` if several operators have it), or the function
            that declares the states. For your own aggregate class: by name of a window operator the operator, its
            aggregates by column, or its only aggregate.
        history: Processing time before the newest batch for which past states are kept: ``int`` milliseconds or
            `timedelta`. It begins with the changelog's history.
        groups: The key groups to read and store, from 0, such as ``range(0, 16)``; all by default.

    Raises:
        ChangelogError: A changelog was never written.
        LocalStoreError: Another program writes this folder.
        DefinitionError: A parameter breaks its rule, the folder holds tables of another operator or of other key
            groups, or a changelog does not have a key group.
    """
    numbers = None if groups is None else _groups(groups)
    root, history_ms = _folder(path), milliseconds_of(history, "open_tables(history)")
    sources: dict[str, Callable[[], Follower]] = {}
    logs: Any = [changelog] if isinstance(changelog, Changelog | str | os.PathLike) else changelog
    for one in map(changelog_at, logs):
        if not isinstance(one, Changelog):
            raise DefinitionError(
                f"open_tables: {without_credentials(repr(one)):.100} is not a changelog; give "
                "keyed.DirectoryChangelog(folder)"
            )
        if isinstance(one, DirectoryChangelog) and root.resolve() == Path(one.path).resolve():
            raise DefinitionError(f"open_tables(path={str(path)!r}) is the changelog's own folder; give another one")
        header = header_of(one)
        name = header.operator
        if numbers is not None and numbers[-1] >= header.parallelism:
            raise DefinitionError(
                f"groups=: operator {name!r} has {header.parallelism} key groups, 0 to {header.parallelism - 1}, and "
                f"no {shown_groups(group for group in numbers if group >= header.parallelism)}"
            )
        if name in sources:
            raise DefinitionError(
                f"open_tables: two changelogs belong to operator {name!r}; give one for each operator"
            )
        sources[name] = partial(Follower, name, one, root / name, history_ms, numbers)
    if not sources:
        raise DefinitionError("open_tables: give at least one changelog")
    _check_folder(root, sources, f"open_tables(path={str(root)!r})")
    return _open(root, sources, lambda _: types)


def _groups(groups: Iterable[int]) -> tuple[int, ...]:
    """Return numbers of key groups in order.

    Raises:
        DefinitionError: They are not numbers, or there are none.
    """
    numbers = None if isinstance(groups, str | bytes) or not isinstance(groups, Iterable) else list(groups)
    if not numbers or any(type(group) is not int or group < 0 for group in numbers):
        raise DefinitionError(
            f"groups={groups!r:.100}: give the numbers of one or several key groups, such as range(0, 16)"
        )
    return tuple(sorted(set(numbers)))


def keep_tables(
    path: str | os.PathLike[str], changelogs: Mapping[str, Changelog], functions: Mapping[str, Function]
) -> StateTables:
    """Open the tables of a query before its start.

    Args:
        path: Folder for the stores; created if missing.
        changelogs: The changelog, which need not be written yet, of each operator by its name.
        functions: The function of each operator by its name.

    Raises:
        DefinitionError: The folder holds tables of another query.
        LocalStoreError: Another program writes this folder.
    """
    root = _folder(path)
    _check_folder(root, functions, f"tables={str(root)!r}")
    sources = {name: partial(Follower, name, log, root / name, _HOUR_MS) for name, log in changelogs.items()}
    return _open(root, sources, functions.__getitem__)


def discard_unwritten(tables: StateTables) -> None:
    """Close the tables of a query, and delete the folders of operators whose changelog does not exist yet."""
    sources = {name: operator.source for name, operator in tables._operators.items()}  # noqa: SLF001 - of this module
    unwritten: list[Path] = []
    # The error that the query was refused with is the one to be seen.
    with suppress(KeyedError):
        for name, source in sources.items():
            if isinstance(source, Follower) and source.pinned.store.extent is None and not source.changelog.header():
                unwritten.append(tables.path / name)
    tables.close()
    with suppress(KeyedError):
        for folder in unwritten:
            delete_folder(folder)


def read_tables(path: str | os.PathLike[str], *, types: Function | Mapping[str, Any] | None = None) -> StateTables:
    """Open the tables of another program on this machine for reading.

    They are refreshed by `StateTables.poll`.

    Args:
        path: The folder that was given to `open_tables`.
        types: As for `open_tables`.

    Raises:
        DefinitionError: ``types`` has an unknown name.
        LocalStoreError: The folder holds no tables.
    """
    return _read(path, lambda _: types)


def read_kept_tables(path: str | os.PathLike[str], functions: Mapping[str, Function]) -> StateTables:
    """Open the tables of a query for reading.

    Args:
        path: The folder that was given to `keep_tables`.
        functions: The function of each operator by its name.
    """
    return _read(path, functions.get)


def _read(path: str | os.PathLike[str], types_of: Callable[[str], Types]) -> StateTables:
    root = _folder(path)
    folders = _operator_folders(root)
    if not folders:
        raise LocalStoreError(f"{root} has no state tables; give the folder= of open_tables")
    tables = _open(root, {folder.name: partial(FolderReader, folder) for folder in folders}, types_of)
    with closing_on_error(tables):
        # The first poll checks the names in ``types``.
        tables.poll()
    return tables


def _open(
    root: Path, sources: Mapping[str, Callable[[], Follower | FolderReader]], types_of: Callable[[str], Types]
) -> StateTables:
    """Open the sources of operators as tables, with the types of each operator's values."""
    operators: dict[str, Operator] = {}
    named: dict[str, Any] = {}
    with ExitStack() as stack:
        for name, open_source in sources.items():
            types = types_of(name)
            of_states = _types(types, name)
            source = open_source()
            stack.callback(source.close)
            operators[name] = Operator(name, source, of_states)
            named |= types if isinstance(types, Mapping) else {}
        return StateTables(root, operators, stack.pop_all(), named)


def _folder(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
    if not text or "\0" in text or "://" in text:
        raise DefinitionError(f"path={without_credentials(path)!r} is not the path of a folder on this machine")
    return Path(text)


def _check_folder(root: Path, operators: Collection[str], what: str) -> None:
    """Check that a folder holds only tables of these operators: readers would show outdated ones of others."""
    others = sorted(folder.name for folder in _operator_folders(root) if folder.name not in operators)
    if others:
        raise DefinitionError(
            f"{what} holds tables of operator {others[0]!r}, which this query does not have; give it a folder of its "
            "own"
        )


def _operator_folders(root: Path) -> list[Path]:
    """Return the folders of operators in a folder of tables."""
    folders = sorted(root.iterdir()) if root.is_dir() else ()
    return [folder for folder in folders if folder.is_dir() and _NAME.fullmatch(folder.name)]


def _types(types: Types, operator: str) -> Mapping[str, Any]:
    """Return the types of an operator's values, by state."""
    if types is None:
        return {}
    if isinstance(types, Mapping):
        return {str(name).removeprefix(f"{operator}."): type_ for name, type_ in types.items()}
    if not isinstance(types, Function) and not (isinstance(types, type) and issubclass(types, Function)):
        raise DefinitionError(
            f"types={types!r:.100}: give a dict of types by state, or the function that declares them"
        )
    # The function itself reads the one table of an operator.
    own = {operator: types} if isinstance(types, Function) else {}
    if isinstance(types, VectorizedFunction):
        return own
    return own | {name: state for name, (_, state) in declared_states(types).items()}
