"""What is stored, as bytes: keys, values, types, hashes, digests, and a job's state. No Python may write others.

    python -m tests.upgrade.golden                 # print them, as in golden.json
    python -m tests.upgrade.golden FOLDER ROWS     # run the job on its first rows, from the checkpoint in a folder

The texts have characters that came with Unicode 14 to 16, and one that is none yet: Pythons differ in which of them
they know.
"""

from __future__ import annotations

import datetime as dt
import enum
import json
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import attrs
import msgspec
import pyarrow as pa

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, ValueState
from keyed.base.schemas import schema_of
from keyed.changelog.directory import DirectoryChangelog
from keyed.codec.key_hash import key_hash
from keyed.codec.keys import encode_key, key_type
from keyed.codec.map_keys import map_key_codec
from keyed.codec.state_schema import StateSchema
from keyed.codec.values import value_codec
from keyed.content.row_hash import rows_hash
from keyed.rows import row_class
from keyed.runtimes.local.local_position import LocalPosition, SourcePosition, Tracker, encode_position
from keyed.windows import CollectSet, MostFrequent
from keyed.windows.sketches import hash_value

#: A letter of long ago, of Unicode 14, 15, 15.1 and 16, a code point without a character, and one that is not printed.
TEXTS = ["é", "\U00010570", "\U0001fae8", "\U0002ebf0", "\U00010d50", "\u0378", "\u200b", "", "\n", "\x00", "a'b\"c"]
_LONG_AGO = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)
KEYS: list[Any] = [
    *TEXTS,
    *[0, -1, 2**63, -(2**70), 1.5, -0.0, float("nan"), float("-inf"), True, None],
    *[b"", b"\x00\x01", Decimal("-1.50"), Decimal("1E+40"), UUID(int=7), dt.date(1, 1, 1)],
    *[_LONG_AGO, dt.timedelta(days=-1, microseconds=1), (), ("\U0001fae8", 1, None), ((("x",),),)],
]


class Color(enum.Enum):
    """A text of each kind."""

    NEW = "\U0001fae8"
    OLD = "é"


@attrs.frozen
class Reading:
    """An attrs class."""

    at: dt.datetime
    amount: Decimal
    tags: tuple[str, ...] = ()
    color: Color | None = None


class Place(NamedTuple):
    """A class that is stored by position."""

    name: str
    number: int | float


class Options(TypedDict, total=False):
    """A dictionary with types."""

    level: Literal["\U0001fae8", 3] | None


_READING = Reading(_LONG_AGO, Decimal("1.10"), ("\U0001fae8",), Color.NEW)
VALUES: list[tuple[Any, Any]] = [
    *((object, key) for key in KEYS),
    (object, {"\U0001fae8": [1, {2, 3}], "b": ({"x": dt.time(1, 2)},)}),
    (object, {1: frozenset({"a", "\U0001fae8", "b"})}),
    (object, row_class(("\U0001fae8", "k"))((1, "v"))),
    (Reading, _READING),
    (Place, Place("\U0001fae8", 1.5)),
    (Options, {"level": "\U0001fae8"}),
    (dict[str, list[Reading]], {"\U0001fae8": [_READING]}),
    (set[str], {*TEXTS}),
    (dt.timedelta | int, dt.timedelta(1)),
]
ROWS: list[Any] = [
    *({"k": text, text: 1, "n": None} for text in TEXTS),
    *VALUES,
    {"\ud800": "\udfff", "n": 2**70},
    {("\U0001fae8",): {"\U0001fae8"}, "none": float("nan")},
    [Decimal("1.50"), Decimal("NaN"), Decimal("1E+999999"), 1.0, 0.1, bytearray(b"x"), dt.time(1, tzinfo=dt.UTC)],
    object(),
]


class Everything(KeyedProcessFunction):
    """Has keys, map keys, entries of a list and timers' names of all these texts."""

    count = ValueState(int, default=0)
    last: Any = ValueState(Reading)
    seen: Any = MapState(object, object)
    recent = ListState(object)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        self.last.update(attrs.evolve(_READING, tags=(value.text,)))
        self.seen.put(value.number % 5, (value.text, self.count.value()))
        self.recent.namespace(value.text).add(value.text)
        ctx.timer_service().set_timer((value.text,), 10**6 + value.number)
        yield value.text, self.count.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), 0


def source() -> list[dict[str, Any]]:
    """The rows of the job."""
    return [{"text": text, "number": number, "parts": (text, number)} for number, text in enumerate(TEXTS * 6)]


def final_state(changelog: DirectoryChangelog) -> list[Any]:
    """The number of live entries and their hash that a changelog ends with, over all key groups."""
    markers = [changelog.reader(group).last() for group in range(2)]
    return [
        sum(marker.entries for marker in markers if marker),
        sum(int(marker.hash, 16) for marker in markers if marker) % 2**128,
    ]


def run(folder: Path, count: int) -> list[Any]:
    """Run the job on its first rows. Returns counts of keys, and the number and hash of the entries of its state."""
    changelog = DirectoryChangelog(folder / "changelog")
    watermark = keyed.bounded_out_of_orderness(0).with_partitions("parts")
    stream = keyed.stream(source()[:count], timestamp="number", watermark=watermark).key_by("text")
    output = stream.process(Everything(), parallelism=2, changelog=changelog)
    result = output.run(checkpoint=folder / "checkpoint", drain=False, rows_per_batch=7, processing_time=lambda: 0)
    return [[*map(list, result.values)], final_state(changelog)]


def _fed(aggregate: Any) -> str:
    accumulator = aggregate.create_accumulator()
    for text in [*TEXTS, 3, 1.5, b"x", ("\U0001fae8",), *TEXTS[:3]]:
        accumulator = aggregate.add(text, accumulator)
    return ascii(aggregate.get_result(accumulator))


def encodings() -> dict[str, Any]:
    """What is stored, by kind."""
    maps: list[tuple[Any, Any]] = [
        *((object, key) for key in KEYS),
        (Color, Color.NEW),
        (Place | None, Place("x", 1.0)),
    ]
    table = pa.table({"k": TEXTS, "n": range(len(TEXTS)), "s": [{"\U0001fae8": text} for text in TEXTS]})
    types = msgspec.json.encode([value_codec(type_).fingerprint for type_, _ in VALUES]).decode()
    schemas = [
        StateSchema.of("a", "value", None, Reading),
        StateSchema.of("b", "map", Color, dict[str, Place]),
        StateSchema.of("c", "list", None, Options),
    ]
    tracked = Tracker(len(ROWS), ROWS, ROWS).consumed()
    position = LocalPosition(["op"], 3, len(ROWS), queries=["q"], digests=tracked, source={"\U0001fae8": [1]})
    position.beside.append(SourcePosition(1, tracked))
    return {
        "keys": [encode_key(key).hex() for key in KEYS],
        "key types": [key_type(key) for key in KEYS],
        "key hashes": [key_hash(key) for key in KEYS],
        "map keys": [map_key_codec(type_).encode(key).hex() for type_, key in maps],
        "values": [value_codec(type_).encode(value).hex() for type_, value in VALUES],
        "types": types,
        "schemas": [schema.to_json() for schema in schemas],
        "rows": str(rows_hash(table, 3)),
        "digests": [Tracker(1, [row], [row]).consumed().first.hex() for row in ROWS],
        "position": encode_position(position).hex(),
        "columns": schema_of(attrs.make_class("Columns", {"s": attrs.field(type=_named_fields())})).ddl,
        "sketch": [hash_value(key) for key in KEYS if key is not None],
        "aggregates": [_fed(CollectSet()), _fed(MostFrequent(20))],
    }


def _named_fields() -> Any:
    return attrs.make_class("Inner", {"é": attrs.field(type=int), "plain_1": attrs.field(type=int)})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        found: Any = run(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        found = encodings()
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
