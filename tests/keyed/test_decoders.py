"""Every decoder of stored bytes, given what no encoder wrote: its documented error, or a value, and nothing runs.

An ordinary run tries 5,000 byte strings, the long tests 95,000 more; ``KEYED_FUZZ=1000000`` tries as many,
``KEYED_SEED`` repeats a run.
"""

import contextlib
import datetime as dt
import enum
import os
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import attrs
import msgspec
import pyarrow as pa
import pytest

from keyed.changelog import model
from keyed.changelog.directory.disk import OpenFile
from keyed.changelog.directory.segment_file import Segment, SegmentFile
from keyed.changelog.kafka.kafka_records import RecordKeys
from keyed.codec.arrow_streams import read_stream, write_stream
from keyed.codec.frames import FRAME_OVERHEAD, frame, unframe
from keyed.codec.keys import decode_key, decode_key_at, encode_key
from keyed.codec.map_keys import map_key_codec
from keyed.codec.state_schema import StateSchema
from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.codec.values import value_codec
from keyed.content.blocks import TableBlock, decode_block, decode_log_block
from keyed.content.contents import hash_of_text, hash_text
from keyed.content.delta import Delta
from keyed.content.entry_decoder import value_reader
from keyed.content.table_entries import TableEntries
from keyed.destinations.sink import decode_mark, encode_mark
from keyed.engine.group_log import GroupMeta, decode_meta, decode_row, encode_meta, encode_rows
from keyed.engine.migrate import with_fields
from keyed.errors import CorruptionError
from keyed.job.table_declaration import TableState
from keyed.rows import row_class
from keyed.runtimes.local import local_position
from keyed.runtimes.spark.checkpoint import begin
from keyed.runtimes.spark.worker import wire
from keyed.stores.commit_store import MemoryCommitStore
from keyed.table_state.layout import Layout
from tests.keyed.codec.support import PICKLES

COUNT = int(os.environ.get("KEYED_FUZZ", "100000"))
PARTS = max(1, COUNT // 5_000)
SEED = int(os.environ.get("KEYED_SEED") or Random().getrandbits(32))


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    left: int
    right: str = ""


@attrs.frozen
class Everything:
    color: Color
    pair: Pair
    money: Decimal
    when: dt.datetime
    day: dt.date
    long: dt.timedelta
    id: uuid.UUID
    numbers: list[int]
    names: dict[str, float]
    maybe: bytes | None = None


EVERYTHING = Everything(
    Color.RED, Pair(1, "x"), Decimal("1.5"), dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.date(2024, 1, 1),
    dt.timedelta(1), uuid.UUID(int=5), [1, 2**40], {"a": 1.5}, b"b",
)  # fmt: skip
PLAIN = {
    "a": [1, 2.5, None, True, (1, b"x"), {3: Decimal("1.5")}, {4}, 2**70, row_class(("f",))([1])],
    "b": EVERYTHING.when,
}
KEY = ("user", 7, -(2**70), 1.5, None, True, b"\0", Decimal("1.5"), EVERYTHING.when, EVERYTHING.day, EVERYTHING.id)
COMMIT = model.Commit(
    log_id="log", group=0, sequence=1, attempt="a", source_log="s", entries=1, hash="0" * 32, watermark=-5,
    processing_time=5, states={"s": {"id": 1}}, counters={"rows_in": 1},
)  # fmt: skip
META = GroupMeta("log", "op", 1, 2, 7, states={"s": {"id": 1}}, counters={"rows_in": 3})
CHANGES = [(b"\1\0\1@k\0\x80", b"", b"value"), (b"\1\0\2@k\0\x80", b"@x\0", None)]
TABLE = pa.table({"user": ["a", None, "bb"], "amount": [1, 2, 3], "list": [[1, 2], None, [3]]})
SCHEMA = StateSchema.of("s", "map", str, Everything).to_json()
_pack = msgspec.msgpack.encode


def snapshot() -> bytes:
    store = MemoryCommitStore()
    store.write("job", b"record")
    store.group_log("op", 0).append(1, b"row")
    store.commit()
    return store.snapshot()


def read_schema(data: bytes) -> Any:
    try:
        schema = msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        raise CorruptionError("no JSON") from error
    return value_reader(StateSchema.from_json(schema).value)


def read_segment(data: bytes) -> Any:
    """Of a file in memory: `OpenFile` without the file."""
    segment = SegmentFile(Memory(data))
    return None if segment.commit() is None else list(segment.blocks())


class Memory(OpenFile):
    def __init__(self, data: bytes) -> None:
        self.path, self.size, self._data = Path("here"), len(data), data

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]

    def __exit__(self, *arguments: object) -> None:
        pass


def table_entries() -> TableEntries:
    state = TableState("user string, day date, amount decimal(9,2), at timestamp", key=("user", "day"))
    schema = StateSchema.of_table("rows", list(state.key), Layout.of(state).fingerprint(1))
    return TableEntries({"id": 1, "schema": schema.to_json()}, "here")


ENTRIES = table_entries()
ROWS = pa.table({
    "user": ["a"], "day": pa.array([5], pa.int32()).cast(pa.date32()),
    "amount": pa.array([Decimal(1)], pa.decimal128(9, 2)), "at": pa.array([5], pa.timestamp("us", "UTC")),
})  # fmt: skip
((ROW_PREFIX, ROW_SUB, ROW_VALUE),) = ENTRIES.changes(TableBlock(1, 1, None, write_stream(ROWS)))


def row() -> bytes:
    (record,) = encode_rows(7, (), Delta(CHANGES).log_blocks(), "me", "him")
    return record


PAYLOAD = wire.RowsEncoder(TABLE.schema, None).payload(
    TABLE.combine_chunks().to_batches()[0], 1, 2, wire.encoded_mark(wire.TaskMark(5, False, {}))
)

#: Each decoder with something that it decodes.
DECODERS: dict[str, tuple[Callable[[bytes], Any], bytes]] = {
    "key": (decode_key, encode_key(KEY)),
    "key at": (lambda data: decode_key_at(data, 3), b"\1\0\1" + encode_key(KEY)),
    "tagged value": (decode_tagged, encode_tagged(PLAIN)),
    "frame": (lambda data: unframe(b"KTST", data, where="here"), frame(b"KTST", 1, b"payload")),
    "changes": (lambda data: decode_block(1, data, "here"), _pack(([CHANGES[0][0]], [b"sub"], [b"value"]))),
    "table rows": (lambda data: decode_block(2, data, "here"), _pack((1, 2, b"removed", None))),
    "table change": (
        lambda data: decode_log_block(3, data, "here"),
        _pack((("user",), ((("end", 1, 5),),), (1, 2, b"removed", None))),
    ),
    "log row": (lambda data: decode_row(data, "here"), row()),
    "meta": (lambda data: decode_meta(data, "here"), encode_meta(META)),
    "header": (lambda data: model.decode_header(data, "here"), model.encode_header(model.LogHeader("log", "op", 2, 5))),
    "commit": (lambda data: model.decode_commit(data, "here"), model.encode_commit(COMMIT)),
    "position": (lambda data: model.decode_position(data, "here"), model.encode_position(5, b"here")),
    "kept": (lambda data: model.decode_kept(data, "here"), model.encode_kept("name", b"data")),
    "segment": (read_segment, b"".join(Segment(COMMIT, [CHANGES, TableBlock(1, 2, b"removed", None)]))),
    "hash": (lambda data: hash_of_text(data.decode("latin-1"), "here"), hash_text(5).encode()),
    "schema": (read_schema, msgspec.json.encode(SCHEMA)),
    "Arrow stream": (lambda data: read_stream(data, "here").to_pylist(), write_stream(TABLE)),
    "prefix of a row": (lambda data: ENTRIES.block([(data, ROW_SUB, ROW_VALUE)]), ROW_PREFIX),
    "sub of a row": (lambda data: ENTRIES.block([(ROW_PREFIX, data, ROW_VALUE)]), ROW_SUB),
    "value of a row": (lambda data: ENTRIES.block([(ROW_PREFIX, ROW_SUB, data)]), ROW_VALUE or b""),
    "local position": (
        lambda data: local_position.decode_position(data, "here"),
        local_position.encode_position(local_position.LocalPosition(["op"], 5)),
    ),
    "position on Spark": (
        begin.decode_position,
        begin.encode_position(begin.SparkPosition(5, ["{}"])),
    ),
    "mark of a sink's folder": (lambda data: decode_mark(data, "here"), encode_mark(["query"])),
    "payload": (lambda data: cast("wire.PackedRows", wire.read_payload(data)).table(TABLE.schema), PAYLOAD),
    "snapshot": (MemoryCommitStore().restore, snapshot()),
    "key of a topic's record": (RecordKeys("op", "here").address, RecordKeys("op", "here").key(*CHANGES[0][:2])),
    "migrated value": (with_fields(value_codec(Pair).fingerprint, {"new": 5})[1], value_codec(Pair).encode(Pair(1))),
    "map key of a class": (map_key_codec(Pair).decode, map_key_codec(Pair).encode(Pair(1, "x"))),
    "stand-in": (value_reader(value_codec(Everything).fingerprint), value_codec(Everything).encode(EVERYTHING)),
}
for type_, value in (
    (int, 2**70), (float, 1.5), (str, "text"), (Decimal, Decimal(5)), (dt.datetime, EVERYTHING.when),
    (Color, Color.RED), (uuid.UUID, EVERYTHING.id), (Everything, EVERYTHING), (list[Pair], [Pair(1)]),
    (dict[int, Color], {1: Color.RED}), (tuple[int, object], (1, [2])), (set[str], {"a"}), (dt.time, dt.time(1)),
    (int | str | None, 1),
):  # fmt: skip
    codec = value_codec(type_)
    DECODERS[f"value of {type_}"] = codec.decode, codec.encode(value)

FRAMED = {name for name, (_, sample) in DECODERS.items() if sample[:1] == b"K" and len(sample) > FRAME_OVERHEAD}
#: These take any payload, the beginning for a key, a file that is not whole, and positions of other runtimes.
PREFIXES = {"frame", "frames", "key at", "segment", "position on Spark"}
ODD = [b"", b"\0", b"\xff", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
       b"\x91" * 3000, b"\x81\xa1a" * 2000, b"\x06" * 3000, b"\xd4\x01\x90", b"\xc7\x00\x05", b"\xd9\xff"]  # fmt: skip


def mutated(number: Random, sample: bytes) -> bytes:
    """A byte string near to a sample."""
    data = bytearray(sample)
    for _ in range(number.choice((1, 1, 1, 2, 4))):
        at = number.randrange(len(data) + 1)
        match number.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << number.randrange(8)
            case 1 if data:
                data[at % len(data)] = number.choice((0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xFF, number.randrange(256)))
            case 2:
                del data[at:]
            case 3:
                del data[at : at + number.randint(1, 9)]
            case 4:
                data[at:at] = number.randbytes(number.randint(1, 9))
            case 5:
                data[at:at] = number.choice(ODD)
            case 6:
                data[at:at] = number.choice(PICKLES)
    return bytes(data)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_only_the_documented_error(part):
    number = Random(SEED + part)
    decoders = list(DECODERS.items())
    for _ in range(COUNT // PARTS):
        name, (_, sample) = number.choice(decoders)
        match number.randrange(8):
            case 0:
                data = number.randbytes(number.randrange(40))
            case 1:
                data = number.choice(PICKLES)
            case 2 | 3 | 4 if name in FRAMED:
                # The checksum is right, so that what is behind it is looked at.
                data = frame(sample[:4], 1, mutated(number, sample[FRAME_OVERHEAD:]))
            case _:
                data = mutated(number, sample)
        # What another decoder's data was made from is hardly worth more than chance.
        for other, (decode, _) in [(name, DECODERS[name]), *number.sample(decoders, 5)]:
            with contextlib.suppress(CorruptionError):
                try:
                    decode(data)
                except CorruptionError:
                    raise
                except BaseException as error:
                    raise AssertionError(f"KEYED_SEED={SEED}: decoder of {other}, {data!r:.500}") from error


@pytest.mark.parametrize("name", DECODERS)
def test_samples_are_decoded(name):
    decode, sample = DECODERS[name]
    decode(sample)


@pytest.mark.parametrize("name", DECODERS)
def test_pickles_are_refused_and_not_run(name, capsys):
    decode, sample = DECODERS[name]
    for payload in PICKLES:
        for data in (payload, frame(sample[:4], 1, payload)) if name in FRAMED else (payload,):
            if name in PREFIXES:
                with contextlib.suppress(CorruptionError):
                    decode(data)
                continue
            with pytest.raises(CorruptionError):
                decode(data)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", sorted(FRAMED - PREFIXES))
def test_damage_of_a_framed_record_is_found(name):
    decode, sample = DECODERS[name]
    for size in range(len(sample)):
        with pytest.raises(CorruptionError):
            decode(sample[:size])
    with pytest.raises(CorruptionError, match="follow"):
        decode(sample + b"\0")
    for bit in range(8 * len(sample)):
        damaged = bytearray(sample)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode(bytes(damaged))
    with pytest.raises(CorruptionError, match=r"version 9, and this program reads version 1.* in (here|snapshot)"):
        decode(frame(sample[:4], 9, sample[FRAME_OVERHEAD:]))
