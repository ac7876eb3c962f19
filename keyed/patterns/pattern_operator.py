"""The pattern operator: a plain `KeyedProcessFunction` that moves the partial matches of a key with each row.

The rows of partial matches share what they have in common (Flink's ``SharedBuffer``). Each row is kept once, under a
number that ascends. A *node* is a row that a step has taken: the step, the row, the node before it, and how many
partial matches and later nodes point to it. Nodes form a tree, so a node determines all rows of a match. A row that
several nodes hold has the number of them in ``uses``.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import attrs

from keyed import Context, KeyedProcessFunction, ListState, MapState, OnTimerContext, OpenContext, OutputTag, ValueState
from keyed.errors import EncodingError, KeyedError, RowError, StateSchemaChanged, UserFunctionError
from keyed.extending import inner_state, table_rows
from keyed.patterns.automaton import Automaton, AutomatonState, Taken, compiled
from keyed.patterns.column_conditions import EvaluatedSteps
from keyed.patterns.pattern_conditions import ConditionFailed, Look, Match
from keyed.patterns.steps import StepSequence, WaitingMatches

Node = tuple[str, int, int | None, int]


class SharedBuffer:
    """The buffer of a key.

    Args:
        rows: The rows by number.
        nodes: The nodes by number.
        uses: The number of nodes of each row that has more than one.
    """

    def __init__(self, rows: MapState[int, Any], nodes: MapState[int, Node], uses: MapState[int, int]) -> None:
        self._rows = rows
        self._nodes = nodes
        self._uses = uses

    def keep(self, number: int, row: Any, uses: int) -> None:
        """Keep a row for a number of nodes."""
        self._rows.put(number, row)
        if uses > 1:
            self._uses.put(number, uses)

    def add(self, node: int, step: str, row: int, before: int | None, references: int) -> None:
        """Add a node; the caller counts it as a reference to the node before it."""
        self._nodes.put(node, (step, row, before, references))

    def refer(self, node: int, more: int) -> None:
        """Add references to a node, or remove them: without any it is removed."""
        following: int | None = node
        while following is not None and more:
            step, row, before, references = self._nodes[following]
            if references + more > 0:
                self._nodes.put(following, (step, row, before, references + more))
                return
            self._nodes.remove(following)
            uses = self._uses.get(row, 1)
            if uses == 1:
                self._rows.remove(row)
            elif uses == 2:
                self._uses.remove(row)
            else:
                self._uses.put(row, uses - 1)
            following, more = before, -1

    def path(self, node: int) -> list[tuple[str, int]]:
        """Return the steps and numbers of the rows of a match."""
        path: list[tuple[str, int]] = []
        following: int | None = node
        while following is not None:
            step, row, following, _ = self._nodes[following]
            path.append((step, row))
        path.reverse()
        return path

    def rows(self, node: int | None) -> dict[str, list[Any]]:
        """Return the rows of a match by step."""
        rows: dict[str, list[Any]] = {}
        for step, number in () if node is None else self.path(node):
            rows.setdefault(step, []).append(self._rows[number])
        return rows


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


_BUT_THE_LAST = slice(-1)
_TIMER, _EQUAL_TIMES = "time-out", "equal times"


@attrs.frozen
class PartialMatch:
    """A partial match, as state tables show it. Times are milliseconds.

    Attributes:
        pattern: The name of the operator.
        step: The step that took its last row.
        awaits: The step that it waits for.
        since: Time of its first row.
        events: Number of its rows.
        times_out: When it times out; `None` without a limit.
        previous: Time of its last row.
        first_row: Number of its first row.
        node: Its last node in the shared buffer.
        state: Its state in the automaton.
    """

    pattern: str
    step: str
    awaits: str
    since: int
    events: int
    times_out: int | None
    previous: int
    first_row: int
    node: int
    state: int


@attrs.frozen
class Standing:
    """All that a key waits for.

    Attributes:
        next_number: The number of the next row, node or partial match.
        timer: When the first partial match times out.
        partial: The numbers of the partial matches, by their first rows.
        complete: The first row and the last node of matches that wait for earlier partial matches, by their first rows.
    """

    next_number: int = 0
    timer: int | None = None
    partial: tuple[int, ...] = ()
    complete: tuple[tuple[int, int], ...] = ()


@attrs.define(eq=False)
class _Moves:
    """The partial matches of a key while a row or a time-out changes them.

    Attributes:
        kept: The number and state of each one that goes on, by first rows, and whether it is to be written.
        dropped: Numbers of those that are no more.
        complete: First row and last node of matches that are to be emitted.
    """

    next_number: int
    kept: list[tuple[int, PartialMatch, bool]] = attrs.field(factory=list)
    dropped: list[int] = attrs.field(factory=list)
    complete: list[tuple[int, int]] = attrs.field(factory=list)

    def number(self) -> int:
        self.next_number += 1
        return self.next_number - 1


#: The number of a partial match, the match, and what a row does to it; of one that begins, only the last.
_Decision = tuple[int | None, PartialMatch | None, list[Taken]]


@attrs.define(eq=False, repr=False, slots=False)
class PatternOperator(KeyedProcessFunction):
    """The function that finds matches (Flink's `CepOperator`), with ``order="watermark"``.

    Args:
        pattern: The pattern.
        function: Gets the matches.
        late_tag: Side output of late rows.
        bad_tag: Side output of refused rows.
        timed_out: Side output of partial matches that time out, and the function that returns its value.
        most_partial: Most partial matches of a key.
        order_by: Returns the place of a row among those of equal times.
        columns: The conditions over columns, whose results are the last column of the rows.
    """

    standing = inner_state(ValueState(Standing), is_shown=False)
    rows = inner_state(MapState(int, object), is_shown=False)
    nodes = inner_state(MapState(int, Node), is_shown=False)
    uses = inner_state(MapState(int, int), is_shown=False)
    equal_times = inner_state(ListState(object), is_shown=False)

    _pattern: StepSequence
    _function: PatternProcessFunction
    _late_tag: OutputTag | None
    _bad_tag: OutputTag | None
    _timed_out: tuple[OutputTag, Callable[[Match], Any]] | None
    _most_partial: int
    _order_by: Callable[[Any], Any] | None = None
    _columns: EvaluatedSteps | None = None

    def __attrs_post_init__(self) -> None:
        pattern, columns = self._pattern, self._columns
        conditions = () if columns is None else columns.conditions
        self._places = {condition: 2 * place for place, condition in enumerate(conditions)}
        #: The classes of rows with the results, and without.
        self._computed: Any = None
        self._row: Any = None
        self._automaton: Automaton = compiled(pattern)
        self._steps = pattern.step_names
        self._strategy = pattern.after_match
        self.partial_matches = inner_state(
            MapState(int, PartialMatch, name="partial_matches"), meaning=_meaning(pattern, columns)
        )
        handler = type(self._function).process_timed_out_match is not PatternProcessFunction.process_timed_out_match
        self._handles_time_outs = self._timed_out is not None or handler

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._pattern!r})"

    def open(self, context: OpenContext) -> None:
        self._name = context.get_task_name()
        self._buffer = SharedBuffer(self.rows, self.nodes, self.uses)
        self._look = Look(self._steps, self._buffer.rows, self._places)
        self._function = copy.copy(self._function)
        self._function.open(context)

    def close(self) -> None:
        self._function.close()

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        if ctx.is_late():
            if self._late_tag is None:
                ctx.drop()
            else:
                ctx.output(self._late_tag, self._plain(value))
            return None
        time = ctx.timestamp()
        if self._order_by is None:
            return self._match(value, time, ctx)
        self.equal_times.add(value)
        ctx.timer_service().set_timer(_EQUAL_TIMES, time)
        return None

    def _match(self, value: Any, time: int, ctx: Context) -> list[Any]:
        """Move the partial matches with a row; return the outputs."""
        if self._columns is not None:
            self._look.columns = value[-1]
            value = self._plain(value)
        standing = self.standing.value()
        outputs: list[Any] = []
        if standing is not None and standing.timer is not None and standing.timer <= time:
            standing = self._advance(standing, time, ctx, outputs)
        look = self._look
        look.start(value, time)
        try:
            begun = self._automaton.outcomes(self._automaton.start, look)
            if standing is None and not begun:
                return outputs
            decided = [*self._decide(standing, look), (None, None, begun)]
        except ConditionFailed as failed:
            text = f"{failed} (in the pattern: {self._pattern})"
            self._refuse(value, UserFunctionError, text, ctx, failed.__cause__)
            return outputs
        count = sum(1 for _, _, outcomes in decided for each in outcomes if each.target.kind in ("normal", "pending"))
        if count > self._most_partial:
            text = (
                f"the row would take the key to {count} partial matches, and the limit is {self._most_partial}: "
                "each row that a step with followed_by_any or allow_combinations takes adds to them; use "
                "followed_by, a shorter within, or most_partial_matches(...)"
            )
            self._refuse(value, RowError, text, ctx)
            return outputs
        moves = _Moves(0 if standing is None else standing.next_number)
        self._apply(moves, decided, value, time)
        self._finish(standing, moves, time, ctx, outputs)
        return outputs

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        outputs: list[Any] = []
        if ctx.timer_name() == _EQUAL_TIMES:
            for row in self._sort_rows(ctx):
                outputs += self._match(row, timestamp, ctx)
            return outputs
        standing = self.standing.value()
        if standing is not None:
            self._advance(standing, timestamp, ctx, outputs)
        return outputs

    def _plain(self, row: Any) -> Any:
        """Return a row without the results of conditions over columns."""
        if self._columns is None:
            return row
        if type(row) is not self._computed:
            *names, last = type(row)._fields
            if last != self._columns.column:
                raise StateSchemaChanged(
                    "a row has waited for the watermark since the pattern had other conditions over columns: run it "
                    "with these until no row waits (counter rows_held), or start with a new checkpoint"
                )
            import pyarrow as pa

            (empty,) = table_rows(pa.table({name: [None] for name in names}))
            self._computed, self._row = type(row), type(empty)
        return self._row(tuple.__getitem__(row, _BUT_THE_LAST))

    def _sort_rows(self, ctx: Context) -> list[Any]:
        """Return the rows of equal times that waited, in order."""
        assert self._order_by is not None
        places: list[tuple[Any, Any]] = []
        for row in self.equal_times.get():
            try:
                places.append((self._order_by(self._plain(row)), row))
            except Exception as error:  # noqa: BLE001  # the function is the user's
                text = f"order_by raised {type(error).__name__}: {error}"
                self._refuse(self._plain(row), UserFunctionError, text, ctx, error)
        self.equal_times.clear()
        try:
            places.sort(key=itemgetter(0))
        except Exception as error:
            raise UserFunctionError(f"order_by: its results for rows of a time cannot be compared: {error}") from error
        return [row for _, row in places]

    def _refuse(
        self, row: Any, kind: type[KeyedError], text: str, ctx: Context, cause: BaseException | None = None
    ) -> None:
        """Divert and count a row, or raise."""
        if self._bad_tag is None:
            # The timer that matches rows of equal times does not name the row.
            raise kind(text if self._order_by is None else f"{text}; the row is {row!r:.200}") from cause
        ctx.output(self._bad_tag, row)
        ctx.drop()

    def _decide(self, standing: Standing | None, look: Look) -> list[_Decision]:
        """Return what a row does to each partial match. Nothing is changed."""
        automaton, partial = self._automaton, self.partial_matches
        decided: list[_Decision] = []
        for number in () if standing is None else standing.partial:
            run = partial[number]
            look.enter(run.node, look.timestamp - run.previous)
            decided.append((number, run, automaton.outcomes(automaton.states[run.state], look)))
        return decided

    def _apply(self, moves: _Moves, decided: list[_Decision], value: Any, time: int) -> None:
        """Move the partial matches with a row, in the order of their first rows."""
        buffer = self._buffer
        row, nodes = -1, 0
        for number, run, outcomes in decided:
            if run is not None and len(outcomes) == 1:
                (only,) = outcomes
                if only.step is None and only.target.number == run.state:
                    assert number is not None
                    moves.kept.append((number, run, False))
                    continue
            stops = any(each.target.kind == "stop" for each in outcomes)
            free, references = number, -1
            for each in outcomes:
                if each.target.kind == "stop":
                    continue
                goes_on = each.target.kind != "final"
                completes = each.completes or not goes_on
                goes_on = goes_on and not stops
                if not goes_on and not completes:
                    continue
                if each.step is None:
                    assert run is not None
                    node, moved = run.node, run
                    references += goes_on + completes
                else:
                    if row < 0:
                        row = moves.number()
                    node = moves.number()
                    before = None if run is None else run.node
                    buffer.add(node, each.step, row, before, goes_on + completes)
                    nodes += 1
                    references += 1
                    since, first = (time, row) if run is None else (run.since, run.first_row)
                    events = 1 if run is None else run.events + 1
                    moved = PartialMatch(self._name, each.step, "", since, events, None, time, first, node, 0)
                if completes:
                    moves.complete.append((moved.first_row, node))
                if goes_on:
                    kept = moves.number() if free is None else free
                    moves.kept.append((kept, self._waiting(moved, each.target), True))
                    free = None
            if run is not None:
                if free is not None:
                    moves.dropped.append(free)
                buffer.refer(run.node, references)
        if nodes:
            try:
                buffer.keep(row, value, nodes)
            except EncodingError as error:
                raise EncodingError(
                    f"the rows of a pattern are kept in state as plain data, and {value!r:.200} cannot be: {error}; "
                    "map them to rows first: stream.map(lambda row: ..., output='card string, amount double')"
                ) from error

    def _waiting(self, run: PartialMatch, state: AutomatonState) -> PartialMatch:
        times_out = self._automaton.times_out(state, run.since, run.previous)
        return PartialMatch(
            *(run.pattern, run.step, state.step, run.since, run.events, times_out, run.previous),
            *(run.first_row, run.node, state.number),
        )

    def _advance(self, standing: Standing, time: int, ctx: Context, outputs: list[Any]) -> Standing | None:
        """Remove the partial matches that have timed out; return the rest."""
        moves = _Moves(standing.next_number)
        for number in standing.partial:
            run = self.partial_matches[number]
            if run.times_out is None or run.times_out > time:
                moves.kept.append((number, run, False))
                continue
            moves.dropped.append(number)
            if self._automaton.states[run.state].ends_match:
                moves.complete.append((run.first_row, run.node))
                continue
            if self._handles_time_outs:
                match = Match(self._buffer.rows(run.node), self._steps, time)
                outputs += self._function.process_timed_out_match(match, PatternContext(ctx)) or ()
                if self._timed_out is not None:
                    tag, select = self._timed_out
                    selected = select(match)
                    if selected is not None:
                        ctx.output(tag, selected)
            self._buffer.refer(run.node, -1)
        return self._finish(standing, moves, time, ctx, outputs)

    def _finish(
        self, standing: Standing | None, moves: _Moves, time: int, ctx: Context, outputs: list[Any]
    ) -> Standing | None:
        """Emit the matches, and store what goes on."""
        before = standing or Standing()
        complete: Sequence[tuple[int, int]] = before.complete
        if complete or moves.complete:
            complete = self._emit(complete, moves, time, ctx, outputs)
        for number in moves.dropped:
            self.partial_matches.remove(number)
        timer: int | None = None
        for number, run, is_changed in moves.kept:
            if is_changed:
                self.partial_matches.put(number, run)
            if run.times_out is not None and (timer is None or run.times_out < timer):
                timer = run.times_out
        if timer != before.timer:
            if timer is None:
                ctx.timer_service().cancel_timer(_TIMER)
            else:
                ctx.timer_service().set_timer(_TIMER, timer)
        if not moves.kept and not complete:
            if standing is not None:
                self.standing.clear()
            return None
        after = Standing(moves.next_number, timer, tuple(number for number, _, _ in moves.kept), tuple(complete))
        if after != standing:
            self.standing.update(after)
        return after

    def _emit(
        self, before: Iterable[tuple[int, int]], moves: _Moves, time: int, ctx: Context, outputs: list[Any]
    ) -> list[tuple[int, int]]:
        """Emit the matches that no earlier partial match holds back; return the others."""
        strategy, buffer, context = self._strategy, self._buffer, PatternContext(ctx)
        waiting = WaitingMatches(before)
        for each in moves.complete:
            waiting.push(each)
        while waiting.heap:
            if strategy.skips and moves.kept and moves.kept[0][1].first_row < waiting.heap[0][0]:
                break
            _, node = waiting.pop()
            if strategy.skips:
                oldest = strategy.oldest_kept(buffer.path(node))
                self._prune(oldest, moves)
                for dropped in waiting.drop_before(oldest):
                    buffer.refer(dropped, -1)
            match = Match(buffer.rows(node), self._steps, time)
            outputs += self._function.process_match(match, context) or ()
            buffer.refer(node, -1)
        return waiting.heap

    def _prune(self, oldest: int, moves: _Moves) -> None:
        """Drop partial matches that began before a row."""
        kept = []
        for number, run, is_changed in moves.kept:
            if run.first_row >= oldest:
                kept.append((number, run, is_changed))
                continue
            moves.dropped.append(number)
            self._buffer.refer(run.node, -1)
        moves.kept = kept


def _meaning(pattern: StepSequence, columns: EvaluatedSteps | None) -> dict[str, str]:
    """Return the parts of a pattern on which its state depends, as text."""
    steps = {f"step {step.name!r}": str(step) for step in pattern.steps}
    others = {"order of steps": ", ".join(pattern.step_names), "time limit": f"{pattern.within_ms} ms"}
    return {**steps, **others, "strategy after a match": repr(pattern.after_match), "conditions": str(columns)}
