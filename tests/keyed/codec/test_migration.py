"""Fields given to stored values: what comes out is what the new class would have been encoded as, and reads as it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import pytest

from keyed.codec.fingerprints import why_incompatible
from keyed.codec.values import value_codec
from keyed.engine.migrate import with_fields


@attrs.frozen
class Old:
    a: int
    b: str


@attrs.frozen
class New:
    a: int
    b: str
    currency: str
    rate: Decimal
    day: date | None
    at: datetime | None = None
    id: UUID | None = None


@dataclass
class OldUntyped:
    a: int
    extra: Any


@dataclass
class NewUntyped:
    a: int
    extra: Any
    n: int


class OldTuple(NamedTuple):
    a: int
    b: str


class NewTuple(NamedTuple):
    a: int
    b: str
    c: float


ADDED = {
    "currency": "EUR",
    "rate": Decimal("1.5"),
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, tzinfo=UTC),
    "id": UUID(int=7),
}


@pytest.mark.parametrize(
    ("old", "new", "fields", "values"),
    [
        (Old, New, ADDED, [Old(1, "x"), Old(-5, "")]),
        (Old, New, ADDED, [Old(2**70, "beyond 64 bits"), Old(-(2**99), "")]),
        (Old, New, {"currency": "", "rate": Decimal(0), "day": None}, [Old(1, "x")]),
        (OldUntyped, NewUntyped, {"n": 3}, [OldUntyped(1, {"x": (1, 2)}), OldUntyped(2, None)]),
        (OldTuple, NewTuple, {"c": 0.5}, [OldTuple(1, "x"), OldTuple(2**70, "y")]),
    ],
)
def test_values_get_fields(old, new, fields, values):
    before, after = value_codec(old), value_codec(new)
    assert why_incompatible(before.fingerprint, after.fingerprint)
    fingerprint, convert = with_fields(before.fingerprint, fields)
    assert why_incompatible(fingerprint, after.fingerprint) is None
    for value in values:
        parts = {name: getattr(value, name) for name in old.__annotations__}
        expected = new(**parts, **fields)
        converted = convert(before.encode(value))
        assert after.decode(converted) == expected
        assert after.decode(converted) == after.decode(after.encode(expected))


def test_a_field_of_another_type_does_not_fit():
    fingerprint, _ = with_fields(value_codec(OldTuple).fingerprint, {"c": "text"})
    assert why_incompatible(fingerprint, value_codec(NewTuple).fingerprint) is not None
