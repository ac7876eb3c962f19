"""Settings of Spark's Python worker processes."""

from __future__ import annotations

import gc
import sys
from functools import lru_cache


def freeze_modules() -> None:
    """Exclude long-lived objects of this process from Python's cyclic garbage collector.

    After each task Spark's worker runs the collector over all objects, and nearly all of them belong to modules: with
    pandas that is 30 ms of CPU per task. This function is called at the end of tasks, and acts if modules were imported
    since the last call.
    """
    _freeze(len(sys.modules))


@lru_cache(maxsize=1)
def _freeze(_modules: int) -> None:
    # Existing garbage would otherwise never be freed.
    gc.collect()
    gc.freeze()
