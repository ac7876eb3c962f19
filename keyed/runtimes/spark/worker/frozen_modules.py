"""The Python worker processes of Spark: what keyed does for them."""

from __future__ import annotations

import gc
import sys
from functools import lru_cache


def freeze_modules() -> None:
    """Take what this process holds for good out of the sight of Python's cyclic garbage collector.

    After each task Spark's worker runs the collector over all objects, and nearly all of them belong to modules: with
    pandas that is 30 ms of CPU a task. So it is called at the end of tasks, and does something where modules have been
    imported since the last time.
    """
    _freeze(len(sys.modules))


@lru_cache(maxsize=1)
def _freeze(_modules: int) -> None:
    # What is garbage already would stay for good as well.
    gc.collect()
    gc.freeze()
