"""Orders of arrival in which `assert_deterministic` gives rows of equal times, and rows within the watermark's delay.

Most orders are drawn. A sum of floating-point numbers has the same digits in most of them, so an order in which the
digits differ is searched for, which costs no run of the function. In one more order each timer fires before the rows
after its time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, islice
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from keyed.testing.function_options import Record
from keyed.testing.process_state import attributes_of
from keyed.testing.scripts import Rows, Step, Watermark

#: Orders that are tried for sums.
_TRIED = 12
#: Functions sum a column, or a share of it such as tenths.
_SHARES = (0.1, 1.0, 1 / 3)
#: Columns of columns in which numbers are looked for.
_DEEPEST = 3
#: Returns the distance by which a row arrives later, and its place among those that arrive with it.
_Move = Callable[[int], tuple[int, float]]


@st.composite
def other_arrivals(draw: DrawFn, done: Sequence[Step], *, delay: int, sides: Sequence[int]) -> list[Step]:
    """Return steps with another order of arrival for rows of equal times and rows within the delay.

    No further row becomes late, and none passes another step or a row of the other side. Rows without a time, and rows
    that are behind the highest earlier one by more than the delay, keep their place.

    Args:
        draw: The draw.
        done: The steps.
        delay: Distance by which rows may be behind, milliseconds.
        sides: The sides whose rows move, 1 and 2.
    """
    moves = st.sampled_from(_moves(delay))
    order = draw(st.sampled_from([1, -1, -1, -1]))
    return _reorder(done, delay, sides, lambda place: (draw(moves), order * place))


def arrivals_with_other_sums(
    done: Sequence[Step], *, delay: int, sides: Sequence[int], key_of: Callable[[Record], Hashable]
) -> list[list[Step]]:
    """Return steps in orders of arrival, as `other_arrivals` has them, that change the digits of a key's sums.

    Args:
        done: The steps.
        delay: As in `other_arrivals`.
        sides: As there.
        key_of: Returns the key of a row.

    Returns:
        The steps: of a dozen orders the fewest that together change each sum which any of them changes.
    """
    sums = _sums(done, sides, key_of)
    if not sums:
        return []
    moves = _moves(delay)
    tried: list[tuple[set[Any], list[Step]]] = []
    for number in range(_TRIED):
        chance = random.Random(number)  # noqa: S311 - chance of tests

        def move(place: int, number: int = number, chance: random.Random = chance) -> tuple[int, float]:
            # The first is the reverse order.
            return (chance.choice(moves), chance.random()) if number else (0, -place)

        moved = _reorder(done, delay, sides, move)
        others = _sums(moved, sides, key_of)
        tried.append(({name for name, total in sums.items() if total != others[name]}, moved))
    chosen = []
    while (best := max(tried, key=lambda each: len(each[0])))[0]:
        changed = set(best[0])
        chosen.append(best[1])
        tried = [(names - changed, steps) for names, steps in tried]
    return chosen


def timers_first(done: Sequence[Step], *, delay: int, sides: Sequence[int]) -> list[Step]:
    """Return steps with the rows by time, one a batch, and each timer before the rows after its time.

    The watermark moves as if rows of other keys had arrived before: up to the earliest row that is left, so that none
    becomes late. The steps are unchanged if a row is behind by more than the delay.
    """
    left = [row.timestamp for step in done if isinstance(step, Rows) for row in step.rows if row.timestamp is not None]
    if any(time < before - delay for time, before in zip(left, accumulate(left, max), strict=True)):
        return list(done)
    reached = min(left, default=0)
    steps: list[Step] = []
    for step in _reorder(done, delay, sides, lambda place: (0, place)):
        if not isinstance(step, Rows):
            steps.append(step)
            continue
        for row in step.rows:
            if row.timestamp is not None:
                if (earliest := min(left)) > reached:
                    reached = earliest
                    steps.append(Watermark(earliest - 1))
                left.remove(row.timestamp)
            steps.append(Rows([row]))
    return steps


def _moves(delay: int) -> list[int]:
    return [0] if not delay else [0, delay, delay // 2]


def _reorder(done: Sequence[Step], delay: int, sides: Sequence[int], move: _Move) -> list[Step]:
    steps: list[Step] = []
    for is_rows, group in groupby(done, key=lambda step: isinstance(step, Rows)):
        if not is_rows:
            steps += group
            continue
        cut = [step.rows for step in group if isinstance(step, Rows)]
        rows = [row for each in cut for row in each]
        for side in sides:
            places = [place for place, row in enumerate(rows) if row.input == side and row.timestamp is not None]
            arriving = [(rows[place], *move(place)) for place in places]
            highest = -1
            for row, _, _ in arriving:
                if row.timestamp is not None and row.timestamp < highest - delay:
                    break
                highest = max(highest, row.timestamp or 0)
            else:
                arriving.sort(key=lambda each: ((each[0].timestamp or 0) + each[1], each[2]))
                for place, (row, _, _) in zip(places, arriving, strict=True):
                    rows[place] = row
        left = iter(rows)
        steps += [Rows(list(islice(left, len(each)))) for each in cut]
    return steps


def _sums(done: Sequence[Step], sides: Sequence[int], key_of: Callable[[Record], Hashable]) -> dict[Any, float]:
    """Return sums of the numbers of each key that has three of them, in order of arrival: fewer have one sum only."""
    numbers: dict[Any, list[float]] = {}
    for step in done:
        for row in step.rows if isinstance(step, Rows) else ():
            if row.input not in sides:
                continue
            key = key_of(row)
            for path, number in _numbers(row.value, ()):
                numbers.setdefault((row.input, key, path), []).append(number)
    sums: dict[Any, float] = {}
    for name, totals in numbers.items():
        if len(totals) > 2:
            for share in _SHARES:
                total = 0.0
                for number in totals:
                    total += number * share
                sums[name, share] = total
    return sums


def _numbers(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], float]]:
    """Yield the non-zero numbers in a row, with the columns and fields in which they are."""
    if len(path) > _DEEPEST:
        return
    if isinstance(value, int | float) and value.__class__ is not bool:
        # Larger ones do not fit into a float.
        if 0 < abs(value) < 2**62:
            yield path, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _numbers(each, (*path, name))
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from _numbers(each, (*path, place))
    elif attrs.has(type(value)) or hasattr(value, "__dict__"):
        for name, each in attributes_of(value).items():
            yield from _numbers(each, (*path, name))
