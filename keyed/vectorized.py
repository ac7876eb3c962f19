"""The second level of the API: functions over whole columns, vectorized in PyFlink's and Spark's sense of the word.

For writers of functions over Arrow tables: these functions, their contexts, and table state.
"""

from keyed.job.table_declaration import TableState
from keyed.job.vectorized_functions import TIMESTAMP_COLUMN, BatchContext, VectorizedCoFunction, VectorizedFunction

__all__ = [
    "TIMESTAMP_COLUMN",
    "BatchContext",
    "TableState",
    "VectorizedCoFunction",
    "VectorizedFunction",
]
