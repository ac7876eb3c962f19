"""`PatternProcessFunction`, which gets the matches of a pattern, and its context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from keyed import Context, OpenContext, OutputTag
from keyed.patterns.pattern_conditions import Match


@attrs.frozen
class PatternContext:
    """Context of a `PatternProcessFunction`."""

    _ctx: Context

    def timestamp(self) -> int:
        """Return the time of the match's last row, or of its time-out, in milliseconds."""
        time: int = self._ctx.timestamp()
        return time

    def get_current_key(self) -> Any:
        """Return the key."""
        return self._ctx.get_current_key()

    def current_processing_time(self) -> int:
        """Return the processing time of this micro-batch."""
        return self._ctx.timer_service().current_processing_time()

    def output(self, tag: OutputTag | str, value: Any) -> None:
        """Emit ``value`` to the side output ``tag``."""
        self._ctx.output(tag, value)


class PatternProcessFunction:
    """Emits the outputs of the matches of a pattern (Flink's ``PatternProcessFunction``)."""

    def open(self, context: OpenContext) -> None:
        """Prepare, as in a `keyed.KeyedProcessFunction`."""

    def process_match(self, match: Match, ctx: PatternContext) -> Iterable[Any] | None:
        """Yield any number of outputs of a match."""
        raise NotImplementedError

    def process_timed_out_match(self, match: Match, ctx: PatternContext) -> Iterable[Any] | None:
        """Yield outputs of a partial match that timed out (Flink's `TimedOutPartialMatchHandler`)."""
        return None

    def close(self) -> None:
        """Release what `open` took."""


@attrs.define(eq=False)
class Selecting(PatternProcessFunction):
    """Emits the result of a function for each match.

    Args:
        select: Returns the output of a match; ``None`` emits nothing.
    """

    select: Callable[[Match], Any]

    def process_match(self, match: Match, ctx: PatternContext) -> Iterable[Any]:
        """See `PatternProcessFunction`."""
        selected = self.select(match)
        return () if selected is None else (selected,)
