"""Recovery, for operators of jobs: flush, verify and restore checkpoints, and read changelogs.

They work with checkpoints of both runtimes and every changelog. A query is restored at its start by ``restore_from=``
(`keyed.RestorePoint`).
"""

import importlib
from typing import TYPE_CHECKING, Any

from keyed.recovery.reading import read_changelog

if TYPE_CHECKING:
    from keyed.runtimes.recovering import flush, restore, verify
    from keyed.runtimes.spark.query.exports import spark_metrics

#: Names that need a runtime, by its module.
_ON_DEMAND = {
    "flush": "recovering",
    "restore": "recovering",
    "spark_metrics": "spark.query.exports",
    "verify": "recovering",
}

__all__ = [
    "flush",
    "read_changelog",
    "restore",
    "spark_metrics",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(importlib.import_module(f"keyed.runtimes.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
