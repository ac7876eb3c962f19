"""Every error that `keyed` raises on purpose, in one tree, for code that handles them.

    KeyedError
    ├── DefinitionError (ValueError)
    │   ├── StateDefinitionError
    │   ├── OutputDefinitionError
    │   └── SqlError
    ├── EncodingError (ValueError)
    ├── StateAccessError (RuntimeError)
    ├── TableOverflowError (OverflowError)
    ├── UserFunctionError
    ├── RowError (ValueError)
    │   ├── NullKeyError
    │   ├── TimestampError
    │   └── KeyTypeError
    ├── CorruptionError
    ├── LocalStoreError
    ├── CheckpointError
    │   ├── ParallelismChanged
    │   ├── StateSchemaChanged
    │   ├── OperatorChanged
    │   ├── KeysChanged
    │   └── CheckpointFinished
    ├── ChangelogError
    │   ├── ChangelogDiverged
    │   ├── ChangelogFenced
    │   └── HistoryCompacted
    ├── TableNotFound (KeyError)
    ├── GroupUnavailable
    ├── SourceError
    ├── SinkError
    ├── SessionError
    ├── ExtraNotInstalled (ImportError)
    └── QueryFailed

Vendor errors are translated with ``raise ... from``; Spark's own exception is the ``__context__``, and is not
printed.

A traceback ends with a note (PEP 678) that names the command for causes and remedies, ``keyed explain CODE``;
``str(error)`` is the message alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Self

__all__ = [
    "ChangelogDiverged",
    "ChangelogError",
    "ChangelogFenced",
    "CheckpointError",
    "CheckpointFinished",
    "CorruptionError",
    "DefinitionError",
    "EncodingError",
    "ExtraNotInstalled",
    "GroupUnavailable",
    "HistoryCompacted",
    "KeyTypeError",
    "KeyedError",
    "KeysChanged",
    "LocalStoreError",
    "NullKeyError",
    "OperatorChanged",
    "OutputDefinitionError",
    "ParallelismChanged",
    "QueryFailed",
    "RowError",
    "SessionError",
    "SinkError",
    "SourceError",
    "SqlError",
    "StateAccessError",
    "StateDefinitionError",
    "StateSchemaChanged",
    "TableNotFound",
    "TableOverflowError",
    "TimestampError",
    "UserFunctionError",
]


class KeyedError(Exception):
    """Base of all errors that `keyed` raises on purpose.

    Attributes:
        code: The name of the section on this error, which ``keyed explain CODE`` prints.
    """

    code = "KeyedError"

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class of another package has no section of its own.
        if cls.__module__ == __name__:
            cls.code = cls.__name__

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Return an error whose last note is the command that explains it, whatever subclasses' constructors do."""
        error = super().__new__(cls, *arguments, **options)
        error.__notes__ = [remedy(cls)]
        return error

    def add_note(self, note: str, /) -> None:
        """Add a note to the traceback; the command stays its last line."""
        super().add_note(note)
        self.__notes__.sort(key=lambda each: each == remedy(type(self)))


def remedy(cls: type[KeyedError]) -> str:
    """Return the last line of a traceback: the command that prints the causes and remedies of an error."""
    return f"For causes and remedies run: keyed explain {cls.code}"


class DefinitionError(KeyedError, ValueError):
    """A function, state, stream or parameter is invalid. Raised before the first row."""


class StateDefinitionError(DefinitionError):
    """A state declaration breaks a rule: its name, its type, its default or its time to live."""


class OutputDefinitionError(DefinitionError):
    """An output type or tag cannot be used, or a value does not fit it."""


class SqlError(DefinitionError):
    """A script cannot be compiled: a syntax error, an unknown name, or types that do not fit. Raised before it runs.

    Attributes:
        line: Line in the script, from 1.
        column: Column in the line, from 1.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class EncodingError(KeyedError, ValueError):
    """A key, value, namespace, map key or timer name cannot be encoded as declared."""


class StateAccessError(KeyedError, RuntimeError):
    """State, timers or outputs were used outside of a call that has a current key."""


class TableOverflowError(KeyedError, OverflowError):
    """A sum in a table state is out of the range of its column."""


class UserFunctionError(KeyedError):
    """The user's function raised. The message names operator, call, key and element or timer; the cause is chained."""


class RowError(KeyedError, ValueError):
    """A row that the stream's rules refuse, under the policy ``fail``, or that a chained operator cannot take."""


class NullKeyError(RowError):
    """A row whose key, or a part of it, is null."""


class TimestampError(RowError):
    """A row without a usable event timestamp in a stream that has event time."""


class KeyTypeError(RowError):
    """A key whose type differs from the keys before it."""


class CorruptionError(KeyedError):
    """Persisted bytes fail their checks.

    Args:
        message: What is wrong.
        where: The file, table or record that holds the bytes.
        offset: Byte offset of the damaged record, if known.
    """

    def __init__(self, message: str, *, where: str = "", offset: int | None = None) -> None:
        place = f" in {where}" if where else ""
        at = f" at byte {offset}" if offset is not None else ""
        super().__init__(f"{message}{place}{at}")
        self.message = message
        self.where = where
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        return partial(CorruptionError, where=self.where, offset=self.offset), (self.message,)


class LocalStoreError(KeyedError):
    """A local store cannot be opened or read. It is a cache: the engine rebuilds it from the log."""


class CheckpointError(KeyedError):
    """A checkpoint does not fit the query that is started on it, or the path at which it is read."""


class ParallelismChanged(CheckpointError):
    """The checkpoint was written with another number of key groups."""


class StateSchemaChanged(CheckpointError):
    """A state's declaration changed incompatibly with its stored values. Prints old and new."""


class OperatorChanged(CheckpointError):
    """The checkpoint belongs to another function or operator name."""


class KeysChanged(CheckpointError):
    """The checkpoint or changelog has other key columns, keys of another type, or several encodings of one key."""


class CheckpointFinished(CheckpointError):
    """The checkpoint was drained: its watermark is at +inf, so it takes no new rows."""


class ChangelogError(KeyedError):
    """A changelog cannot be written, read or used as requested. Nothing of the commit in progress is in it."""


class ChangelogDiverged(ChangelogError):
    """The changelog has other commits than the state to be exported, so the two are not one history."""


class ChangelogFenced(ChangelogError):
    """Another writer of the same key group is ahead: this one is an outdated attempt, or has to be opened again."""


class HistoryCompacted(ChangelogError):
    """The requested state or position was removed from the changelog by compaction."""


class TableNotFound(KeyedError, KeyError):
    """There is no state table of this name, or no batch was applied yet."""

    # KeyError's is the repr of its argument.
    __str__ = Exception.__str__


class GroupUnavailable(KeyedError):
    """State tables have a share of the key groups (``groups=``), and lack one that the request needs.

    On a server no reachable peer has the group either; the key may exist (Kafka Streams'
    ``InvalidStateStorePartitionException``).

    Attributes:
        operator: The operator.
        groups: The key groups that are missing.
    """

    def __init__(self, message: str, *, operator: str = "", groups: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.operator = operator
        self.groups = tuple(groups)


class SourceError(KeyedError):
    """A source cannot be read, or has lost rows that were not read yet."""


class SinkError(KeyedError):
    """A sink cannot be written, or its folder is another query's. Nothing of another query was changed."""


class SessionError(KeyedError):
    """A Spark session lacks what keyed needs: Java, settings, packages, workers that run. The message lists all."""


class ExtraNotInstalled(KeyedError, ImportError):
    """A package of an extra, such as ``keyed-streams[sql]``, is not installed. The message names both."""


class QueryFailed(KeyedError):
    """A query ended with an error that is none of the others. The message names query and sink."""
