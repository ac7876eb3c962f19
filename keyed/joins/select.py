"""A join's output as a list of columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs

from keyed.errors import DefinitionError


def _names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise DefinitionError(f"Select: {names!r} is not a list of names of columns")
    return tuple(names)


@attrs.frozen
class Select:
    """The function of a join whose output has columns of both elements: ``SELECT k, left.a, left.b, right.c``.

    Over whole columns the columns of all pairs are copied at once, several times as fast as a call for each pair.
    Columns of the output of another type are converted value by value.

    Args:
        left: Names of columns of the left element; null each if there is none.
        right: Those of the right element, which follow.
        either: Names that both elements have, first: the left value, or the right one if it is null (SQL's `USING`).

    Raises:
        DefinitionError: No column is selected, or something is not a name.
    """

    left: Sequence[str] = attrs.field(default=(), converter=_names)
    right: Sequence[str] = attrs.field(default=(), converter=_names)
    either: Sequence[str] = attrs.field(default=(), converter=_names, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not self.left and not self.right and not self.either:
            raise DefinitionError("Select: no column is selected; give names as left=, right= or either=")

    def __call__(self, left: Any, right: Any) -> tuple[Any, ...]:
        """Return the selected values of a pair."""
        pairs = zip(_values(left, self.either), _values(right, self.either), strict=True)
        either = (of_right if of_left is None else of_left for of_left, of_right in pairs)
        return (*either, *_values(left, self.left), *_values(right, self.right))

    def check(self, sides: Sequence[Collection[str] | None], width: int | None, *, has_change: bool = False) -> None:
        """Check that the columns exist and are as many as those of the output.

        Args:
            sides: The columns of the two sides, ``None`` where they are not known.
            width: Number of columns of the output, if it is known.
            has_change: The last of them is the change, of a join of two tables.

        Raises:
            DefinitionError: They are not.
        """
        for where, names, columns in zip(("left", "right"), (self.left, self.right), sides, strict=True):
            unknown = [name for name in (*self.either, *names) if columns is not None and name not in columns]
            if unknown:
                raise DefinitionError(
                    f"Select: the {where} side has no column {unknown[0]!r}; it has {', '.join(columns or ())}"
                )
        count = len(self.left) + len(self.right) + len(self.either) + has_change
        if width is not None and width != count:
            shown = f"{count} columns are selected{', with that of the change' * has_change}"
            raise DefinitionError(f"Select: {shown}, and the output has {width}")


def _values(element: Any, names: Sequence[str]) -> list[Any]:
    if element is None:
        return [None] * len(names)
    if isinstance(element, tuple | dict):
        return [element[name] for name in names]  # type: ignore[call-overload]
    return [getattr(element, name) for name in names]
