"""The rows of all inputs of a script as one source: merged by time, a batch at a time, resumed after a checkpoint.

Given rows are read again from their start; Kafka topics from the offsets that a checkpoint has.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from keyed.base.sources import PAUSE
from keyed.errors import CheckpointError
from keyed.kafka.kafka_source import WAIT, KafkaSource, Place, offsets_of, position_of
from keyed.sql.catalog import PLACE, STREAM
from keyed.sql.script_inputs import BAD, SOURCE, TIME, ScriptInput, Skipped

#: Rows at either end of what was read that are compared when it is given again.
_COMPARED = 100
#: Records of a partition that are decoded at a time.
_RECORDS = 10_000


class _Head:
    """The rows of an input that were read and not passed on. Each has a place: by default the highest time up to it.

    Args:
        number: The number of the input.
        script_input: The input.

    Attributes:
        places: Where each row stands among those of all inputs.
        bound: The place of the last row that was read.
        may_grow: True if rows that come later may have this place.
    """

    def __init__(self, number: int, script_input: ScriptInput) -> None:
        self.number = number
        self.name = script_input.source.name
        self.script_input = script_input
        self.rows: Any = script_input.schema.empty_table()
        self.places: Any = np.empty(0, dtype=np.int64)
        self.bound = 0
        self.may_grow = True

    def fill(self, count: int) -> None:
        """Read more rows, so that there are at least so many if the input has them."""

    def _add(self, table: pa.Table) -> None:
        if PLACE in table.column_names:
            places = table.column(PLACE).to_numpy()
            table = table.drop_columns([PLACE])
        else:
            times = table.column(TIME).to_numpy()
            reasons = table.column(BAD)
            if reasons.null_count < len(reasons):
                times = np.where(reasons.is_null().to_numpy(), times, 0)
            places = np.maximum.accumulate(np.maximum(times, self.bound))
        self.bound = int(places[-1])
        self.rows = pa.concat_tables([self.rows, table])
        self.places = np.concatenate([self.places, places])

    def take(self, count: int) -> pa.Table:
        """Take the first rows, and advance the position."""
        rows: pa.Table = self.rows.slice(0, count)
        self.rows, self.places = self.rows.slice(count), self.places[count:]
        return rows


class _InputHead(_Head):
    """The rows of an input that is given again from its start."""

    def __init__(self, number: int, script_input: ScriptInput, *, keeps: bool) -> None:
        super().__init__(number, script_input)
        self._tables = script_input.tables()
        self._keeps = keeps
        self._read = 0
        self._first = self._last = self.rows

    def fill(self, count: int) -> None:
        """See `_Head.fill`."""
        while self.may_grow and len(self.places) < count:
            table = next(self._tables, None)
            if table is None:
                self.may_grow = False
            elif table.num_rows:
                self._add(table)

    def take(self, count: int) -> pa.Table:
        """See `_Head.take`."""
        rows = super().take(count)
        self._read += count
        if self._keeps:
            if self._first.num_rows < _COMPARED:
                self._first = pa.concat_tables([self._first, rows]).slice(0, _COMPARED)
            last = pa.concat_tables([self._last, rows.slice(max(0, count - _COMPARED))])
            self._last = last.slice(max(0, last.num_rows - _COMPARED))
        return rows

    def position(self) -> list[int]:
        """Return how many rows were passed on, and checksums of the first and last of them."""
        return [self._read, _checksum(self._first), _checksum(self._last)]

    def seek(self, position: list[int]) -> None:
        """Pass rows that earlier runs have read.

        Raises:
            CheckpointError: They are others.
        """
        count = position[0]
        while self._read < count and (self.may_grow or len(self.places)):
            self.fill(1)
            self.take(min(count - self._read, len(self.places)))
        if self.position() != position:
            raise CheckpointError(
                f"the checkpoint has read {count} records of the rows of {self.name}, and these are not the first ones "
                "anymore; give it again from its start, with new records at its end, or start from a new checkpoint"
            )


class _LiveHead(_Head):
    """The records of a partition of a Kafka topic, as rows of one input.

    Args:
        number: The number of the input.
        script_input: The input.
        place: The topic and the partition.
        offset: The offset at which it begins.
    """

    def __init__(self, number: int, script_input: ScriptInput, place: Place, offset: int) -> None:
        super().__init__(number, script_input)
        self.place = place
        #: The offset after each row.
        self._offsets: Any = np.empty(0, dtype=np.int64)
        self.offset = self._end = offset

    def add(self, messages: Sequence[Any], end: int) -> None:
        """Add records, up to an offset."""
        messages = [each for each in messages if each.offset() >= self._end]
        self._end = max(self._end, end)
        if messages:
            self._add(self.script_input.of_messages(messages))
            self._offsets = np.concatenate([self._offsets, [each.offset() + 1 for each in messages]])
        elif not len(self.places):
            self.offset = self._end

    def take(self, count: int) -> pa.Table:
        """See `_Head.take`."""
        self.offset = self._end if count == len(self._offsets) else int(self._offsets[count - 1])
        self._offsets = self._offsets[count:]
        return super().take(count)


def numbered(number: int, names: Iterable[str]) -> list[str]:
    """Return the names that columns of an input have among those of all."""
    return [name if name in (TIME, BAD) else f"{number}.{name}" for name in names]


def _checksum(rows: pa.Table) -> int:
    # Whether a time is too far ahead depends on when it is read.
    return zlib.crc32(msgspec.json.encode(rows.drop_columns([BAD]).to_pylist())) if rows.num_rows else 0


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
        topics: The records of these topics.
    """

    inputs: Mapping[str, ScriptInput]
    size: int
    skipped: Skipped
    keeps: bool = attrs.field(kw_only=True)
    live: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    topics: KafkaSource | None = attrs.field(default=None, kw_only=True)
    #: The offset in each partition of a topic, by input.
    _offsets: dict[str, dict[Place, int]] = attrs.field(factory=dict, init=False)
    _partitions: dict[Place, list[_LiveHead]] = attrs.field(factory=dict, init=False)
    _closed: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        types: dict[str, Any] = (
            {SOURCE: pa.int32()} | dict.fromkeys((TIME, STREAM, PLACE), pa.int64()) | {BAD: pa.string()}
        )
        for number, each in enumerate(self.inputs.values()):
            own = zip(numbered(number, each.schema.names), each.schema.types, strict=True)
            types |= {name: type_ for name, type_ in own if name not in types}
        self._nothing = pa.schema(types).empty_table()
        self._heads: list[_Head] = [
            _InputHead(number, each, keeps=self.keeps)
            for number, (name, each) in enumerate(self.inputs.items())
            if name not in self.live
        ]
        self._highest = self._rows = 0

    @property
    def rows_skipped(self) -> int:
        """The number of rows that this run has skipped."""
        return sum(sum(each.values()) for each in self.skipped.values())

    def position(self) -> dict[str, Any]:
        """Return what was read. See `keyed.SeekableSource.position`."""
        inputs = {}
        for each in self._heads:
            if isinstance(each, _LiveHead):
                self._offsets.setdefault(each.name, {})[each.place] = each.offset
            elif isinstance(each, _InputHead):
                inputs[each.name] = each.position()
        topics = {name: position_of([topic], self._offsets.get(name, {})) for name, topic in self.live.items()}
        return {"inputs": inputs, "topics": topics, "highest": self._highest, "rows": self._rows}

    def seek(self, position: Any) -> None:
        """Resume after what was read. See `keyed.SeekableSource.seek`.

        Raises:
            CheckpointError: An input has other rows, or the checkpoint has read other topics.
        """
        before = {name: topic for name, each in position["topics"].items() for topic in each}
        if before != self.live:
            remedy = (
                "give the address of the cluster (keyed.sql.Kafka, or --bootstrap)"
                if before and self.topics is None
                else "read the same ones"
            )
            raise CheckpointError(
                f"the checkpoint has read the Kafka topics {sorted(before.values())}, and this run reads "
                f"{sorted(self.live.values()) or 'none'}; {remedy}, or start from a new checkpoint"
            )
        self._offsets = {name: offsets_of(each) for name, each in position["topics"].items()}
        heads = {each.name: each for each in self._heads if isinstance(each, _InputHead)}
        for name, read in position["inputs"].items():
            if name in heads:
                heads[name].seek(read)
            elif read[0]:
                raise CheckpointError(
                    f"the checkpoint has read {read[0]} records of the rows of {name}, which is not given; give it "
                    "again from its start, or start from a new checkpoint"
                )
        self._highest, self._rows = position["highest"], position["rows"]

    def close(self) -> None:
        """End the iteration within a moment. It may be called from another thread."""
        self._closed = True

    def __iter__(self) -> Iterator[Any]:
        """See `batches`."""
        return self.batches()

    def batches(self) -> Iterator[Any]:
        """Yield tables, each a batch; `keyed.PAUSE` if there are no rows for now."""
        self._closed = False
        topics = self.topics
        try:
            if topics is not None:
                self._open(topics)
            yield from self._cut(topics)
        finally:
            if topics is not None:
                topics.disconnect()

    def _open(self, topics: KafkaSource) -> None:
        """Read each partition from the lowest offset of the inputs that read it."""
        offsets: dict[Place, int] = {}
        for own in self._offsets.values():
            offsets |= {place: min(at, offsets.get(place, at)) for place, at in own.items()}
        topics.seek(position_of(topics.topics, offsets))
        live = [
            _LiveHead(number, each, place, self._offsets.get(name, {}).get(place, at))
            for place, at in topics.open().items()
            for number, (name, each) in enumerate(self.inputs.items())
            if self.live.get(name) == place[0]
        ]
        self._heads = sorted([*self._heads, *live], key=lambda each: each.number)
        self._partitions = {}
        for each in live:
            self._partitions.setdefault(each.place, []).append(each)

    def _cut(self, topics: KafkaSource | None) -> Iterator[Any]:
        """Yield batches; those of live records end after the interval."""
        began: float | None = None
        wait, is_bad = 0.0, False
        while not self._closed:
            is_busy = topics is not None and topics.fetch(wait)
            if topics is not None:
                self._receive(topics)
            for each in self._heads:
                each.fill(self.size)
            counts = self._counts()
            count = sum(counts)
            began = (began or time.monotonic()) if count else None
            wait = 0.0 if topics is None else topics.seconds_left(began)
            is_ended = not any(each.may_grow for each in self._heads) and (topics is None or topics.is_ended)
            if began is not None and (is_ended or count >= self.size or not wait):
                batch = self._batch(counts)
                is_bad = not batch.num_rows
                if not is_bad:
                    yield batch
                began, wait = None, 0.0
            elif is_ended:
                if is_bad and self.keeps:
                    # The position after the bad rows.
                    yield self._with_order(self._nothing)
                return
            else:
                if began is None:
                    yield PAUSE
                wait = 0.0 if is_busy else min(WAIT, wait)

    def _receive(self, topics: KafkaSource) -> None:
        """Add the records that came."""
        for place, heads in self._partitions.items():
            if any(len(each.places) < self.size for each in heads):
                messages, end = topics.take(place, _RECORDS)
                for each in heads:
                    each.add(messages, end)
        held = [place for place, heads in self._partitions.items() if all(len(each.places) for each in heads)]
        topics.wait_for_others(held)
        for place, heads in self._partitions.items():
            for each in heads:
                each.may_grow = topics.has_more(place)

    def _counts(self) -> list[int]:
        """Return how many rows of each head have places that no later row can have, at most those of a batch."""
        bounds = [each.bound for each in self._heads if each.may_grow]
        bound = min(bounds, default=None)
        counts = []
        is_blocked = False
        for each in self._heads:
            # At the bound itself an input before this one may have more rows.
            side: Any = "left" if is_blocked else "right"
            count = len(each.places) if bound is None else int(np.searchsorted(each.places, bound, side=side))
            is_blocked = is_blocked or (each.may_grow and each.bound == bound)
            counts.append(min(count, self.size))
        return counts

    def _batch(self, counts: Sequence[int]) -> pa.Table:
        """Take the first of so many rows of each head, by place."""
        heads = [(each, count) for each, count in zip(self._heads, counts, strict=True) if count]
        if len(heads) == 1:
            table = self._take_rows(heads)
        else:
            own = np.array([count for _, count in heads])
            order = np.argsort(np.concatenate([each.places[:count] for each, count in heads]), kind="stable")
            order = order[: self.size]
            owners = np.repeat(np.arange(len(heads)), own)[order]
            counted = np.bincount(owners, minlength=len(heads))
            left = own - counted
            order -= (np.cumsum(left) - left)[owners]
            parts = zip((each for each, _ in heads), counted.tolist(), strict=True)
            # A head of which nothing is taken keeps its offset.
            table = self._take_rows([(each, count) for each, count in parts if count]).take(order)
        reasons: Any = table.column(BAD)
        return self._with_order(table if reasons.null_count == len(table) else table.filter(reasons.is_null()))

    def _take_rows(self, counts: Iterable[tuple[_Head, int]]) -> pa.Table:
        """Take so many of the first rows of heads, with the columns of all inputs."""
        parts = [self._nothing]
        for head, count in counts:
            rows = head.take(count)
            if rows.column(BAD).null_count < count:
                head.script_input.without_bad(rows)
            source: Any = pa.repeat(pa.scalar(head.number, pa.int32()), count)
            parts.append(rows.rename_columns(numbered(head.number, rows.column_names)).append_column(SOURCE, source))
        return pa.concat_tables(parts, promote_options="default")

    def _with_order(self, batch: pa.Table) -> pa.Table:
        """Return a batch with the number of each row, and the time of the stream: the highest of all rows up to it."""
        highest = np.maximum.accumulate(np.maximum(batch.column(TIME).to_numpy(), self._highest))
        self._highest = int(highest.max(initial=self._highest))
        places = np.arange(self._rows, self._rows + len(highest))
        self._rows += len(highest)
        for name, column in ((STREAM, highest), (PLACE, places)):
            batch = batch.set_column(batch.schema.get_field_index(name), name, pa.array(column))
        return batch.drop_columns([BAD])
