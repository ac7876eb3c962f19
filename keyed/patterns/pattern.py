"""`Pattern`: the definition of a sequence of rows, step by step, and the stream of its matches."""

from __future__ import annotations

import html
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypedDict, Unpack

import attrs

from keyed import KeyedStream, Output, OutputTag
from keyed.errors import DefinitionError
from keyed.extending import OperatorOptions, Units, duration_of, milliseconds_of, shows_options, shows_units
from keyed.patterns.automaton import compiled
from keyed.patterns.column_conditions import EvaluatedSteps, column_conditions
from keyed.patterns.pattern_conditions import Look, Match, Where, both, condition_of, either, subtype_of
from keyed.patterns.pattern_operator import PatternOperator, PatternProcessFunction, Selecting
from keyed.patterns.steps import AfterMatchSkipStrategy, Contiguity, Step, StepSequence, check_pattern

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


Duration = int | timedelta


@attrs.frozen(eq=False, repr=False)
class Pattern(StepSequence):
    """A sequence of rows of one key (Flink's `Pattern`): each method returns a new pattern.

    A step is a name, or a group: a pattern in its place. A condition ``where`` is a function of the row, or of the row
    and the `Match` so far; or over columns: a DuckDB expression as text, or `OverColumns`. Quantifiers and conditions
    apply to the last step.
    """

    def __repr__(self) -> str:
        return f"Pattern({self})"

    @classmethod
    def begin(
        cls, step: str | Pattern, where: Where | None = None, *, after_match: AfterMatchSkipStrategy | None = None
    ) -> Pattern:
        """Begin a pattern.

        Args:
            step: The first step.
            where: The condition on its rows.
            after_match: The other matches that a match drops; by default none.

        Raises:
            DefinitionError: A name or condition breaks a rule.
        """
        if after_match is not None and not isinstance(after_match, AfterMatchSkipStrategy):
            raise DefinitionError(f"after_match={after_match!r}: give an AfterMatchSkipStrategy")
        pattern = cls((), after_match or AfterMatchSkipStrategy.no_skip())
        return pattern._then("next", step, where)

    def next(self, step: str | Pattern, where: Where | None = None) -> Pattern:
        """Add a step whose row comes directly after the one before."""
        return self._then("next", step, where)

    def followed_by(self, step: str | Pattern, where: Where | None = None) -> Pattern:
        """Add a step whose row comes later; rows that do not match are skipped."""
        return self._then("followed_by", step, where)

    def followed_by_any(self, step: str | Pattern, where: Where | None = None) -> Pattern:
        """Add a step whose row comes later; rows that match may be skipped too, so each makes a match."""
        return self._then("followed_by_any", step, where)

    def not_next(self, step: str, where: Where | None = None) -> Pattern:
        """Add a step that must not match the row directly after the one before."""
        return self._then("not_next", step, where)

    def not_followed_by(self, step: str, where: Where | None = None) -> Pattern:
        """Add a step that must match no row until the next step; at the end, until the time of ``within``."""
        return self._then("not_followed_by", step, where)

    def where(self, condition: Where) -> Pattern:
        """Add a condition to those of the last step."""
        step = self._condition_step("where")
        return self._last(condition=both(step.condition, condition_of(condition, step.name, "where")))

    def or_where(self, condition: Where) -> Pattern:
        """Accept rows that satisfy a condition instead (Flink's ``or``)."""
        step = self._condition_step("or_where")
        return self._last(condition=either(step.condition, condition_of(condition, step.name, "or_where")))

    def subtype(self, cls: type) -> Pattern:
        """Require rows of a class of plain data, such as `str` or ``dict``."""
        step = self._condition_step("subtype")
        return self._last(condition=both(step.condition, subtype_of(cls)))

    def until(self, condition: Where) -> Pattern:
        """End the loop with a row that satisfies a condition and is not part of it."""
        step = self.steps[-1]
        if not step.is_loop or step.until is not None:
            raise self._refusal("until", "it ends a loop without upper bound, and is given once")
        return self._last(until=condition_of(condition, step.name, "until"))

    def times(self, least: int, most: int | None = None, *, within: Duration | None = None) -> Pattern:
        """Repeat the last step ``least`` times, or ``least`` to ``most`` times; 0 makes it optional.

        With ``within``, milliseconds or a `timedelta`, each row follows the one before in the loop within that time.

        Raises:
            DefinitionError: The numbers are out of order, or the step has a quantifier.
        """
        most = least if most is None else most
        if not all(type(number) is int for number in (least, most)) or not 0 <= least <= most or most < 1:
            raise self._refusal("times", f"{least!r} to {most!r} must be whole numbers, in order, the last above 0")
        pattern = self._repeat("times", max(least, 1), most, within)
        return pattern if least else pattern.optional()

    def times_or_more(self, least: int, *, within: Duration | None = None) -> Pattern:
        """Repeat the last step at least ``least`` times."""
        if type(least) is not int or least < 1:
            raise self._refusal("times_or_more", f"{least!r} must be a whole number above 0")
        return self._repeat("times_or_more", least, None, within)

    def one_or_more(self, *, within: Duration | None = None) -> Pattern:
        """Repeat the last step at least once."""
        return self._repeat("one_or_more", 1, None, within)

    def optional(self) -> Pattern:
        """Match without the last step, too."""
        step = self.steps[-1]
        if step.is_negative or step.is_optional:
            raise self._refusal("optional", "it applies once, and to a step that may occur")
        if len(self.steps) > 1 and self.steps[-2].is_greedy:
            raise self._refusal("optional", f"the step before it, {self.steps[-2].name!r}, is greedy")
        return self._last(is_optional=True)

    def greedy(self) -> Pattern:
        """Let the loop take as many rows as possible."""
        step = self.steps[-1]
        if step.group is not None or not step.is_quantified or step.inner == "followed_by_any":
            raise self._refusal("greedy", "it applies to a loop of one step, without allow_combinations")
        return self._last(is_greedy=True)

    def consecutive(self) -> Pattern:
        """Let the loop's rows follow each other directly, as with ``next``."""
        return self._inner("consecutive", "next")

    def allow_combinations(self) -> Pattern:
        """Let the loop skip rows that match, as with ``followed_by_any``."""
        return self._inner("allow_combinations", "followed_by_any")

    @shows_units
    def within(
        self, duration: Duration | None = None, *, since: Literal["first", "previous"] = "first", **units: Unpack[Units]
    ) -> Pattern:
        """Limit the time of a match; a partial match that exceeds it times out.

        ``since="first"`` limits the whole from its first row (the shortest of several limits counts); ``"previous"``
        the time between each row of the last step and the row before it; of a group, the first row of each repetition.

        Raises:
            DefinitionError: It is below 1 ms, or given twice.
        """
        time = duration_of(duration, "within", least=1, **units)
        if since == "previous":
            if len(self.steps) == 1 and not self.steps[0].is_quantified:
                raise self._refusal("within", "since='previous': no row comes before the first step")
            return self._last(since_previous_ms=time)
        if since != "first":
            raise DefinitionError(f"within: since={since!r} must be 'first' or 'previous'")
        return attrs.evolve(self, limit_ms=time if self._limit_ms is None else min(time, self._limit_ms))

    def matched(self, stream: KeyedStream) -> PatternStream:
        """Find the pattern in a stream; called by ``stream.match(pattern)``.

        Raises:
            DefinitionError: The pattern can never match, its state would have no bound, or it breaks another rule.
        """
        check_pattern(self)
        return PatternStream(stream, self)

    def _then(self, contiguity: Contiguity, step: str | Pattern, where: Where | None) -> Pattern:
        if self.steps and self.steps[-1].is_optional and contiguity.startswith("not_"):
            raise DefinitionError(
                f"{contiguity}({step!r}) after the optional step {self.steps[-1].name!r} is not defined; use two "
                "patterns, with and without the optional step"
            )
        if isinstance(step, Pattern):
            if contiguity.startswith("not_") or where is not None:
                raise DefinitionError(f"{contiguity}: a group takes no condition, and may not be negative")
            group = Step(name="-".join(step.step_names), contiguity=contiguity, group=step)
            return attrs.evolve(self, steps=(*self.steps, group))
        if not isinstance(step, str) or not step:
            call = contiguity if self.steps else "begin"
            raise DefinitionError(f"{call}: the step {step!r} needs a name, as in {call}('small')")
        condition = None if where is None else condition_of(where, step, "where")
        return attrs.evolve(self, steps=(*self.steps, Step(name=step, contiguity=contiguity, condition=condition)))

    def _last(self, **changes: Any) -> Pattern:
        return attrs.evolve(self, steps=(*self.steps[:-1], attrs.evolve(self.steps[-1], **changes)))

    def _condition_step(self, method: str) -> Step:
        step = self.steps[-1]
        if step.group is not None:
            raise self._refusal(method, "a group has no condition; give it to a step of the group")
        return step

    def _repeat(self, method: str, least: int, most: int | None, within: Duration | None) -> Pattern:
        step = self.steps[-1]
        if step.is_negative or step.is_quantified:
            raise self._refusal(method, "it applies once, and to a step that may occur")
        loop_ms = None if within is None else milliseconds_of(within, "within", least=1)
        return self._last(least=least, most=most, is_quantified=True, loop_ms=loop_ms)

    def _inner(self, method: str, inner: Contiguity) -> Pattern:
        step = self.steps[-1]
        if not step.is_quantified or step.inner != "followed_by":
            raise self._refusal(method, "it applies to a loop, once, and not beside its opposite")
        if step.is_greedy and inner == "followed_by_any":
            raise self._refusal(method, "the step is greedy")
        return self._last(inner=inner)

    def _refusal(self, method: str, rule: str) -> DefinitionError:
        return DefinitionError(f"{method} of step {self.steps[-1].name!r}: {rule}")
