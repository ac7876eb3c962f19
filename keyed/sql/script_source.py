"""The records of a script as one source: several inputs, merged by timestamp, that resume where a checkpoint ends."""

from __future__ import annotations

import logging
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from keyed.errors import CheckpointError, SourceError
from keyed.kafka_topics import TopicsReader
from keyed.shown import shown
from keyed.sources import PAUSE
from keyed.sql.catalog import SqlSource
from keyed.sql.given_rows import LEFT_OUT, GivenRows
from keyed.sql.java_formats import parse_moment
from keyed.sql.row_changes import NO_KEY, Change, Sealed, route_of
from keyed.sql.value_formats import BadRecord
from keyed.sql.wire_formats import WireFormats

#: A record of a topic: topic, key, value, timestamp, partition, offset, headers, window, number, stream time; and of a
#: stream that is read from columns what their engine has computed.
TOPIC, RAW_KEY, RAW_VALUE, RAW_TIME, PARTITION, OFFSET, HEADERS, RAW_WINDOW, ARRIVAL, STREAM_TIME, COMPUTED = range(11)
#: Returns the timestamp of a record by its key, value and own timestamp; ``None`` if it has none.
Extractor = Callable[[Any, Any, int], int | None]

#: Version of the form of keys (`keyed.sql.row_changes.route_of`).
_ROUTES = 2
#: Seconds for which a script waits for records of topics before it yields `PAUSE`.
_WAIT = 0.1
#: Records that no query needs are counted at the latest when so many follow each other.
_PASSED = 1000
#: Timestamps from here on are not usable: no window could end after them.
_LATEST = 2**62

_log = logging.getLogger(__name__)


def extractor_of(source: SqlSource, formats: WireFormats | None, *, strict: bool) -> Extractor:
    """Return the function that reads the timestamp of a record from the column that a source names.

    Args:
        source: The stream or table, with such a column.
        formats: The formats of records of a Kafka topic; ``None`` for plain data.
        strict: Records without a usable timestamp raise `SourceError`.
    """
    assert source.timestamp is not None
    name, pattern = source.timestamp
    place = [each for each, _ in (*source.keys, *source.stored)].index(name)
    split = None
    if formats is None:
        key_of, value_of = source.key_decoder(), source.value_decoder()
    else:
        key_of, value_of, split = formats.key_decoder(source), formats.value_decoder(source), formats.window_of(source)

    def extracted(key: Any, value: Any, time: int) -> int | None:
        try:
            columns = value_of(value)
            if columns is None:
                return time
            cell = (*key_of(key if split is None else split(key)[0]), *columns)[place]
            return parse_moment(cell, pattern) if pattern is not None and cell is not None else cell
        except BadRecord:
            return time  # the source skips it, and counts it
        except ValueError:
            return None

    def checked(key: Any, value: Any, time: int) -> int | None:
        moment = extracted(key, value, time)
        if moment is None or moment < 0:
            raise SourceError(
                f"topic {source.topic}: the record with the key {shown(key)} and the value {shown(value)} has no "
                "usable timestamp; without 'ksql.timestamp.throw.on.invalid' it would be skipped and counted"
            )
        return moment

    return checked if strict else extracted


def decoder_of(
    source: SqlSource, unreadable: Counter[str] | None, formats: WireFormats | None = None
) -> Callable[[Any], Iterable[Change]]:
    """Return the function from a record of any topic to the change of a source, if it is one of its topic."""
    topic, split = source.topic, None
    if formats is None:
        key_of, value_of = source.key_decoder(), source.value_decoder()
    else:
        key_of, value_of, split = formats.key_decoder(source), formats.value_decoder(source), formats.window_of(source)
    headers = dict(source.headers)
    names = [name for name, _ in source.values]
    stored = [name for name, _ in source.stored]
    is_table, is_windowed, is_computed = source.is_table, source.window is not None, source.computed is not None
    width = source.window_ms

    def decode(record: Any) -> Iterable[Change]:
        if record[TOPIC] != topic:
            return ()
        raw_key, window = record[RAW_KEY], record[RAW_WINDOW] if is_windowed else None
        try:
            if split is not None:
                raw_key, window = split(raw_key)
            key, value = key_of(raw_key), value_of(record[RAW_VALUE])
        except BadRecord as error:
            if unreadable is None:
                return ()
            unreadable[source.name] += 1
            if unreadable[source.name] == 1:
                _log.warning(
                    "topic %s, offset %s: %s cannot read the record and skips it, as it will others: %s",
                    topic,
                    record[OFFSET],
                    source.name,
                    error,
                )
            return ()
        if is_table and all(each is None for each in key):
            return ()
        if is_windowed and window is None:
            start = record[RAW_TIME]
            window = (start, start + (width or 0))
        if headers and value is not None:
            cells = dict(zip(stored, value, strict=True))
            value = tuple(_header(record[HEADERS], headers[n]) if n in headers else cells[n] for n in names)
        if is_computed and value is not None:
            value = (*value, record[COMPUTED])
        meta = (record[PARTITION], record[OFFSET], record[HEADERS], record[ARRIVAL])
        place = NO_KEY if record[RAW_KEY] is None and len(key) > 1 else route_of(key)
        return ((place, key, value, None, record[RAW_TIME], window, meta),)

    return decode


def _header(headers: Any, name: str | None) -> Any:
    if name is None:
        return [{"KEY": key, "VALUE": value} for key, value in headers or ()]
    found = [value for key, value in headers or () if key == name]
    return found[-1] if found else None


@attrs.define(eq=False)
class _Input:
    """An input: how many of its records were read, and their checksum."""

    name: str
    records: Iterable[Any]
    #: The class of its records in the runtime.
    kind: type = attrs.field(init=False)
    read: int = attrs.field(default=0, init=False)
    checksum: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.kind = Sealed if isinstance(self.records, GivenRows) and self.records.is_flat else tuple

    def took(self, record: Any) -> None:
        self.read += 1
        # Without what an engine has computed, because expressions may change.
        self.checksum = zlib.crc32(repr(record[:ARRIVAL]).encode("utf-8", "surrogatepass"), self.checksum)


#: Inputs that have records: the input, its iterator, and its next record with those before it that are skipped.
_Heads: TypeAlias = list[tuple[_Input, Iterator[Any], tuple[list[Any], Any]]]


class ScriptRecords:
    """The records of all topics of a script, a `keyed.SeekableSource`.

    The next record is that of the input whose next record has the lowest timestamp. A position has the number of
    records that were read of each input, with a checksum: an input is given again from its start, and may have grown.
    Of Kafka topics it has the offsets. A topic without records for now does not delay the others.

    Args:
        inputs: The records of each input, by its name.
        extractors: Functions that return the timestamp of a record, by topic.
        queries: Description of the parts of each query on which its state depends, by the name of the query.
        live: The reader of Kafka topics, if there are any.
        interval: Seconds after which a batch of their records ends.
    """

    def __init__(
        self,
        inputs: Mapping[str, Iterable[Any]],
        extractors: Mapping[str, Extractor],
        queries: Mapping[str, Mapping[str, str]],
        live: TopicsReader | None = None,
        interval: float = 1.0,
    ) -> None:
        self._inputs = [_Input(name, records) for name, records in inputs.items()]
        self._extractors = extractors
        self._queries = {name: dict(parts) for name, parts in queries.items()}
        self._live = live
        self._interval = interval
        self._closed = False
        self._offsets: dict[tuple[str, int], int] = {}
        #: Records that were returned, and the highest timestamp of them.
        self._arrived = self._stream_time = 0
        #: Records of this run without a usable timestamp, by topic.
        self.skipped: dict[str, int] = {}
        #: Records of this run that the format of a stream or table could not read, by its name; the reader counts them.
        self.unreadable: Mapping[str, int] = {}

    @property
    def rows_skipped(self) -> int:
        """The number of records that this run has skipped."""
        return sum(self.skipped.values()) + sum(self.unreadable.values())

    def position(self) -> dict[str, Any]:
        """Return the records that were read. See `keyed.SeekableSource.position`."""
        found: dict[str, Any] = {} if self._live is None else {"kafka": self._live.position()}
        return found | {
            "inputs": {each.name: [each.read, each.checksum] for each in self._inputs},
            "offsets": [[*place, offset] for place, offset in self._offsets.items()],
            "queries": self._queries,
            "routes": _ROUTES,
            "arrived": [self._arrived, self._stream_time],
        }

    def seek(self, position: Any) -> None:
        """Resume after the records that were read. See `keyed.SeekableSource.seek`.

        Raises:
            CheckpointError: A query has changed so that its state does not fit it, or an input has other records.
        """
        if position.get("routes") != _ROUTES:
            raise CheckpointError(
                "the checkpoint was written by an earlier version, whose tables have other keys; start from a new "
                "checkpoint"
            )
        self._check_queries(position["queries"])
        self._offsets = {(topic, partition): offset for topic, partition, offset in position["offsets"]}
        self._arrived, self._stream_time = position.get("arrived", (0, 0))
        topics = position.get("kafka", {})
        if self._live is not None:
            self._live.seek(topics)
        elif topics:
            raise CheckpointError(
                f"the checkpoint has read the Kafka topics {sorted(topics)}, and this run reads none; give the address "
                "of the cluster (keyed.sql.Kafka, or --bootstrap), or start from a new checkpoint"
            )
        given = {each.name: each for each in self._inputs}
        for name, (read, checksum) in position["inputs"].items():
            if name not in given:
                if read:
                    raise CheckpointError(
                        f"the checkpoint has read {read} records of {name}, which is not given; give it again from its "
                        "start, or start from a new checkpoint"
                    )
                continue
            each = given[name]
            records = iter(each.records)
            while each.read < read and (record := next(records, None)) is not None:
                each.took(record)
            if (each.read, each.checksum) != (read, checksum):
                raise CheckpointError(
                    f"the checkpoint has read {read} records of {name}, and these are not the first ones anymore; give "
                    "it again from its start, with new records at its end, or start from a new checkpoint"
                )
            each.records = records

    def _check_queries(self, before: Mapping[str, Mapping[str, str]]) -> None:
        for name, parts in before.items():
            if name not in self._queries:
                raise CheckpointError(
                    f"the checkpoint has the state of {name}, which the script does not define anymore; define it "
                    "under that name, or start from a new checkpoint"
                )
            changed = [part for part, text in self._queries[name].items() if parts.get(part, "") != text]
            if changed:
                raise CheckpointError(
                    f"{name} has changed its {' and '.join(changed)}, so its state in the checkpoint does not fit; "
                    "define the new query under another name and start from a new checkpoint. WHERE, HAVING and "
                    "columns without aggregates may change"
                )

    def close(self) -> None:
        """End the iteration within a moment. It may be called from another thread."""
        self._closed = True

    def __iter__(self) -> Iterator[Any]:
        """Return the records after the position; `keyed.PAUSE` ends a batch."""
        self._closed = False
        live = self._live
        if live is None:
            waiting = self._heads()
            while waiting:
                place, _ = _earliest(waiting)
                yield self._taken(waiting, place)
                self._follow(waiting, place)
            return
        live.open()
        try:
            yield from self._merged(live)
        finally:
            live.close()

    def _heads(self) -> _Heads:
        """Return the inputs that have records, each with its next one."""
        waiting: _Heads = []
        for each in self._inputs:
            records = iter(each.records)
            first = self._next(each, records)
            if first is not None:
                waiting.append((each, records, first))
        return waiting

    def _merged(self, live: TopicsReader) -> Iterator[Any]:
        """Return the records of Kafka topics, and of the given inputs."""
        waiting = self._heads()
        began: float | None = None
        while not self._closed:
            head = live.first()
            if head is None and not live.is_ended:
                now = time.monotonic()
                wait = _WAIT if began is None else min(_WAIT, max(0.0, began + self._interval - now))
                live.fetch(wait if live.is_delayed or not waiting else 0.0)
                head = live.first()
                if began is not None and time.monotonic() >= began + self._interval:
                    began = None
                    yield PAUSE
                if head is None and (live.is_delayed or not waiting):
                    if began is None:
                        yield PAUSE
                    continue
            if head is None and not waiting:
                return
            began = began or time.monotonic()
            if waiting:
                place, moment = _earliest(waiting)
                if head is None or moment < head[0]:
                    yield self._taken(waiting, place)
                    self._follow(waiting, place)
                    continue
            assert head is not None
            live.take()
            record = self._of_topic(*head)
            if record is not None:
                yield record

    def _of_topic(self, moment: int, message: Any) -> Any:
        """Return a message as a record, ``None`` if it has no usable timestamp."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        self._offsets[topic, partition] = offset + 1
        if not 0 <= moment < _LATEST:
            self._skip(topic)
            return None
        record = (topic, message.key(), message.value(), moment, partition, offset, message.headers(), None)
        return self._arrives(record, offset, Sealed)

    def _taken(self, waiting: _Heads, place: int) -> Any:
        """Return the next record of an input."""
        each, _, (passed, record) = waiting[place]
        if len(passed) > 1:
            self._took(each, passed[:-1])
        each.took(passed[-1])
        return self._arrives(record, self._numbered(record), each.kind)

    def _follow(self, waiting: _Heads, place: int) -> None:
        """Read the record of an input after the one that was taken."""
        each, records, _ = waiting[place]
        following = self._next(each, records)
        if following is None:
            del waiting[place]
        else:
            waiting[place] = (each, records, following)

    def _arrives(self, record: Any, offset: int, kind: type) -> Any:
        """Return a record with its offset and number, and the stream time."""
        self._arrived += 1
        if record[RAW_TIME] > self._stream_time:
            self._stream_time = record[RAW_TIME]
        rest = record[HEADERS:ARRIVAL]
        return kind((*record[:OFFSET], offset, *rest, self._arrived, self._stream_time, *record[ARRIVAL:]))

    def _next(self, each: _Input, records: Iterator[Any]) -> tuple[list[Any], Any] | None:
        """Return the next record that has a timestamp and is needed, with the records up to it as they were given."""
        passed = []
        for record in records:
            passed.append(record)
            extract = self._extractors.get(record[TOPIC])
            moment = record[RAW_TIME] if extract is None else extract(*record[RAW_KEY : RAW_TIME + 1])
            if moment is None or not 0 <= moment < _LATEST:
                passed[-1] = record[:ARRIVAL]
            elif record[ARRIVAL:] == LEFT_OUT:
                if len(passed) >= _PASSED:
                    self._took(each, passed)
                    passed = []
            else:
                return passed, record if extract is None else (*record[:RAW_TIME], moment, *record[PARTITION:])
        self._took(each, passed)
        return None

    def _took(self, each: _Input, passed: Iterable[Any]) -> None:
        """Count records that are skipped, or that no query needs."""
        for record in passed:
            if record[ARRIVAL:] == LEFT_OUT:
                self._arrived += 1
                self._stream_time = max(self._stream_time, record[RAW_TIME])
            else:
                self._skip(record[TOPIC])
            self._numbered(record)
            each.took(record)

    def _skip(self, topic: str) -> None:
        if not self.skipped.get(topic):
            _log.warning("topic %s: a record has no usable timestamp and is skipped, as others will be", topic)
        self.skipped[topic] = self.skipped.get(topic, 0) + 1

    def _numbered(self, record: Any) -> int:
        """Return the offset of a record: its own, or the one after the last."""
        place = (record[TOPIC], record[PARTITION])
        offset = record[OFFSET]
        if offset is None:
            offset = self._offsets.get(place, 0)
        self._offsets[place] = offset + 1
        return offset  # type: ignore[no-any-return]


def _earliest(waiting: _Heads) -> tuple[int, int]:
    """Return the place of the input whose next record has the lowest timestamp, and that timestamp."""
    place = min(range(len(waiting)), key=lambda at: waiting[at][2][1][RAW_TIME]) if len(waiting) > 1 else 0
    return place, waiting[place][2][1][RAW_TIME]
