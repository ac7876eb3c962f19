"""Changes: the elements that flow between the operators of a script.

A change is a tuple of plain data:

``route``   Text of the key by which the next operator is partitioned.
``key``     The columns of the key.
``value``   The other columns, ``None`` for a tombstone.
``old``     Of a table: the columns before the change, ``None`` if there was no row.
``time``    Timestamp, in milliseconds.
``window``  Start and end of the window, ``None`` without one.
``meta``    Partition, offset and headers of the record from which it comes, and the number of that record in the order
            of arrival.

The timestamp that an element has in the runtime is not ``time`` but the stream time: the highest timestamp of all
records up to the one from which it comes. So elements are in the order of their timestamps however disordered the
records are, and results do not depend on where batches are cut (`keyed.Context`). Elements of one stream time have the
order of their records.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeAlias

from keyed.codec.snapshots import UNCHANGING

Change: TypeAlias = tuple[Any, ...]


class Sealed(tuple[Any, ...]):
    """A change or record that nothing changes, nor what it contains: the runtime passes it on without a copy."""

    __slots__ = ()


UNCHANGING.add(Sealed)
ROUTE, KEY, VALUE, OLD, TIME, WINDOW, META = range(7)
#: Place of the number of the record in the meta data.
NUMBER = 3
#: The number of a change that a timer makes: it comes after the records of its stream time.
LAST = 2**63 - 1
route = operator.itemgetter(ROUTE)


def rank_of(change: Change) -> int:
    """Return the number of the record from which a change comes."""
    number: int = change[META][NUMBER]
    return number


#: The meta data of a change that comes from no record.
NO_META = (0, 0, None, 0)


def meta_of(number: int) -> tuple[Any, ...]:
    """Return the meta data of a change that comes from several records, of which the last one has a number."""
    return (0, 0, None, number)


#: The route of a record without a key. Only this tells it from a key of several columns that are all null.
NO_KEY = "none"


def route_of(key: Iterable[Any]) -> str:
    """Return the text by which a key is routed: equal for equal keys. It is also the key of state tables.

    That of a key of one column is its text alone, if it cannot be taken for another route.
    """
    cells = tuple(key)
    if len(cells) != 1 or cells[0] is None:
        return repr(cells)
    cell = cells[0]
    if not isinstance(cell, str):
        return repr(cell) if isinstance(cell, int | float) else repr(cells)
    is_plain = cell.isprintable() and cell[:1] not in ("", "(") and cell != NO_KEY
    return cell if is_plain else repr(cells)
