"""Aggregates: a window keeps their accumulators instead of its elements.

An aggregate is Flink's ``AggregateFunction`` (``create_accumulator``, ``add``, ``merge``, ``get_result``). The built-in
ones read a column, a function of the element, or by default the element itself. Nulls are ignored, as in SQL, and an
aggregate without values is null (a count is 0). `keyed.windows.vectorized` computes the same over whole columns.

Accumulators are plain data. `add` may change its accumulator; it returns the one to keep.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there
# ruff: noqa: PLR0124 - only NaN differs from itself

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast, overload

from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.extending import as_stored

IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")
Column = str | Callable[[Any], Any] | None
_LEAST, _MOST = -(2**63), 2**63 - 1
#: Exact for every decimal(38,…) and its mean.
_WIDE = Context(prec=76)
#: The maximal number of digits of a decimal in Arrow and Spark.
_DIGITS = 38
_PLAIN = frozenset({type(None), bool, int, float, str, Decimal})
_INTEGRAL = {"tinyint", "smallint", "int", "bigint"}
_NUMBERS = {*_INTEGRAL, "float", "double", "decimal"}


def value_getter(column: Column) -> Callable[[Any], Any]:
    """Return a function from an element to the value that an aggregate reads.

    Args:
        column: Name of a field (an attribute, or a key if it is not an identifier), a function of the element, or
            ``None`` for the element itself.

    Raises:
        DefinitionError: Anything else.
    """
    if column is None:
        return itself
    if callable(column):
        return column
    if not isinstance(column, str) or not column:
        raise DefinitionError(f"column={column!r} is neither the name of a column nor a function of the element")
    return operator.attrgetter(column) if column.isidentifier() else operator.itemgetter(column)


def kept_getter(column: Column) -> Callable[[Any], Any]:
    """Return a `value_getter` for values that an accumulator keeps."""
    get = value_getter(column)

    def kept(element: Any) -> Any:
        value = get(element)
        return value if value.__class__ in _PLAIN else as_stored(value)

    return kept


class Aggregate(Generic[IN, ACC, OUT]):
    """An aggregate of the elements of a window; for your own, subclass ``Aggregate[IN, ACC, OUT]``.

    Parameters of all aggregates: ``column`` is the name of a column, or a function of the element, without which the
    element is the value; ``type`` is the result's column type where it does not follow from the column. Nulls are
    ignored unless stated. Mutable elements and results are copied.

    Attributes:
        timed: It needs timestamps: ``add_at`` is called instead of ``add``.
        commutative: The order of elements does not matter, and ``merge`` changes neither argument. Hopping windows
            then share slices.
        accumulator_type: Type of the accumulator for the codec; `None` for plain data.
        type: Column type of the result, if it was set.
    """

    timed: bool = False
    commutative: ClassVar[bool] = False
    accumulator_type: Any = None
    type: str | None = None

    def create_accumulator(self) -> ACC:
        """Return a new accumulator."""
        raise NotImplementedError(f"{type(self).__name__} does not define create_accumulator")

    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return the accumulator, which may be changed, with an element added."""
        raise NotImplementedError(f"{type(self).__name__} does not define add")

    def add_at(self, value: IN, timestamp: int, accumulator: ACC) -> ACC:
        """Add an element with its timestamp, as `add`."""
        return self.add(value, accumulator)

    def merge(self, a: ACC, b: ACC) -> ACC:
        """Return the merged accumulator. ``a``, the earlier one, may be changed; ``b`` may not."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge")

    def get_result(self, accumulator: ACC) -> OUT:
        """Return the result. Does not change the accumulator."""
        return cast("OUT", accumulator)

    def __repr__(self) -> str:
        return f"{type(self).__name__.lstrip('_')}()"

    def output_type(self, columns: Mapping[str, str]) -> str | None:
        """Return the result's column type from those of the input columns, `None` if unknown."""
        return self.type


AnyAggregate: TypeAlias = Aggregate[Any, Any, Any]


class ColumnAggregate(AnyAggregate):
    """Base of the built-in aggregates of one column.

    Args:
        column: Name of the column, a function of the element, or ``None`` for the element itself.
        type: Column type of the result, if it does not follow from the column's.
    """

    commutative = True
    #: True if accumulators hold values of elements, and not only values computed from them.
    _keeps: ClassVar[bool] = False
    _needs_numbers: ClassVar[bool] = False
    #: Type of the result; ``{}`` stands for the column's type.
    _result: ClassVar[str] = "{}"

    def __init__(self, column: Column = None, *, type: str | None = None) -> None:
        self.column = column
        self.type = type
        self._value = kept_getter(column) if self._keeps else value_getter(column)

    def create_accumulator(self) -> Any:
        return None

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            # Later changes of the result must not change ``b``.
            return (list(b) if b.__class__ is list else b) if a is None else a
        return self._merged(a, b)

    def _merged(self, a: Any, b: Any) -> Any:
        """Merge two accumulators, neither of them ``None``."""
        raise NotImplementedError(f"{type(self).__name__} does not define merge")

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        """Return an accumulator from its parts in columns (`keyed.windows.vectorized.accumulators`) by name."""
        raise AssertionError(f"{self!r} has no columns")

    def _column_type(self, columns: Mapping[str, str]) -> str | None:
        """Return the type of the column that is read.

        Raises:
            OutputDefinitionError: The input has no such column, or it is not numeric.
        """
        if not isinstance(self.column, str):
            return None
        column = columns.get(self.column)
        if self.column not in columns:
            raise OutputDefinitionError(
                f"{self!r}: the input has no column {self.column!r}; it has {', '.join(columns)}"
            )
        if self._needs_numbers and column is not None and column.partition("(")[0] not in _NUMBERS:
            raise OutputDefinitionError(
                f"{self!r}: column {self.column!r} is of type {column}, and {type(self).__name__} needs numbers; "
                f"give a column of numbers, or a function of the element, as in {type(self).__name__}(lambda row: ...)"
            )
        return column

    def output_type(self, columns: Mapping[str, str]) -> str | None:
        if self.type:
            return self.type
        column = self._column_type(columns)
        return None if column is None and "{}" in self._result else self._result.format(column)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.column is None else repr(self.column)})"


class Count(ColumnAggregate):
    """Number of elements, or of those whose column is not null."""

    _result = "bigint"

    def __init__(self, column: Column = None) -> None:
        super().__init__(column)
        if column is not None:
            self.add = self._add_value  # type: ignore[method-assign]

    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + 1

    def _add_value(self, value: Any, accumulator: Any) -> Any:
        return accumulator if self._value(value) is None else accumulator + 1

    def merge(self, a: Any, b: Any) -> Any:
        return a + b

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return part("count") or 0


class Sum(ColumnAggregate):
    """Sum of the values. Integers must stay within 64 bits."""

    _needs_numbers = True

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if accumulator is None or value is None:
            return accumulator if value is None else value
        return accumulator + value if value.__class__ is not Decimal else _WIDE.add(accumulator, value)

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return _plus(a, b)

    def get_result(self, accumulator: Any) -> Any:
        if accumulator.__class__ is int and not _LEAST <= accumulator <= _MOST:
            raise OverflowError(f"{self!r}: the sum {accumulator} does not fit into 64 bits; sum a decimal or a float")
        if accumulator.__class__ is str:
            raise DefinitionError(f"{self!r} needs numbers, and the values are text, such as {accumulator[:40]!r}")
        return fitting(accumulator, self, "sum") if accumulator.__class__ is Decimal else accumulator

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return _whole_sum(part)

    def output_type(self, columns: Mapping[str, str]) -> str | None:
        if self.type:
            return self.type
        column = self._column_type(columns)
        if column is None:
            return None
        if column in _INTEGRAL:
            return "bigint"
        if column.startswith("decimal"):
            precision, scale = decimal_of(column)
            return f"decimal({min(38, precision + 10)},{scale})"
        return "double"


class Min(ColumnAggregate):
    """The least value. NaN counts only without other values, as in Arrow."""

    _keeps = True

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if accumulator is None or (value is not None and (value < accumulator or accumulator != accumulator)):
            return value
        return accumulator

    def _merged(self, a: Any, b: Any) -> Any:
        return b if b < a or a != a else a

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return part("min")


class Max(ColumnAggregate):
    """The greatest value. NaN counts only without other values, as in Arrow."""

    _keeps = True

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if accumulator is None or (value is not None and (value > accumulator or accumulator != accumulator)):
            return value
        return accumulator

    def _merged(self, a: Any, b: Any) -> Any:
        return b if b > a or a != a else a

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return part("max")


class Mean(ColumnAggregate):
    """Arithmetic mean as a float; of ``decimal(p,s)`` a ``decimal(p+4,s+4)``, each at most 38, as in Spark."""

    _needs_numbers = True

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if value is None:
            return accumulator
        if accumulator is None:
            return [value, 1]
        accumulator[0] = _plus(accumulator[0], value)
        accumulator[1] += 1
        return accumulator

    def _merged(self, a: Any, b: Any) -> Any:
        return [_plus(a[0], b[0]), a[1] + b[1]]

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return [_whole_sum(part), part("count")] if part("count") else None

    def get_result(self, accumulator: Any) -> Any:
        if accumulator is None:
            return None
        total, count = accumulator
        if total.__class__ is not Decimal or not total.is_finite():
            return total / count
        return decimal_mean(
            total, count, self.type or mean_type(_DIGITS, max(0, -int(total.as_tuple().exponent))), self
        )

    def output_type(self, columns: Mapping[str, str]) -> str | None:
        column = self._column_type(columns)
        if self.type or not (column and column.startswith("decimal")):
            return self.type or "double"
        return mean_type(*decimal_of(column))


class Variance(ColumnAggregate):
    """Variance as a float, stable (Chan's formula): over n − 1 (null for fewer than two values), or n."""

    _needs_numbers = True
    _result = "double"

    def __init__(self, column: Column = None, *, sample: bool = True) -> None:
        super().__init__(column)
        self.sample = sample

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if value is None:
            return accumulator
        value = float(value)
        if accumulator is None:
            return [1, value, value - value]  # NaN of NaN and of infinity, as for more values
        count = accumulator[0] + 1
        delta = value - accumulator[1]
        mean = accumulator[1] + delta / count
        accumulator[:] = [count, mean, accumulator[2] + delta * (value - mean)]
        return accumulator

    def _merged(self, a: Any, b: Any) -> Any:
        count = a[0] + b[0]
        delta = b[1] - a[1]
        return [count, a[1] + delta * b[0] / count, a[2] + b[2] + delta * delta * a[0] * b[0] / count]

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return [part("count"), part("mean"), part("m2")] if part("count") else None

    def get_result(self, accumulator: Any) -> Any:
        if accumulator is None:
            return None
        divisor = accumulator[0] - 1 if self.sample else accumulator[0]
        return accumulator[2] / divisor if divisor else None


class Stddev(Variance):
    """Standard deviation: the root of `Variance`."""

    def get_result(self, accumulator: Any) -> Any:
        variance = super().get_result(accumulator)
        return None if variance is None else variance**0.5


class Reduce(AnyAggregate):
    """Combines elements with ``reduce(current, element) -> new``, associative; ``type`` is theirs for the codec."""

    def __init__(self, reduce: Callable[[Any, Any], Any], type: Any = None) -> None:
        if not callable(reduce):
            raise DefinitionError(f"reduce={reduce!r} is not callable; give a function (current, element) -> new")
        self._reduce = reduce
        self.accumulator_type = type

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return as_stored(value if accumulator is None else self._reduce(accumulator, value))

    def merge(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return self._reduce(a, b)


class Functions(AnyAggregate):
    """An aggregate of four functions."""

    def __init__(self, create: Any, add: Any, merge: Any, result: Any, **types: Any) -> None:
        vars(self).update(types, create_accumulator=create, add=add, merge=merge, get_result=result)


@overload
def aggregate_of(
    create: Callable[[], ACC],
    add: Callable[[Any, ACC], ACC],
    merge: Callable[[ACC, ACC], ACC],
    result: None = None,
    *,
    type: str | None = None,
) -> Aggregate[Any, ACC, ACC]: ...
@overload
def aggregate_of(
    create: Callable[[], ACC],
    add: Callable[[Any, ACC], ACC],
    merge: Callable[[ACC, ACC], ACC],
    result: Callable[[ACC], OUT],
    *,
    type: str | None = None,
) -> Aggregate[Any, ACC, OUT]: ...
def aggregate_of(
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any],
    result: Callable[[Any], Any] | None = None,
    *,
    type: str | None = None,
) -> AnyAggregate:
    """Return an aggregate of four functions.

    Args:
        create: ``() -> accumulator``.
        add: ``(element, accumulator) -> accumulator``.
        merge: ``(a, b) -> accumulator``, ``a`` being the earlier one.
        result: ``(accumulator) -> result``; without it the accumulator is the result.
        type: Column type of the result.

    Raises:
        DefinitionError: One of them is not callable.
    """
    functions = {"create": create, "add": add, "merge": merge, "result": result or itself}
    for name, function in functions.items():
        if not callable(function):
            raise DefinitionError(f"{name}={function!r} is not callable")
    return Functions(**functions, type=type)


def _whole_sum(part: Callable[[str], Any]) -> Any:
    """Return a sum whose parts are columns: of integers, its high and its low bits."""
    high = part("high")
    return part("sum") if high is None else (high << 32) + part("low")


def _plus(a: Any, b: Any) -> Any:
    """Return the sum; of decimals with all digits, where Python's operator rounds to 28."""
    return a + b if b.__class__ is not Decimal else _WIDE.add(a, b)


def mean_type(precision: int, scale: int) -> str:
    """Return the type of the mean of a ``decimal(precision,scale)``, by the rule of Spark's ``Average``."""
    return f"decimal({min(_DIGITS, precision + 4)},{min(_DIGITS, scale + 4)})"


def decimal_mean(total: Decimal, count: int, type_: str, aggregate: object) -> Decimal:
    """Return the mean of decimals, rounded half up to the places of its type.

    Raises:
        OverflowError: The sum has more than 38 digits, or the mean does not fit into its type.
    """
    fitting(total, aggregate, "sum")
    precision, scale = decimal_of(type_)
    mean = _WIDE.divide(total, count).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _WIDE)
    return fitting(mean, aggregate, "mean", precision)


def fitting(value: Decimal, aggregate: object, what: str, digits: int = _DIGITS) -> Decimal:
    """Return a decimal that fits a precision, counted as in Arrow and Spark.

    Raises:
        OverflowError: It has more digits.
    """
    if value.is_finite():
        places = max(0, -int(value.as_tuple().exponent))
        if max(value.adjusted() + 1, 0) + places > digits:
            raise OverflowError(
                f"{aggregate}: the {what} {value} has more than {digits} digits, {places} of them places; "
                "aggregate decimals with fewer digits or a float"
            )
    return value


def decimal_of(type_: str) -> tuple[int, int]:
    """Return the precision and scale of ``decimal(p,s)``; Spark's defaults if they are missing."""
    inside = type_.partition("(")[2].rstrip(") ")
    precision, _, scale = inside.partition(",")
    return (int(precision), int(scale or 0)) if precision else (10, 0)


def itself(value: Any) -> Any:
    """Return a value: the accumulator of an aggregate that is its own result."""
    return value
