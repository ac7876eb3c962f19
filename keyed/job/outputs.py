"""Tags of side outputs."""

from __future__ import annotations

from typing import Any

import attrs

from keyed.base.schemas import Schema, schema_of
from keyed.errors import OutputDefinitionError
from keyed.job.state import _NAME


@attrs.frozen(init=False)
class OutputTag:
    """Names a side output (Flink's `OutputTag`).

    Args:
        name: Matches ``[A-Za-z0-9_-]{1,128}``.
        type: Type of its rows, in any form of ``schema_of``; `None` for the operator's input columns.

    Raises:
        OutputDefinitionError: A bad name or type.
    """

    name: str
    schema: Schema | None

    def __init__(self, name: str, type: Any = None) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise OutputDefinitionError(f"output tag {name!r} must match [A-Za-z0-9_-]{{1,128}}; rename it")
        self.__attrs_init__(name, None if type is None else schema_of(type))
