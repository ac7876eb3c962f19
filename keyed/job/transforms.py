"""Transformations of rows without keys: ``map``, ``filter``, ``flat_map`` and ``map_batches``, as descriptions."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

from keyed.base.schemas import Schema, schema_of
from keyed.base.shown import named
from keyed.errors import DefinitionError
from keyed.job.inference import inferred_result

Kind = Literal["map", "filter", "flat_map", "map_batches"]


@attrs.frozen(eq=False)
class Kept:
    """The result of a function of ``map_batches`` that leaves out bad rows, which ``rows_bad`` counts.

    Such a function may have a method ``of_values``: it is called with a list of elements that are in no table, and
    their timestamps, in place of the function.

    Attributes:
        table: The result.
        bad: Number of rows that it lacks.
        reason: The reason of the first of them.
    """

    table: Any
    bad: int = 0
    reason: str = ""


@attrs.frozen(eq=False, repr=False)
class Transform:
    """A function between a stream and the operator or sink that reads it.

    Attributes:
        kind: The method that added it.
        function: The function of an element; for ``map_batches`` of a table.
        schema: The columns of its results, ``None`` if they are not declared.
    """

    kind: Kind
    function: Callable[[Any], Any]
    schema: Schema | None = None

    def __repr__(self) -> str:
        return f"{self.kind}({named(self.function)})"

    @property
    def keeps_columns(self) -> bool:
        """True if its results have the columns of its input."""
        return self.kind == "filter" or (self.kind == "map_batches" and self.schema is None)


def transform_of(kind: Kind, function: Any, output: Any = None) -> Transform:
    """Return the transformation with a user's function.

    Raises:
        DefinitionError: The function cannot be one of its kind.
        OutputDefinitionError: ``output`` is not a type of rows.
    """
    if not callable(function):
        raise DefinitionError(f"{kind}({function!r}): give a function of {_argument(kind)}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{kind}({named(function)}): the function is asynchronous, and it is called directly")
    if kind != "flat_map" and inspect.isgeneratorfunction(function):
        remedy = "use flat_map" if kind in ("map", "filter") else "return one table"
        raise DefinitionError(f"{kind}({named(function)}): the function is a generator; {remedy}")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise DefinitionError(
            f"{kind}({named(function)}): it cannot be called with {_argument(kind)} ({error})"
        ) from None
    except ValueError:
        pass  # of a builtin without a signature
    schema = None if output is None else schema_of(output)
    if schema is None and kind in ("map", "flat_map"):
        schema = inferred_result(function, many=kind == "flat_map")
    return Transform(kind, function, schema)


def _argument(kind: Kind) -> str:
    return "one pyarrow.Table" if kind == "map_batches" else "one element"


def keeps_tables(steps: Sequence[Transform]) -> bool:
    """Return true if transformations take tables and give tables, so that no row becomes an object."""
    return all(step.kind == "map_batches" for step in steps)


def schema_after(schema: Schema | None, steps: Sequence[Transform]) -> Schema | None:
    """Return the columns after transformations, ``None`` if they are not known."""
    for step in steps:
        schema = schema if step.keeps_columns else step.schema
    return schema


def columns_after(columns: Mapping[str, str | None] | None, steps: Sequence[Transform]) -> dict[str, str | None] | None:
    """Return the types of the columns by name after transformations, ``None`` if they are not known."""
    for step in steps:
        if not step.keeps_columns:
            columns = None if step.schema is None else typing.cast("dict[str, str | None]", dict(step.schema.columns))
    return None if columns is None else dict(columns)


def shown_steps(steps: Sequence[Transform]) -> str:
    """Return transformations for messages: each after an arrow."""
    return "".join(f" → {step!r}" for step in steps)
