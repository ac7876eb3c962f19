"""The cost model of `docs/explanation/scale.md`: CPU-seconds of a batch, fitted to measured batches.

A batch costs so much for itself, for each row, key group and source task, and for each pair of a task and a key group.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

NAMES = ("batch", "million rows", "key group", "source task", "task and key group")


@attrs.frozen
class Batch:
    """A batch and its cost.

    Attributes:
        rows: Number of its rows.
        groups: Number of key groups.
        tasks: Number of source tasks.
        seconds: CPU-seconds.
    """

    rows: int
    groups: int
    tasks: int
    seconds: float = 0.0

    @property
    def counts(self) -> tuple[float, ...]:
        """How often it has each of the costs of `NAMES`."""
        return 1, self.rows / 1e6, self.groups, self.tasks, self.tasks * self.groups


def fitted(batches: Sequence[Batch]) -> dict[str, float]:
    """Return the costs that minimize the sum of squared relative errors; none is negative."""
    weights = np.array([1 / batch.seconds for batch in batches])
    counts = np.array([batch.counts for batch in batches]) * weights[:, None]
    kept = list(range(len(NAMES)))
    while True:
        found, *_ = np.linalg.lstsq(counts[:, kept], np.ones(len(batches)), rcond=None)
        if (found >= 0).all():
            break
        del kept[int(np.argmin(found))]
    return dict.fromkeys(NAMES, 0.0) | {NAMES[place]: float(cost) for place, cost in zip(kept, found, strict=True)}


def predicted(costs: dict[str, float], batch: Batch) -> float:
    """Return the CPU-seconds of a batch by the model."""
    return sum(costs[name] * count for name, count in zip(NAMES, batch.counts, strict=True))
