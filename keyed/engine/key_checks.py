"""Refused keys: keys of another type than the others, and of another key group than the row they were emitted for.

1, 1.0 and True are equal in Python, so keys have one type, and are normalised on entry.

A shuffle would send a row to the group of its key. Between chained operators there is none, so a row of another group
is refused: the results of chained operators equal those with a shuffle between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import shown
from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import STORED_AS_THEY_ARE, encode_key, is_null, key_type, normalised, null_key
from keyed.errors import EncodingError, KeyTypeError, RowError
from keyed.job.functions import TIMESTAMP_COLUMN, OperatorSpec

if TYPE_CHECKING:
    import pyarrow as pa


class KeyTypes:
    """Checks and normalises keys from sources without column types."""

    def __init__(self, operator: str) -> None:
        self._operator = operator
        self._seen: Any = None
        #: Type of the keys (`keyed.codec.keys.key_type`), empty before the first.
        self.name = ""

    def check(self, key: Any, element: Any) -> Any:
        """Return the key in its stored form (`keyed.codec.keys.normalised`), if it has the type of the earlier keys.

        Raises:
            NullKeyError: It is ``None``, or has a part that is ``None``.
            KeyTypeError: Its type, or a part's, differs from the first key's.
            EncodingError: Its type or value cannot be a key.
        """
        try:
            kind = self.kind(key)
        except RecursionError:
            raise EncodingError(f"operator {self._operator!r}: a key has tuples nested too deep; flatten it") from None
        if kind is self._seen or kind == self._seen:
            return key if kind in STORED_AS_THEY_ARE else self._stored(key, element)
        if is_null(key):
            # Keys of a source were checked before.
            raise null_key(self._operator, key, element, of_source=False)
        if self._seen is not None:
            raise KeyTypeError(
                f"operator {self._operator!r}: key {shown(key)} has type {kind!r}, the keys before it {self._seen!r}; "
                "convert keys to one type"
            )
        key = self._stored(key, element)
        self._seen, self.name = kind, key_type(key)
        return key

    def misfit(self, key: Any, committed: str) -> str | None:
        """Return the reason why a storable key does not have the type of the earlier keys; ``None`` if it has.

        Args:
            key: The key. The first key determines the type, if none is committed yet.
            committed: Type of the keys of the state; empty while it has none.
        """
        name = key_type(normalised(key))
        expected = self.name or committed
        if expected and name != expected:
            return f"key: it is of type {name}, the keys before it are of type {expected}"
        if not expected:
            self.check(key, None)
        return None

    def _stored(self, key: Any, element: Any) -> Any:
        try:
            if self._seen is None:
                encode_key(key)
            return normalised(key)
        except EncodingError as error:
            raise EncodingError(
                f"operator {self._operator!r}: key {shown(key)} of element {shown(element)}: {error}"
            ) from error

    def kind(self, key: Any) -> Any:
        """Return the type of a key; for a tuple the types of its parts."""
        return tuple(map(self.kind, key)) if isinstance(key, tuple) else key.__class__


def key_of_other_group(keys: Iterable[Any], parallelism: int, group: int) -> Any:
    """Return the first key that belongs to another key group; ``None`` if there is none."""
    return next((key for key in keys if group_of(key_hash(normalised(key)), parallelism) != group), None)


def check_table(table: pa.Table, spec: OperatorSpec, upstream: str, group: int) -> None:
    """Check the rows that an operator reads from the one that it is chained to.

    Args:
        table: The rows.
        spec: The operator that reads them.
        upstream: Name of the operator that emitted them.
        group: The key group of both.

    Raises:
        NullKeyError: A key is null.
        RowError: A key belongs to another key group.
    """
    import pyarrow.compute as pc

    from keyed.arrow.read import column_values, table_rows
    from keyed.table_state.batches import check_keys

    check_keys(table, spec.keys, spec.name)
    if spec.parallelism == 1:
        return
    distinct: Any
    if len(spec.keys) == 1:
        distinct = keys = column_values(pc.unique(table.column(spec.keys[0])))
    else:
        distinct = table.select(spec.keys).group_by(list(spec.keys), use_threads=False).aggregate([])
        keys = list(zip(*map(column_values, distinct.columns), strict=True))
    key = key_of_other_group(keys, spec.parallelism, group)
    if key is not None:
        columns = [name for name in table.column_names if name != TIMESTAMP_COLUMN]
        rows = table_rows(table.select(columns))
        row = next(
            row for row in rows if key_of_other_group([_key_of(row, spec.keys)], spec.parallelism, group) is not None
        )
        raise refused(key, row, spec, upstream, group)


def _key_of(row: Any, keys: tuple[str, ...]) -> Any:
    return row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)


def refused(key: Any, row: Any, spec: OperatorSpec, upstream: str, group: int) -> RowError:
    """Return the error for a row whose key belongs to another key group."""
    named = ", ".join(map(repr, spec.keys))
    return RowError(
        f"operator {spec.name!r} runs chained to {upstream!r}, and key {shown(key)} in {shown(row)} belongs to another "
        f"key group than the rows that {upstream!r} read (key group {group}), so {upstream!r} does not forward its "
        f"keys unchanged. Shuffle the rows, with .key_by({named}, chain=False); a checkpoint that began chained stays "
        "chained: start from a new one, with restore_from= the changelogs"
    )
