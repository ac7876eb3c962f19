"""The rows of all inputs of a script as one source: merged by time, a batch at a time, resumed after a checkpoint.

Given rows are read again from their start; Kafka topics from the offsets that a checkpoint has.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from keyed.base.sources import PAUSE
from keyed.errors import CheckpointError
from keyed.kafka.topics_reader import TopicsReader
from keyed.sql.catalog import STREAM
from keyed.sql.script_inputs import PLACE, SOURCE, TIME, ScriptInput, Skipped

#: Rows at either end of what was read that are compared when it is given again.
_COMPARED = 100
#: Records of a partition that are decoded at a time.
_RECORDS = 10_000
#: Seconds for which a script waits for records of topics before it yields `PAUSE`.
_WAIT = 0.1


class _Head:
    """The rows of an input that were read and not passed on. Each has a place: by default the highest time up to it.

    Args:
        number: The number of the input.
        given: The input.
    """

    def __init__(self, number: int, given: ScriptInput) -> None:
        self.number = number
        self.name = given.source.name
        self._given = given
        self._highest = 0
        self.rows: Any = None
        self.places: Any = np.empty(0, dtype=np.int64)
        self.is_ended = False

    @property
    def bounds(self) -> bool:
        """True if rows that come later may have the place of its last row."""
        return not self.is_ended

    def fill(self) -> None:
        """Read more rows."""

    def _add(self, table: pa.Table) -> None:
        times = np.maximum.accumulate(np.maximum(table.column(TIME).to_numpy(), self._highest))
        self._highest = int(times[-1])
        places = table.column(PLACE).to_numpy() if PLACE in table.column_names else times
        self.rows = _joined(self.rows, table)
        self.places = np.concatenate([self.places, places])

    def take(self, count: int) -> pa.Table:
        """Take the first rows."""
        found: pa.Table = self.rows.slice(0, count)
        self.rows, self.places = self.rows.slice(count), self.places[count:]
        return found

    def passed(self, count: int) -> None:
        """Note that the next rows that were taken belong to a batch."""


class _GivenHead(_Head):
    """The rows of an input that is given again from its start."""

    def __init__(self, number: int, given: ScriptInput, *, keeps: bool) -> None:
        super().__init__(number, given)
        self._tables = given.tables()
        self._keeps = keeps
        self._read = 0
        self._taken: Any = None
        self._first: Any = None
        self._last: Any = None

    def fill(self) -> None:
        """See `_Head.fill`."""
        for table in self._tables:
            if table.num_rows:
                self._add(table)
                return
        self.is_ended = True

    def take(self, count: int) -> pa.Table:
        """See `_Head.take`."""
        found = super().take(count)
        if self._keeps:
            self._taken = _joined(self._taken, found)
        return found

    def passed(self, count: int) -> None:
        """See `_Head.passed`."""
        self._read += count
        if self._keeps:
            rows, self._taken = self._taken.slice(0, count), self._taken.slice(count)
            if self._first is None or self._first.num_rows < _COMPARED:
                self._first = _joined(self._first, rows).slice(0, _COMPARED)
            last = _joined(self._last, rows.slice(max(0, count - _COMPARED)))
            self._last = last.slice(max(0, last.num_rows - _COMPARED))

    def position(self) -> list[int]:
        """Return how many rows were passed on, checksums of the first and last of them, and how many rows were bad."""
        return [self._read, _checksum(self._first), _checksum(self._last), max(self._given.bad, self._given.known)]

    def seek(self, position: list[int]) -> None:
        """Pass rows that earlier runs have read.

        Raises:
            CheckpointError: They are others.
        """
        count, *checksums, self._given.known = position
        while self._read < count and not self.is_ended:
            if len(self.places):
                self.passed(self.take(min(count - self._read, len(self.places))).num_rows)
            else:
                self.fill()
        if self.position()[:3] != [count, *checksums]:
            raise CheckpointError(
                f"the checkpoint has read {count} records of the rows of {self.name}, and these are not the first ones "
                "anymore; give it again from its start, with new records at its end, or start from a new checkpoint"
            )


class _LiveHead(_Head):
    """The records of a partition of a Kafka topic, as rows of one input.

    Args:
        number: The number of the input.
        given: The input.
        partition: The partition.
        at: The offset at which it begins, and the one up to which earlier runs have counted bad records.
    """

    def __init__(self, number: int, given: ScriptInput, partition: int, at: Sequence[int]) -> None:
        super().__init__(number, given)
        self.partition = partition
        self._offsets: Any = np.empty(0, dtype=np.int64)
        self.offset, self._counted = at
        self._end = self.offset
        self.has_more = False

    @property
    def bounds(self) -> bool:
        """See `_Head.bounds`."""
        return self.has_more

    def position(self) -> list[int]:
        """Return the offset of the next record, and the one up to which bad records are counted."""
        return [self.offset, max(self._end, self._counted)]

    def add(self, messages: Sequence[Any], end: int) -> None:
        """Add records, up to an offset."""
        messages = [each for each in messages if each.offset() >= self._end]
        self._end = max(self._end, end)
        if messages:
            table, kept = self._given.of_messages(messages, self._counted)
            if table.num_rows:
                self._add(table)
                self._offsets = np.concatenate([self._offsets, [messages[place].offset() + 1 for place in kept]])
        if not len(self.places):
            self.offset = self._end

    def passed(self, count: int) -> None:
        """See `_Head.passed`."""
        self.offset = int(self._offsets[count - 1])
        self._offsets = self._offsets[count:]
        if not len(self._offsets):
            self.offset = self._end


def _joined(before: Any, rows: pa.Table) -> pa.Table:
    return rows if before is None else pa.concat_tables([before, rows])


def _checksum(rows: Any) -> int:
    if rows is None:
        return 0
    names = [each for each in rows.column_names if each != PLACE]
    return zlib.crc32(msgspec.json.encode(rows.select(names).to_pylist()))


@attrs.define(eq=False, slots=False)
class ScriptRows:
    """The rows of all inputs, as tables: a `keyed.SeekableSource` whose elements are batches.

    Each input keeps its own order: a row waits for those before it. At equal times the inputs come in their order. The
    columns of an input have its number before their names.

    Attributes:
        inputs: The inputs, by name.
        size: Rows of a batch.
        skipped: The rows that are skipped.
        keeps: A checkpoint keeps the position.
        live: Those of the inputs that are Kafka topics, by name, with their topics.
        reader: The reader of these topics.
        interval: Seconds after which a batch of their records ends.
    """

    inputs: Mapping[str, ScriptInput]
    size: int
    skipped: Skipped
    keeps: bool = attrs.field(kw_only=True)
    live: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    reader: TopicsReader | None = attrs.field(default=None, kw_only=True)
    interval: float = attrs.field(default=1.0, kw_only=True)
    #: The position in each partition of a topic, by input.
    _offsets: dict[str, dict[str, list[int]]] = attrs.field(factory=dict, init=False)
    _partitions: list[_LiveHead] = attrs.field(factory=list, init=False)
    _closed: bool = attrs.field(default=False, init=False)
    #: Bad rows that the position has.
    _noted: int = attrs.field(default=0, init=False)
    #: Rows that are merged and not yielded, and the place of the head of each.
    _ready: list[pa.Table] = attrs.field(factory=list, init=False)
    _owners: list[Any] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        fields = [pa.field(SOURCE, pa.int32()), pa.field(TIME, pa.int64()), pa.field(STREAM, pa.int64())]
        for number, each in enumerate(self.inputs.values()):
            fields += [pa.field(f"{number}.{field.name}", field.type) for field in each.schema if field.name != TIME]
        self.schema = pa.schema(fields)
        self._given = [
            _GivenHead(number, each, keeps=self.keeps)
            for number, (name, each) in enumerate(self.inputs.items())
            if name not in self.live
        ]
        self._highest = dict.fromkeys(self.inputs, 0)

    @property
    def rows_skipped(self) -> int:
        """The number of rows that this run has skipped."""
        return sum(sum(each.values()) for each in self.skipped.values())

    @property
    def _heads(self) -> list[_Head]:
        return sorted([*self._given, *self._partitions], key=lambda each: each.number)

    def position(self) -> dict[str, Any]:
        """Return what was read. See `keyed.SeekableSource.position`."""
        for each in self._partitions:
            self._offsets.setdefault(each.name, {})[str(each.partition)] = each.position()
        topics = {name: {"topic": topic, "offsets": self._offsets.get(name, {})} for name, topic in self.live.items()}
        return {
            "inputs": {each.name: each.position() for each in self._given},
            "topics": topics,
            "highest": self._highest,
        }

    def seek(self, position: Any) -> None:
        """Resume after what was read. See `keyed.SeekableSource.seek`.

        Raises:
            CheckpointError: An input has other rows, or the checkpoint has read other topics.
        """
        before = {name: each["topic"] for name, each in position["topics"].items()}
        if before != self.live:
            remedy = (
                "give the address of the cluster (keyed.sql.Kafka, or --bootstrap)"
                if before and self.reader is None
                else "read the same ones"
            )
            raise CheckpointError(
                f"the checkpoint has read the Kafka topics {sorted(before.values())}, and this run reads "
                f"{sorted(self.live.values()) or 'none'}; {remedy}, or start from a new checkpoint"
            )
        self._offsets = {name: dict(each["offsets"]) for name, each in position["topics"].items()}
        given = {each.name: each for each in self._given}
        for name, read in position["inputs"].items():
            if name in given:
                given[name].seek(read)
            elif read[0]:
                raise CheckpointError(
                    f"the checkpoint has read {read[0]} records of the rows of {name}, which is not given; give it "
                    "again from its start, or start from a new checkpoint"
                )
        self._highest |= {name: at for name, at in position["highest"].items() if name in self._highest}
        self._noted = sum(each.known for each in self.inputs.values())

    def close(self) -> None:
        """End the iteration within a moment. It may be called from another thread."""
        self._closed = True

    def __iter__(self) -> Iterator[Any]:
        """Return tables, each a batch; `keyed.PAUSE` if there are no rows for now."""
        self._closed = False
        reader = self.reader
        if reader is None:
            while self._merge():
                yield from self._batches(self.size)
            yield from self._rest()
            return
        self._open(reader)
        try:
            yield from self._followed(reader)
        finally:
            reader.close()

    def _open(self, reader: TopicsReader) -> None:
        numbers = {name: number for number, name in enumerate(self.inputs)}
        offsets: dict[tuple[str, int], int] = {}
        for name, topic in self.live.items():
            for partition, (at, _) in self._offsets.get(name, {}).items():
                place = (topic, int(partition))
                offsets[place] = min(at, offsets.get(place, at))
        begin = reader.open(offsets)
        self._partitions = [
            _LiveHead(numbers[name], self.inputs[name], number, self._offsets.get(name, {}).get(str(number), [at, at]))
            for name, topic in self.live.items()
            for (of, number), at in begin.items()
            if of == topic
        ]

    def _followed(self, reader: TopicsReader) -> Iterator[Any]:
        """Yield batches of live records, and of the given rows."""
        began: float | None = None
        wait = 0.0
        while not self._closed:
            reader.fetch(wait)
            is_held = self._receive(reader)
            merged = not is_held and self._merge()
            yield from self._batches(self.size)
            now = time.monotonic()
            if not self._ready:
                began = None
            elif began is None:
                began = now
            is_ended = reader.is_ended and not any(len(each.places) for each in self._heads)
            if is_ended and all(each.is_ended for each in self._given):
                yield from self._rest()
                return
            if began is not None and now >= began + self.interval:
                began = None
                yield from self._batches(1)
            elif began is None and not merged:
                yield PAUSE
            wait = 0.0 if merged else _WAIT if began is None else min(_WAIT, max(0.0, began + self.interval - now))

    def _receive(self, reader: TopicsReader) -> bool:
        """Add the records that came; return whether a partition without some delays the others."""
        by_place: dict[tuple[str, int], list[_LiveHead]] = {}
        for each in self._partitions:
            by_place.setdefault((self.live[each.name], each.partition), []).append(each)
        for place, heads in by_place.items():
            if any(not len(each.places) for each in heads):
                messages, end = reader.take(place, _RECORDS)
                for each in heads:
                    each.add(messages, end)
            for each in heads:
                each.has_more = reader.has_more(place)
        held = {place for place, heads in by_place.items() if all(len(each.places) for each in heads)}
        return reader.is_delayed(held)

    def _batches(self, least: int) -> Iterator[pa.Table]:
        """Yield the merged rows as batches, as long as there are so many."""
        while self._ready and sum(each.num_rows for each in self._ready) >= least:
            table = self._ready[0] if len(self._ready) == 1 else pa.concat_tables(self._ready)
            owners = self._owners[0] if len(self._owners) == 1 else np.concatenate(self._owners)
            count = min(self.size, table.num_rows)
            for head, rows in zip(self._heads, np.bincount(owners[:count], minlength=len(self._heads)), strict=True):
                if rows:
                    head.passed(int(rows))
            self._ready = [table.slice(count)] if count < table.num_rows else []
            self._owners = [owners[count:]] if self._ready else []
            yield self._with_highest(table.slice(0, count))

    def _rest(self) -> Iterator[pa.Table]:
        """Yield the last batch: without rows if there are only bad ones, which the position has then."""
        yield from self._batches(1)
        if self.keeps and self._bad != self._noted:
            yield self._with_highest(self.schema.empty_table())

    @property
    def _bad(self) -> int:
        return sum(max(each.bad, each.known) for each in self.inputs.values())

    def _with_highest(self, batch: pa.Table) -> pa.Table:
        """Return a batch with the highest time of each row's input up to it."""
        self._noted = self._bad
        times = batch.column(TIME).to_numpy()
        numbers = batch.column(SOURCE).to_numpy()
        found = np.empty(len(times), dtype=np.int64)
        for number, name in enumerate(self.inputs):
            own = numbers == number
            if own.any():
                found[own] = np.maximum.accumulate(np.maximum(times[own], self._highest[name]))
                self._highest[name] = int(found[own][-1])
        return batch.set_column(self.schema.get_field_index(STREAM), STREAM, pa.array(found))

    def _merge(self) -> bool:
        """Merge rows whose places no later row can have; return false if there are none now."""
        heads = self._heads
        for head in heads:
            if not len(head.places) and not head.is_ended:
                head.fill()
        bounding = [each for each in heads if each.bounds and len(each.places)]
        bound = min((int(each.places[-1]) for each in bounding), default=None)
        parts: list[pa.Table] = []
        places: list[Any] = []
        owners: list[Any] = []
        blocked = False
        for owner, head in enumerate(heads):
            if not len(head.places):
                continue
            # At the bound itself an input before this one may have more rows.
            side: Any = "left" if blocked else "right"
            count = len(head.places) if bound is None else int(np.searchsorted(head.places, bound, side=side))
            blocked = blocked or (head.bounds and int(head.places[-1]) == bound)
            if count:
                places.append(head.places[:count])
                parts.append(self._placed(head.take(count), head.number))
                owners.append(np.full(count, owner))
        if not parts:
            return False
        table, each_owner = parts[0], owners[0]
        if len(parts) > 1:
            each_owner = np.concatenate(owners)
            order: Any = np.lexsort((each_owner, np.concatenate(places)))
            table, each_owner = pa.concat_tables(parts).take(order), each_owner[order]
        self._ready.append(table)
        self._owners.append(each_owner)
        return True

    def _placed(self, table: pa.Table, number: int) -> pa.Table:
        """Return the rows of an input with the columns of all."""
        count = table.num_rows
        made: list[Any] = []
        for field in self.schema:
            own = field.name.removeprefix(f"{number}.")
            if field.name == SOURCE:
                made.append(pa.array(np.full(count, number, dtype=np.int32)))
            elif field.name == TIME or own != field.name:
                made.append(table.column(own))
            else:
                made.append(pa.nulls(count, field.type))
        return pa.table(made, schema=self.schema)
