"""The automaton of a pattern: states, their transitions, and which of them a row takes.

Compiled as Flink's ``NFACompiler`` does, from the last step to the first, so that results are Flink's. One thing is
simpler: a partial match points to its last row in a tree of rows, and needs no version (Flink's ``DeweyNumber``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import attrs

from keyed.errors import DefinitionError
from keyed.patterns.pattern_conditions import ALWAYS, Condition, ConditionFailed, Look, both, in_time, negated
from keyed.patterns.steps import Contiguity, Step, StepSequence

#: A condition, or one that may be missing.
_C = TypeVar("_C", Condition, Condition | None)
Kind = Literal["normal", "final", "stop", "pending"]
#: A row is taken for the step, ignored, or tested in the target at once.
Action = Literal["take", "ignore", "proceed"]


@attrs.define(eq=False)
class Edge:
    """A transition to another state, by its number in the automaton."""

    action: Action
    target: int
    condition: Condition


@attrs.define(eq=False)
class AutomatonState:
    """A state: what a partial match waits for.

    Attributes:
        number: Its number in the automaton.
        step: The step whose row it takes.
        kind: A row that reaches a final state completes a match, one that reaches a stop state ends the partial match.
            A partial match that waits in a pending state, or in one before it, is complete when it times out.
        edges: Its transitions, in the order in which they are tried.
        since_previous_ms: Time within which it takes a row, since the row before it.
        waits_ms: Time that a partial match may wait in it, since its last row: until no step can follow.
        ends_match: True if a partial match that times out in it is complete.
    """

    number: int
    step: str
    kind: Kind
    edges: list[Edge] = attrs.field(factory=list)
    since_previous_ms: int | None = None
    waits_ms: int | None = None
    ends_match: bool = False

    @property
    def stays(self) -> bool:
        """True if it takes or ignores rows, and does not only lead to others."""
        return any(edge.action != "proceed" for edge in self.edges)


@attrs.frozen
class Taken:
    """An outcome of a row for a partial match.

    Attributes:
        step: The step that took the row; ``None`` if the row was ignored.
        target: The state after it.
        completes: True if the row also completes a match.
    """

    step: str | None
    target: AutomatonState
    completes: bool = False


@attrs.frozen(eq=False)
class Automaton:
    """The states of a pattern.

    Attributes:
        states: All states.
        start: The state before the first row.
        within_ms: Time of a whole match.
    """

    states: tuple[AutomatonState, ...]
    start: AutomatonState
    within_ms: int | None

    def outcomes(self, state: AutomatonState, look: Look) -> list[Taken]:
        """Return what a row does to a partial match. Nothing is changed."""
        outcomes: list[Taken] = []
        stack = [state]
        while stack:
            current = stack.pop()
            for edge in current.edges:
                if edge.condition is ALWAYS or edge.condition.holds(look):
                    target = self.states[edge.target]
                    if edge.action == "proceed":
                        stack.append(target)
                    elif edge.action == "take":
                        if _is_in_time(look, current.since_previous_ms):
                            outcomes.append(Taken(current.step, target, self._completes(target, look)))
                    elif state is not self.start and _is_in_time(look, target.waits_ms):
                        outcomes.append(Taken(None, target))
        return outcomes

    def _completes(self, state: AutomatonState, look: Look) -> bool:
        """Return whether the steps after a row that was taken are all optional."""
        stack = [state]
        while stack:
            for edge in stack.pop().edges:
                if edge.action == "proceed" and (edge.condition is ALWAYS or edge.condition.holds(look)):
                    target = self.states[edge.target]
                    if target.kind == "final":
                        return True
                    stack.append(target)
        return False

    def ignores_others(self, look: Look) -> bool:
        """Return whether a row that satisfies no condition changes nothing, whatever a key waits for.

        Args:
            look: A row for which conditions over columns are false, and for which no function can be called.
        """
        stack, seen = [self.start], {self.start.number}
        try:
            while stack:
                state = stack.pop()
                outcomes = self.outcomes(state, look)
                if outcomes != ([] if state is self.start else [Taken(None, state)]):
                    return False
                for each in self.reached(state):
                    for edge in each.edges:
                        target = self.states[edge.target]
                        waits = edge.action != "proceed" and target.kind in ("normal", "pending")
                        if waits and target.number not in seen:
                            seen.add(target.number)
                            stack.append(target)
        except (ConditionFailed, AttributeError):
            # A function was called, or the class of the row is needed: there is no row.
            return False
        return True

    def reached(self, state: AutomatonState) -> list[AutomatonState]:
        """Return a state, and those that are tested together with it."""
        reached = [state]
        for each in reached:
            for edge in each.edges:
                target = self.states[edge.target]
                if edge.action == "proceed" and target not in reached:
                    reached.append(target)
        return reached

    def times_out(self, state: AutomatonState, since: int, previous: int) -> int | None:
        """Return when a partial match times out that waits in a state; ``None`` if it may wait forever.

        Args:
            state: The state.
            since: Time of its first row.
            previous: Time of its last row.
        """
        if state.waits_ms is None:
            return None if self.within_ms is None else since + self.within_ms
        time = previous + state.waits_ms
        return time if self.within_ms is None else min(time, since + self.within_ms)


def compiled(pattern: StepSequence) -> Automaton:
    """Return the automaton of a pattern.

    Raises:
        DefinitionError: A loop could repeat without a row.
    """
    compiler = _Compiler()
    start = compiler.compile(pattern)
    automaton = Automaton(tuple(compiler.states), start, pattern.within_ms)
    _check_loops(automaton)
    for state in automaton.states:
        reached = automaton.reached(state)
        state.ends_match = any(each.kind == "pending" for each in reached)
        limits = [each.since_previous_ms for each in reached if each.kind != "stop" and each.stays]
        state.waits_ms = max((limit for limit in limits if limit is not None), default=None)
        if None in limits:
            state.waits_ms = None
    return automaton


def _check_loops(automaton: Automaton) -> None:
    """Check that no state leads to itself without a row."""
    open_states: set[int] = set()
    checked: set[int] = set()
    for first in range(len(automaton.states)):
        stack = [(first, False)]
        while stack:
            number, is_left = stack.pop()
            if is_left:
                open_states.discard(number)
                checked.add(number)
            elif number not in checked:
                open_states.add(number)
                stack.append((number, True))
                for edge in automaton.states[number].edges:
                    if edge.action == "proceed":
                        if edge.target in open_states:
                            raise DefinitionError(
                                f"every step of the group of {automaton.states[number].step!r} is optional, so its "
                                "loop could repeat without a row; let one of them occur"
                            )
                        stack.append((edge.target, False))


class _Compiler:
    """Creates the states of a pattern, as Flink's ``NFAFactoryCompiler``. The names of its methods are Flink's."""

    def __init__(self) -> None:
        self.states: list[AutomatonState] = []
        self._stops: dict[str, AutomatonState] = {}
        #: Whether the first repetition of a group is compiled.
        self._first_of_loop: dict[Step, bool] = {}
        self._group: Step | None = None
        self._steps: Sequence[Step] = ()
        self._at = 0
        self._work: Step | None = None
        #: Whether the states that are created wait for a further row of a loop.
        self._inside_loop = False
        #: Whether the group may end before the repetition that is compiled.
        self._may_end = False

    def compile(self, pattern: StepSequence) -> AutomatonState:
        self._steps, self._at = pattern.steps, len(pattern.steps) - 1
        sink = self._state("final", "")
        return self._convert(self._middle(sink))

    @property
    def _step(self) -> Step:
        return self._steps[self._at]

    def _state(self, kind: Kind, step: str) -> AutomatonState:
        state = AutomatonState(len(self.states), step, kind)
        self.states.append(state)
        return state

    def _waiting(self, kind: Kind = "normal") -> AutomatonState:
        """Create a state that waits for a row of the current step."""
        step = self._step
        state = self._state(kind, step.name)
        times = [step.since_previous_ms]
        if self._inside_loop:
            times.append(step.loop_ms)
        group = self._group
        if group is not None and self._at == 0 and not self._inside_loop:
            # The first row of a group follows the row before the group.
            is_first = self._first_of_loop.get(group, True)
            times += [group.since_previous_ms, None if is_first else group.loop_ms]
        state.since_previous_ms = min((time for time in times if time is not None), default=None)
        return state

    def _middle(self, sink: AutomatonState) -> AutomatonState:
        """Create the states of the steps from the current one back to the second; the first becomes the current one."""
        while self._at > 0:
            step = self._step
            if step.contiguity == "not_followed_by":
                # It becomes conditions of the steps around it; at the end, the state that waits for the time-out.
                if self.states[sink.number].kind == "final" and self._group is None:
                    waiting = self._waiting("pending")
                    condition = self._take_condition(step)
                    _add(waiting, "proceed", self._stop(condition, step.name), condition)
                    _add(waiting, "ignore", waiting, negated(condition))
                    sink = waiting
            elif step.contiguity == "not_next":
                waiting = self._waiting()
                condition = self._take_condition(step)
                # At the end, a row has to come that does not match.
                _add(waiting, "ignore" if sink.kind == "final" else "proceed", sink, negated(condition))
                _add(waiting, "proceed", self._stop(condition, step.name), condition)
                sink = waiting
            else:
                sink = self._convert(sink)
            self._work = step
            self._at -= 1
        return sink

    def _convert(self, sink: AutomatonState) -> AutomatonState:
        """Create the states of the current step; return the first of them."""
        step = self._step
        if step.is_loop:
            self._set_first_of_loop(is_first=False)
            looping = self._looping(self._without_transitive_nots(sink))
            self._set_first_of_loop(is_first=True)
            state = self._times(looping, sink, step.least, step.least)
        else:
            assert step.most is not None
            state = self._times(sink, sink, step.least, step.most)
        self._add_stops(state)
        return state

    def _times(self, sink: AutomatonState, proceed: AutomatonState, least: int, most: int) -> AutomatonState:
        """Create the states of a number of rows, which may be 1; ``proceed`` is the state after them."""
        step = self._step
        self._set_first_of_loop(is_first=False)
        ignore = _unless(step.until, self._inner_ignore_condition())
        take = _unless(step.until, self._take_condition(step))
        last = sink
        if step.is_greedy and least != most:
            self._restrict(sink)
        self._inside_loop, was = True, self._inside_loop
        for number in range(most - 1):
            may_end = number < most - least
            last = self._singleton(last, proceed, take, ignore, is_optional=may_end)
            self._add_stop_to_loop(last)
        self._inside_loop = was
        self._set_first_of_loop(is_first=True)
        return self._singleton(last, proceed, take, self._ignore_condition(), is_optional=step.is_optional)

    def _singleton(
        self,
        sink: AutomatonState,
        proceed: AutomatonState,
        take: Condition,
        ignore: Condition | None,
        *,
        is_optional: bool,
    ) -> AutomatonState:
        """Create the state of one row, or those of a repetition of a group."""
        step = self._step
        if step.group is not None:
            first = self._of_group(step, sink, may_end=is_optional)
            if is_optional:
                _add(first, "proceed", proceed, self._always())
            return first
        state = self._waiting()
        after = self._without_transitive_nots(sink)
        _add(state, "take", after, take)
        if is_optional:
            _add(state, "proceed", proceed, self._always())
        if ignore is not None:
            waiting = state
            if is_optional or (self._at == 0 and self._may_end):
                # Once a row was ignored, the step or the group that it begins is not optional any more.
                waiting = self._waiting()
                _add(waiting, "take", after, take)
                _add(waiting, "ignore", waiting, ignore)
                self._add_stops(waiting)
            _add(state, "ignore", waiting, ignore)
        return state

    def _of_group(self, group: Step, sink: AutomatonState, *, may_end: bool) -> AutomatonState:
        assert group.group is not None
        outer = (self._steps, self._at, self._work, self._group, self._inside_loop, self._may_end)
        steps = group.group.steps
        self._may_end = may_end or (self._at == 0 and self._may_end)
        self._steps, self._at, self._group, self._inside_loop = steps, len(steps) - 1, group, False
        first = self._convert(self._middle(sink))
        self._steps, self._at, self._work, self._group, self._inside_loop, self._may_end = outer
        return first

    def _looping(self, sink: AutomatonState) -> AutomatonState:
        """Create the states of any number of further rows."""
        step = self._step
        if step.group is not None:
            again = self._state("normal", step.name)
            always = self._always()
            first = self._of_group(step, again, may_end=True)
            _add(first, "proceed", sink, always)
            _add(again, "proceed", first, always)
            return first
        ignore = _unless(step.until, self._inner_ignore_condition())
        take = _unless(step.until, self._take_condition(step))
        self._inside_loop, was = True, self._inside_loop
        state = self._waiting()
        if step.is_greedy:
            self._restrict(sink)
        _add(state, "proceed", sink, self._always())
        _add(state, "take", state, take)
        self._add_stop_to_loop(state)
        if ignore is not None:
            waiting = self._waiting()
            _add(waiting, "take", state, take)
            _add(waiting, "ignore", waiting, ignore)
            _add(state, "ignore", waiting, ignore)
            self._add_stop_to_loop(waiting)
        self._inside_loop = was
        return state

    def _restrict(self, state: AutomatonState) -> None:
        """Let a state after a greedy loop accept only rows that the loop does not take, until the loop has ended."""
        step = self._step
        limit_ms = min((time for time in (step.since_previous_ms, step.loop_ms) if time is not None), default=None)
        take = in_time(self._take_condition(step), limit_ms)
        ended = None if step.until is None else self._copy(state)
        for edge in state.edges:
            edge.condition = both(_unless(step.until, edge.condition), negated(take))
        if ended is not None:
            assert step.until is not None
            _add(state, "proceed", ended, step.until)

    def _copy(self, state: AutomatonState) -> AutomatonState:
        copied = self._state(state.kind, state.step)
        copied.since_previous_ms = state.since_previous_ms
        for edge in state.edges:
            target = copied.number if edge.target == state.number else edge.target
            copied.edges.append(Edge(edge.action, target, edge.condition))
        return copied

    def _current_nots(self) -> list[tuple[Condition, str]]:
        """Return the negative steps that hold before the current step: directly, or before optional steps."""
        conditions: list[tuple[Condition, str]] = []
        for step in reversed(self._steps[: self._at]):
            if step.contiguity == "not_followed_by":
                conditions.append((self._take_condition(step), step.name))
            elif not step.is_optional:
                break
        return conditions

    def _without_transitive_nots(self, sink: AutomatonState) -> AutomatonState:
        """Return a state after an optional step that took a row: negative steps before it no longer hold."""
        nots = self._current_nots()
        if not nots or not self._step.is_optional:
            return sink
        names = {name for _, name in nots}
        copied = self._state(sink.kind, sink.step)
        copied.since_previous_ms = sink.since_previous_ms
        for edge in sink.edges:
            target = self.states[edge.target]
            if edge.action != "proceed":
                target = copied if target is sink else target
            elif target.kind == "stop":
                if target.step in names:
                    continue
            else:
                target = self._without_transitive_nots(target)
            _add(copied, edge.action, target, edge.condition)
        return copied

    def _stop(self, condition: Condition, name: str) -> AutomatonState:
        """Return the state that ends a partial match by a negative step: one for each."""
        state = self._stops.get(name)
        if state is None:
            state = self._stops[name] = self._state("stop", name)
            _add(state, "take", state, condition)
        return state

    def _add_stops(self, state: AutomatonState) -> None:
        for condition, name in self._current_nots():
            _add(state, "proceed", self._stop(condition, name), condition)

    def _add_stop_to_loop(self, state: AutomatonState) -> None:
        following = self._work
        if following is not None and following.contiguity == "not_followed_by":
            condition = self._take_condition(following)
            _add(state, "proceed", self._stop(condition, following.name), condition)

    def _set_first_of_loop(self, *, is_first: bool) -> None:
        if self._step.group is not None:
            self._first_of_loop[self._step] = is_first

    def _before_end(self, condition: Condition) -> Condition:
        """Return a condition that holds until the loop of the group ends."""
        return condition if self._group is None else _unless(self._group.until, condition)

    def _take_condition(self, step: Step) -> Condition:
        return self._before_end(step.needed)

    def _always(self) -> Condition:
        return self._before_end(ALWAYS)

    def _ignore_condition(self) -> Condition | None:
        """Return the condition on rows that are skipped before the current step."""
        group = self._group
        contiguity = self._step.contiguity
        if group is not None and self._at == 0:
            contiguity = group.contiguity if self._first_of_loop.get(group, True) else group.inner
        return self._skip_condition(contiguity)

    def _inner_ignore_condition(self) -> Condition | None:
        """Return the condition on rows that are skipped between the rows of the current step."""
        group = self._group
        inner = group.inner if group is not None and self._at == 0 else self._step.inner
        return self._skip_condition(inner)

    def _skip_condition(self, contiguity: Contiguity) -> Condition | None:
        if contiguity == "next":
            return None
        return self._before_end(ALWAYS if contiguity == "followed_by_any" else negated(self._step.needed))


def _is_in_time(look: Look, limit_ms: int | None) -> bool:
    return limit_ms is None or look.waited_ms < limit_ms


def _add(state: AutomatonState, action: Action, target: AutomatonState, condition: Condition) -> None:
    state.edges.append(Edge(action, target.number, condition))


def _unless(until: Condition | None, condition: _C) -> _C:
    return condition if until is None or condition is None else both(negated(until), condition)
