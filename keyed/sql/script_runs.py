"""Runs scripts: `script` checks a text, compiles it to operators, and runs them over the given records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

import keyed
from keyed.arguments import texts
from keyed.errors import DefinitionError
from keyed.shown import shown
from keyed.sql.bound_parameters import Parameters
from keyed.sql.catalog import SqlSource
from keyed.sql.compiler import Compiler
from keyed.sql.definitions import Answer, Definitions, define
from keyed.sql.given_rows import GivenRows, inserted
from keyed.sql.grammar import parse
from keyed.sql.java_formats import parse_moment
from keyed.sql.packed_changes import unpack
from keyed.sql.row_changes import KEY, TIME, VALUE, WINDOW
from keyed.sql.script_errors import nearest
from keyed.sql.script_source import STREAM_TIME, ScriptRecords
from keyed.sql.spark_frames import is_frame
from keyed.sql.value_formats import BadRecord


@attrs.frozen
class OutputRecord:
    """A record of a topic.

    Attributes:
        key: Its key: the value of one column, a dictionary of several, ``None`` without a key.
        value: Its value, ``None`` for a tombstone.
        timestamp: Milliseconds since 1970.
        window: Start and end of its window, ``None`` without one. The end of a session is its last timestamp.
    """

    key: Any
    value: Any
    timestamp: int
    window: tuple[int, int] | None = None


@attrs.frozen(eq=False)
class ScriptResult:
    """The outputs of a script.

    Attributes:
        records: The records of each stream and table that a query wrote, by its name.
        topics: The same by topic.
        skipped: Records that this run has skipped, by the name of the stream or table and the reason.
        answers: The answers to ``SHOW``, ``DESCRIBE`` and ``EXPLAIN``, in the order of the statements.
        run: The result of `keyed.run`, with its metrics and, with ``tables=``, its state tables.
    """

    records: Mapping[str, list[OutputRecord]]
    topics: Mapping[str, list[OutputRecord]]
    run: keyed.RunResult | None
    skipped: Mapping[str, Mapping[str, int]] = attrs.field(factory=dict)
    answers: Sequence[Answer] = ()

    def __getitem__(self, name: str) -> list[OutputRecord]:
        """Return the records of a stream or table; its name is in upper case unless it was quoted.

        Raises:
            KeyError: No query wrote it.
        """
        if name not in self.records and name.upper() in self.records:
            name = name.upper()
        if name not in self.records:
            raise KeyError(f"no query writes {name}{nearest(name, self.records)}")
        return self.records[name]

    def table(self, name: str) -> dict[Any, Any]:
        """Return the rows of a table at the end, by key; in a windowed table by key and window.

        Raises:
            KeyError: No query wrote it.
        """
        rows: dict[Any, Any] = {}
        for record in self[name]:
            key = tuple(record.key.items()) if isinstance(record.key, dict) else record.key
            place = key if record.window is None else (key, record.window)
            if record.value is None:
                rows.pop(place, None)
            else:
                rows[place] = record.value
        return rows


def script(
    text: str,
    streams: Mapping[str, Any] | None = None,
    topics: Mapping[str, Iterable[Any]] | Sequence[Any] | None = None,
    *,
    rows_per_batch: int = 1,
    properties: Mapping[str, str] | None = None,
    parameters: Parameters | None = None,
    **options: Any,
) -> ScriptResult:
    """Run a script of SQL statements over records, and return what its queries write.

    The whole script is checked before anything runs.

    Args:
        text: The statements.
        streams: Rows of streams and tables by their names: a list of dictionaries with the columns, those of the key
            too, and optionally ``ROWTIME``; a pandas, polars or Arrow table; or the path of a file (``.jsonl``,
            ``.csv``, ``.parquet``). If all are Spark DataFrames, the script runs on Spark.
        topics: Records of topics by name: ``(key, value, timestamp)``, and optionally more fields: partition, offset,
            headers, window. Records of several topics are merged by timestamp. A list of ``(topic, key, value,
            timestamp, …)`` gives the order in which they arrive.
        rows_per_batch: Records of a micro-batch, not on Spark. The results do not depend on it.
        properties: Settings, as of ``SET``.
        parameters: Values for ``?`` in the text, in their order, or for ``$name`` by name.
        options: Other options of `keyed.run`, such as ``checkpoint`` and ``tables``.

    Raises:
        SqlError: A statement is not valid.
        DefinitionError: A stream or record does not fit the script.
        KeyedError: The query failed.
    """
    if not isinstance(text, str):
        raise DefinitionError(f"keyed.sql.script: text={shown(text)} must be text with SQL statements")
    if not isinstance(streams or {}, Mapping):
        raise DefinitionError(f"keyed.sql.script: streams={shown(streams)} must be a dict of rows by stream")
    if not isinstance(topics or {}, Mapping | Sequence):
        raise DefinitionError(f"keyed.sql.script: topics={shown(topics)} must be a dict of records by topic, or a list")
    parsed, statements = parse(text, parameters)
    found = define(parsed, statements, texts(properties, "keyed.sql.script: properties"))
    frames = _frames(found, streams or {}, topics)
    records, read = _records(found, {} if frames else streams or {}, topics or {})
    sinks: dict[str, list[OutputRecord]] = {each.target: [] for each in found.queries}
    if not found.queries:
        return ScriptResult(sinks, {}, None, answers=found.answers)
    source: Any = keyed.stream(records, timestamp=_time, max_ahead=None) if not frames else None
    compiler = Compiler(found, source, read, frames)
    compiled = compiler.build()
    bound = [output.to(_collector(sinks[query.target], found.sources[query.target])) for query, output in compiled]
    if not frames:
        options = {"drain": False, "rows_per_batch": rows_per_batch} | options
    result = keyed.run(*bound, **options)
    by_topic = {found.sources[name].topic: written for name, written in sinks.items()}
    return ScriptResult(sinks, by_topic, result, _skipped(found, compiler, records), found.answers)


def _skipped(found: Definitions, compiler: Compiler, records: ScriptRecords) -> dict[str, dict[str, int]]:
    """Return how many records were skipped, by source and reason."""
    counts: dict[str, dict[str, int]] = {}
    for name, count in compiler.unreadable.items():
        counts.setdefault(name, {})["the format cannot read them"] = count
    for source in found.sources.values():
        count = records.skipped.get(source.topic, 0)
        if count and not source.is_query:
            counts.setdefault(source.name, {})["no usable timestamp"] = count
    return counts


def _frames(found: Definitions, streams: Mapping[str, Any], topics: Any) -> dict[str, Any]:
    """Return the DataFrames by the names of their streams and tables; nothing for a run in this process.

    Raises:
        DefinitionError: The script has records that Spark does not read.
    """
    frames = {found.named(name).name: given for name, given in streams.items() if is_frame(given)}
    if not frames:
        return {}
    if len(frames) < len(streams) or topics or found.inserts:
        raise DefinitionError(
            "a script runs on Spark if its streams are DataFrames: give all of them so, without topics= and without "
            "INSERT INTO ... VALUES"
        )
    return frames


def _time(record: Any) -> Any:
    return record[STREAM_TIME]


def _collector(into: list[OutputRecord], target: SqlSource) -> Callable[[Iterable[Any], int], None]:
    key_of, value_of = target.key_encoder(), target.value_encoder()

    def collect(batch: Any, _: int) -> None:
        # A batch of Spark is a DataFrame.
        changes = map(unpack, batch.collect()) if is_frame(batch) else batch
        into.extend(
            OutputRecord(key_of(change[KEY]), value_of(change[VALUE]), change[TIME], change[WINDOW])
            for change in changes
        )

    return collect


def _records(found: Definitions, streams: Mapping[str, Any], topics: Any) -> tuple[ScriptRecords, set[str]]:
    """Return the records of all topics in the order in which they arrive, and the topics that have some."""
    known = {source.topic for source in found.sources.values()}
    inputs: dict[str, Iterable[Any]] = {}
    read: set[str] = set()
    if found.inserts:
        inputs["INSERT"] = [
            inserted(found.sources[each.target], each.row, each.row.get("ROWTIME", 0)) for each in found.inserts
        ]
        read |= {record[0] for record in inputs["INSERT"]}
    for name, rows in streams.items():
        source = found.named(name)
        inputs[f"the rows of {source.name}"] = GivenRows(source, rows)
        read.add(source.topic)
    if isinstance(topics, Mapping):
        for name, given in topics.items():
            if name not in known:
                raise DefinitionError(f"topics={{{name!r}: ...}}: no statement names that topic{nearest(name, known)}")
            if isinstance(given, str | bytes) or not isinstance(given, Iterable):
                raise DefinitionError(f"topics={{{name!r}: ...}}: give a list of records, not {shown(given)}")
            inputs[f"topic {name}"] = [_raw(name, each) for each in given]
            read.add(name)
    else:
        inputs["the records of topics"] = found_records = [_raw(each[0], each[1:]) for each in topics]
        read |= {record[0] for record in found_records}
    queries = {each.name: each.plan.shape for each in found.queries}
    return ScriptRecords(inputs, _extractors(found), queries), read


def _raw(topic: str, record: Any) -> tuple[Any, ...]:
    if not isinstance(record, tuple | list) or not 2 <= len(record) <= 7:
        raise DefinitionError(
            f"topics={{{topic!r}: ...}}: a record is (key, value, timestamp), and this one is {shown(record)}"
        )
    key, value, *rest = record
    rest += [None] * (5 - len(rest))
    time, partition, offset, headers, window = rest
    return topic, key, value, time or 0, partition or 0, offset, headers, None if window is None else tuple(window)


def _extractors(found: Definitions) -> dict[str, Callable[[Any, Any, int], int | None]]:
    """Return for topics whose source has a column with the timestamp the function that reads it."""
    extractors: dict[str, Callable[[Any, Any, int], int | None]] = {}
    for source in found.sources.values():
        if source.timestamp is None or source.is_query or source.topic in extractors:
            continue
        name, pattern = source.timestamp
        names = [each for each, _ in (*source.keys, *source.stored)]
        place = names.index(name)
        key_of, value_of = source.key_decoder(), source.value_decoder()

        def extracted(
            key: Any,
            value: Any,
            time: int,
            *,
            place: int = place,
            key_of: Any = key_of,
            value_of: Any = value_of,
            pattern: str | None = pattern,
        ) -> int | None:
            try:
                columns = value_of(value)
                if columns is None:
                    return time
                cell = (*key_of(key), *columns)[place]
                return parse_moment(cell, pattern) if pattern is not None and cell is not None else cell
            except BadRecord:
                return time  # the source skips it, and counts it
            except ValueError:
                return None

        extractors[source.topic] = extracted
    return extractors
