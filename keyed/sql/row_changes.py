"""Changes: the elements that flow between the operators of a script.

A change is a tuple of plain data:

``route``   Text of the key by which the next operator is partitioned.
``key``     The columns of the key.
``value``   The other columns, ``None`` for a tombstone.
``old``     Of a table: the columns before the change, ``None`` if there was no row.
``time``    Timestamp, in milliseconds.
``window``  Start and end of the window, ``None`` without one.
``meta``    Partition, offset and headers of the record from which it comes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, TypeAlias

Change: TypeAlias = tuple[Any, ...]
ROUTE, KEY, VALUE, OLD, TIME, WINDOW, META = range(7)
#: The meta data of a change that comes from no single record.
NO_META = (0, 0, None)
route = operator.itemgetter(ROUTE)


def route_of(key: Iterable[Any]) -> str:
    """Return the text by which a key is routed: equal for equal keys."""
    return repr(tuple(key))
