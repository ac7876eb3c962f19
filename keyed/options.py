"""How a chain is run: what `keyed.run` and `keyed.start` are asked for, as the runtimes get it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from keyed.errors import DefinitionError
from keyed.results import Progress, RestoreProgress


@attrs.frozen(kw_only=True)
class Options:
    """The options of a run; ``None`` for those that are not given. See `keyed.run` for what they are."""

    checkpoint: str | os.PathLike[str] | None = None
    drain: bool | None = None
    on_progress: Callable[[Progress], object] | None = None
    on_restore: Callable[[RestoreProgress], object] | None = None
    local_dir: str | os.PathLike[str] | None = None
    group_access: bool = False
    rows_per_batch: int | None = None
    processing_time: Callable[[], int] | None = None
    trigger: str | Mapping[str, Any] | None = None
    query_name: str | None = None
    tables: str | os.PathLike[str] | None = None

    def refuse(self, remedies: Mapping[str, str]) -> None:
        """Refuse options that a runtime does not have.

        Args:
            remedies: By option, what is used in its place.

        Raises:
            DefinitionError: One of them is given.
        """
        for name, remedy in remedies.items():
            value = getattr(self, name)
            if value is not None:
                raise DefinitionError(f"{name}={value!r} {remedy}")
