"""The stream of the matches of a pattern, returned by ``stream.key_by(...).match(pattern)``."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import attrs

from keyed import KeyedStream, Output, OutputTag
from keyed.errors import DefinitionError
from keyed.extending import OperatorOptions, shows_options
from keyed.patterns.automaton import compiled
from keyed.patterns.column_conditions import EvaluatedSteps, column_conditions
from keyed.patterns.pattern_conditions import Look, Match
from keyed.patterns.pattern_functions import PatternProcessFunction, Selecting
from keyed.patterns.pattern_operator import PatternOperator
from keyed.patterns.steps import StepSequence

#: Most partial matches of a key, if the stream does not set it.
MOST_PARTIAL_MATCHES = 10_000


class _Named(TypedDict, total=False):
    output: Any
    name: str | None


class PatternOptions(OperatorOptions, _Named, total=False):
    """Keywords of the methods that build a pattern operator."""


@attrs.frozen(eq=False, repr=False)
class PatternStream:
    """The matches of a pattern in a keyed stream, the result of ``stream.key_by(...).match(pattern)``.

    Rows wait until the watermark has passed them, as with ``order="watermark"`` of `keyed.KeyedStream.process`.

    Attributes:
        stream: The keyed stream.
        pattern: The pattern.
    """

    stream: KeyedStream
    pattern: StepSequence
    _late_tag: OutputTag | None = None
    _bad_tag: OutputTag | None = None
    _timed_out: tuple[OutputTag, Callable[[Match], Any]] | None = None
    _most_partial: int = MOST_PARTIAL_MATCHES
    _order_by: Callable[[Any], Any] | None = None

    def __repr__(self) -> str:
        return f"PatternStream({self.stream!r}, {self.pattern!r})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"

    def side_output_late_data(self, tag: OutputTag | str) -> PatternStream:
        """Emit late rows to the side output ``tag``; by default they are dropped and counted (``rows_dropped``)."""
        return attrs.evolve(self, late_tag=_tag(tag))

    def side_output_timed_out(self, tag: OutputTag | str, select: Callable[[Match], Any]) -> PatternStream:
        """Emit ``select(match)`` of timed-out partial matches to a side output; `None` emits nothing."""
        if not callable(select):
            raise DefinitionError(f"side_output_timed_out: select={select!r} must be a function of the match")
        return attrs.evolve(self, timed_out=(_tag(tag), select))

    def on_bad_row(self, tag: OutputTag | str) -> PatternStream:
        """Emit refused rows to a side output, and count them (``rows_dropped``).

        Without it they fail the query. A row is refused, and changes no partial match, if a condition or ``order_by``
        raises, or if its key would exceed ``most_partial_matches``.
        """
        return attrs.evolve(self, bad_tag=_tag(tag))

    def order_by(self, key: Callable[[Any], Any]) -> PatternStream:
        """Match rows of equal times in the order of a key of the row, such as a number (Flink's `EventComparator`).

        Equal keys keep the order of arrival. A comparison is ``functools.cmp_to_key(compare)``.
        """
        if not callable(key):
            raise DefinitionError(f"order_by({key!r}): give a function of the row")
        return attrs.evolve(self, order_by=key)

    def most_partial_matches(self, count: int) -> PatternStream:
        """Set the limit of partial matches of a key, 10,000 by default."""
        if type(count) is not int or count < 1:
            raise DefinitionError(f"most_partial_matches({count!r}): give a whole number above 0")
        return attrs.evolve(self, most_partial=count)

    @shows_options(PatternOptions, store="memory")
    def select(self, select: Callable[[Match], Any], **options: Unpack[PatternOptions]) -> Output:
        """Emit the result of a function of each `Match`, with the time of its last row.

        `None` emits nothing. Options are those of `KeyedStream.process`: ``output``, ``name`` and others.

        Raises:
            DefinitionError: The pattern breaks a rule, or the stream has no event time.
        """
        if not callable(select):
            raise DefinitionError(f"select({select!r}): give a function of the match")
        return self._build(Selecting(select), **options)

    @shows_options(PatternOptions, store="memory")
    def process(self, function: PatternProcessFunction, **options: Unpack[PatternOptions]) -> Output:
        """Call a function with each match, and each that times out. Options and errors as of ``select``."""
        if not isinstance(function, PatternProcessFunction):
            raise DefinitionError(f"process({function!r}): give an object of a PatternProcessFunction")
        return self._build(function, **options)

    def _build(
        self, function: PatternProcessFunction, *, output: Any = None, name: str | None = None, **options: Any
    ) -> Output:
        stream, columns, conditions = self.stream, None, column_conditions(self.pattern)
        if conditions:
            nothing = Look((), lambda _: {}, dict.fromkeys(conditions, 0))
            columns = EvaluatedSteps(conditions, compiled(self.pattern).ignores_others(nothing))
            stream = stream.prepared(columns, columns.output(stream.columns))
        operator = PatternOperator(
            self.pattern,
            function,
            late_tag=self._late_tag,
            bad_tag=self._bad_tag,
            timed_out=self._timed_out,
            most_partial=self._most_partial,
            order_by=self._order_by,
            columns=columns,
        )
        if isinstance(function, Selecting):
            tags = (self._late_tag, self._bad_tag, None if self._timed_out is None else self._timed_out[0])
            operator.known_side_outputs = tuple(tag.name for tag in tags if tag is not None)
        name = PatternOperator.__name__ if name is None else name
        return stream.process(operator, output, name=name, order="watermark", **options)


def _tag(tag: OutputTag | str) -> OutputTag:
    return tag if isinstance(tag, OutputTag) else OutputTag(tag)
