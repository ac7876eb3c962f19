"""State tables: the state of a job's functions, as tables that any program can query while the job runs.

For readers of state, in the job's process or in others.
"""

from keyed.tables.entries import Entry
from keyed.tables.follower import Lag
from keyed.tables.operator_view import Position
from keyed.tables.replication import Replication
from keyed.tables.state_table import History, QueryResult, Scan, StateTable, TimersTable, Version
from keyed.tables.state_tables import Snapshot, StateTables, open_tables, read_tables
from keyed.tables.subscription import Change, Subscription

__all__ = [
    "Change",
    "Entry",
    "History",
    "Lag",
    "Position",
    "QueryResult",
    "Replication",
    "Scan",
    "Snapshot",
    "StateTable",
    "StateTables",
    "Subscription",
    "TimersTable",
    "Version",
    "open_tables",
    "read_tables",
]
