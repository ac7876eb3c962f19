"""The contract for authors of libraries on `keyed`, such as `keyed.windows` and `keyed.joins`.

[Extending](../how-to/extending.md) has examples.

- Order: with ``right_first = True`` in a function's class, the second of two streams runs first at equal timestamps.
- Changelogs: `keyed.changelog.Changelog` is the protocol ([reference](changelogs.md#changelog)).
- Sinks: subclass `Sink`, whose `open` returns a `SinkWriter` for an `Owner`; it writes each `SinkBatch` exactly once.
  `keyed.testing.sink_conformance` tests it. `keyed.postgres` is one.
- Operators over columns also import ``keyed.job.execution_path``, ``keyed.expressions.row_conditions`` and
  ``keyed.codec.tagged``, which are part of this contract.
"""

import importlib
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import Units, duration_of, milliseconds_of, shows_options, shows_units
from keyed.base.schemas import Schema, schema_of
from keyed.changelog import Changelog
from keyed.codec.snapshots import as_stored, snapshot
from keyed.destinations.sink import Owner, Sink, SinkBatch, SinkWriter
from keyed.job.context import TimerService
from keyed.job.options import OperatorOptions
from keyed.job.state import inner_state

if TYPE_CHECKING:
    from keyed.arrow.read import table_rows
    from keyed.arrow.write import table_of

#: Names that need pyarrow, by module.
_ON_DEMAND = {"table_of": "write", "table_rows": "read"}

__all__ = [
    "Changelog",
    "OperatorOptions",
    "Owner",
    "Schema",
    "Sink",
    "SinkBatch",
    "SinkWriter",
    "TimerService",
    "Units",
    "as_stored",
    "duration_of",
    "inner_state",
    "milliseconds_of",
    "schema_of",
    "shows_options",
    "shows_units",
    "snapshot",
    "table_of",
    "table_rows",
]


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(f"keyed.arrow.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
