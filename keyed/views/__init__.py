"""State tables: what a job's functions keep, as tables that any program may ask while the job runs."""

from keyed.views.entries import Entry
from keyed.views.follower import Lag
from keyed.views.operator_view import Position
from keyed.views.state_table import QueryResult, Scan, StateTable, TimersTable, Version
from keyed.views.state_tables import Snapshot, StateTables, open_tables, read_tables
from keyed.views.subscription import Change, Subscription

__all__ = [
    "Change",
    "Entry",
    "Lag",
    "Position",
    "QueryResult",
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
