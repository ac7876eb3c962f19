"""Schemas: types as JSON that is the same everywhere, and which changes stored values survive."""

import dataclasses
import datetime as dt
import enum
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import attrs
import msgspec
import pytest
from hypothesis import given

from keyed.codec.fingerprints import describe_type, format_type, why_incompatible
from keyed.codec.state_schema import StateSchema, check_compatible
from keyed.codec.values import value_codec
from keyed.errors import CorruptionError, StateSchemaChanged
from keyed.rows import Row
from tests.keyed.codec.support import TYPES
from tests.support.data_files import read_data

ROOT = Path(__file__).resolve().parents[3]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class MoreColors(enum.Enum):
    GREEN = "green"
    BLUE = "blue"
    RED = "red"


@attrs.define
class Departure:
    carrier: str
    delay: int | None = None


@dataclasses.dataclass
class LongerDeparture:
    color: Color = Color.RED
    delay: int | None = None
    carrier: str = "UA"


@attrs.define
class NeedyDeparture:
    carrier: str
    origin: str
    delay: int | None = None


@attrs.define
class ShorterDeparture:
    carrier: str


@attrs.define
class StricterDeparture:
    carrier: str
    delay: int | None


@attrs.define
class OtherDeparture:
    carrier: str
    delay: str | None = None


class Pair(NamedTuple):
    first: int
    second: int = 0


class Triple(NamedTuple):
    first: int
    second: int = 0
    third: str = ""


class Turned(NamedTuple):
    second: int
    first: int = 0


@attrs.frozen
class Place:
    country: str


@attrs.frozen
class Town:
    country: str
    town: str = ""


@attrs.define
class Node:
    children: "list[Node]"
    parent: Optional["Node"] = None


class Options(TypedDict, total=False):
    size: int


class Circle(msgspec.Struct, tag=True):
    radius: float


class Compact(msgspec.Struct, array_like=True):
    first: int


#: The descriptions of types by their texts; that of `Node`, which has no text of its own, by its name.
DESCRIBED = read_data("keyed/codec/described_types.json")


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (int, "int"),
        (None, "None"),
        (dt.datetime, "datetime"),
        (object, "object"),
        (Any, "object"),
        (Any | None, "object"),
        (Row, "object"),
        (list, "list[object]"),
        (tuple[int, str], "tuple[int, str]"),
        (tuple[()], "tuple[()]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (dict[str, set[int]], "dict[str, set[int]]"),
        (int | None, "None | int"),
        (Literal["b", "a", 1], "Literal[1, 'a', 'b']"),
        (Color, "Color('red', 'blue')"),
        (Departure, "Departure(carrier: str, delay: None | int = ...)"),
        (Options, "Options(size: int = ...)"),
        (Pair, "Pair(first: int, second: int = ...)"),
        (Compact, "Compact(first: int)"),
        (Circle, "Circle(radius: float)"),
        (Annotated[int, msgspec.Meta(ge=0)], "Annotated[int, ge=0]"),
        (Node, None),
    ],
    ids=str,
)
def test_types_are_described_as_documented(type_, text):
    described = DESCRIBED[text or "Node"]
    # "None" sorts before a JSON object in a union only where its text does.
    found = describe_type(type_)
    if text is not None:
        assert found == described
        assert format_type(found) == text
    else:
        assert found["fields"]["children"] == described["fields"]["children"]
        assert "<the same class>" in format_type(found)
    assert value_codec(type_).fingerprint == found


@given(TYPES)
def test_a_fingerprint_is_json_and_fits_itself(type_):
    described = describe_type(type_)
    assert json.loads(json.dumps(described)) == described
    assert why_incompatible(json.loads(json.dumps(described)), described) is None
    assert isinstance(format_type(described), str)


def test_a_fingerprint_is_the_same_in_every_process():
    program = (
        "import json, enum, typing; from keyed.codec.fingerprints import describe_type\n"
        "E = enum.Enum('E', {'B': 'b', 'A': 'a', 'C': 'c'})\n"
        "T = dict[str, typing.Literal['x', 'y', 'z'] | int | None | list[E]]\n"
        "print(json.dumps(describe_type(T)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (int, int),
        (int, int | None),
        (int | None, None | int | str),
        (list[int], list[int | None]),
        (tuple[int, Departure], tuple[int, LongerDeparture]),
        (dict[str, Departure], dict[str, LongerDeparture]),
        (Departure, LongerDeparture),
        (Pair, Triple),
        (Color, MoreColors),
        (Literal["a"], Literal["a", "b"]),
        (Annotated[int, msgspec.Meta(ge=0)], int),
        (Annotated[int, msgspec.Meta(ge=0, le=9)], Annotated[int, msgspec.Meta(ge=0)]),
        (Any, object),
    ],
    ids=str,
)
def test_what_stored_values_survive(old, new):
    assert why_incompatible(describe_type(old), describe_type(new)) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (int, str, "int became str"),
        (int, object, "int became object"),
        (object, int, "object became int"),
        (int | None, int, r"None \| int became int"),
        (int | str, int | None, r"str is no longer in None \| int"),
        (list[int], list[str], "int became str"),
        (list[int], set[int], r"list\[int\] became set\[int\]"),
        (tuple[int, int], tuple[int, int, int], r"became tuple\[int, int, int\]"),
        (tuple[int, int], tuple[int, str], "int became str"),
        (dict[str, int], dict[str, str], "int became str"),
        (LongerDeparture, Departure, "no longer has the field color"),
        (Departure, NeedyDeparture, "new field origin, without a default"),
        (Departure, ShorterDeparture, "no longer has the field delay"),
        (Departure, StricterDeparture, "field delay of StricterDeparture lost its default"),
        (Departure, OtherDeparture, "in the field delay of OtherDeparture: int is no longer in"),
        (Departure, dict[str, int], r"became dict\[str, int\]"),
        (Triple, Pair, "first fields are no longer first, second, third"),
        (Pair, Turned, "stored by position"),
        (MoreColors, Color, "'green' is no longer in"),
        (Literal["a", "b"], Literal["a"], "'b' is no longer in"),
        (int, Annotated[int, msgspec.Meta(ge=0)], "int became Annotated"),
        (Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=1)], "became Annotated"),
    ],
    ids=str,
)
def test_what_stored_values_do_not_survive(old, new, reason):
    with pytest.raises(AssertionError, match=reason):
        assert not why_incompatible(describe_type(old), describe_type(new))


def test_keys_must_keep_their_bytes():
    assert why_incompatible(describe_type(Place), describe_type(Town)) is None
    assert "a part of map keys" in str(why_incompatible(describe_type(Place), describe_type(Town), as_key=True))
    assert why_incompatible(describe_type(Color), describe_type(MoreColors), as_key=True) is None


@attrs.frozen
class Ttl:
    milliseconds: int
    time_domain: Any
    update: Any
    visibility: Any


class Domain(enum.Enum):
    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"
    OTHER = "other"


def ttl(milliseconds: int, domain: Domain) -> Ttl:
    return Ttl(milliseconds, domain, Domain.OTHER, Domain.OTHER)


def test_a_schema_comes_back_from_json():
    for schema in (
        StateSchema.of("seen", "value", None, int),
        StateSchema.of("by_carrier", "map", tuple[str, int], Departure, ttl(5, Domain.EVENT_TIME)),
        StateSchema.of("recent", "list", None, object),
    ):
        assert StateSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_a_schema_reads_well():
    assert str(StateSchema.of("n", "value", None, int)) == "value state 'n' of int"
    assert (
        str(StateSchema.of("n", "map", str, int, ttl(5, Domain.EVENT_TIME)))
        == "map state 'n' of str -> int, 5 ms of event_time to live"
    )


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        [],
        "x",
        {"name": "n", "kind": "heap", "key": None, "value": "int", "ttl": None},
        {"name": 1, "kind": "value", "key": None, "value": "int", "ttl": None},
        {"name": "n", "kind": "value", "key": None, "value": None, "ttl": None},
        {"name": "n", "kind": "value", "key": None, "value": {"kind": "list"}, "ttl": None},
        {"name": "n", "kind": "value", "key": None, "value": "int", "ttl": {"x": 1}},
        {"name": "n", "kind": "value", "key": None, "value": "int", "ttl": 5},
    ],
)
def test_a_malformed_schema_is_corruption(data):
    with pytest.raises(CorruptionError):
        StateSchema.from_json(data)


def test_the_same_more_and_renamed_states_are_compatible():
    old = [StateSchema.of("a", "value", None, int), StateSchema.of("b", "map", str, Departure)]
    check_compatible("op", [], old)
    check_compatible("op", old, old)
    check_compatible("op", old, [*reversed(old), StateSchema.of("c", "list", None, int)])
    check_compatible(
        "op", old, [StateSchema.of("a", "value", None, int | None), StateSchema.of("b", "map", str, LongerDeparture)]
    )


def test_the_length_of_the_time_to_live_may_change():
    old = StateSchema.of("a", "value", None, int, ttl(5, Domain.EVENT_TIME))
    check_compatible("op", [old], [StateSchema.of("a", "value", None, int, ttl(9, Domain.EVENT_TIME))])


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ([], "it is no longer declared"),
        ([StateSchema.of("a", "list", None, int)], "map state became list state"),
        ([StateSchema.of("a", "map", int, int, ttl(5, Domain.EVENT_TIME))], "type of its keys changed: str became int"),
        (
            [StateSchema.of("a", "map", str, str, ttl(5, Domain.EVENT_TIME))],
            "type of its values changed: int became str",
        ),
        ([StateSchema.of("a", "map", str, int)], "clock of its time to live changed from event_time to none"),
        ([StateSchema.of("a", "map", str, int, ttl(5, Domain.PROCESSING_TIME))], "from event_time to processing_time"),
    ],
    ids=str,
)
def test_other_changes_are_refused_with_old_and_new(new, reason):
    old = StateSchema.of("a", "map", str, int, ttl(5, Domain.EVENT_TIME))
    with pytest.raises(StateSchemaChanged, match=reason) as raised:
        check_compatible("op", [old], new)
    assert f"stored:   {old}" in str(raised.value)
    assert f"declared: {new[0] if new else 'nothing'}" in str(raised.value)
    assert "new checkpoint" in str(raised.value)
