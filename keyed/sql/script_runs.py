"""Runs scripts: `script` checks a text, compiles it to operators, and runs them over the given records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

import keyed
from keyed.arguments import texts
from keyed.durations import milliseconds_of
from keyed.errors import DefinitionError
from keyed.graph import BoundOutput
from keyed.shown import shown
from keyed.sql.bound_parameters import Parameters
from keyed.sql.bound_streams import is_frame, is_stream, is_topic, runs_on_spark
from keyed.sql.compiler import Compiler
from keyed.sql.definitions import Answer, Definitions, define
from keyed.sql.engine_expressions import EngineColumns, columns_of
from keyed.sql.given_rows import GivenRows, engine_of, inserting
from keyed.sql.grammar import parse
from keyed.sql.kafka_deployment import Deployment, Kafka
from keyed.sql.packed_changes import unpack
from keyed.sql.registry_schemas import RegistrySchemas
from keyed.sql.row_changes import KEY, NO_KEY, ROUTE, TIME, VALUE, WINDOW
from keyed.sql.script_errors import nearest
from keyed.sql.script_source import STREAM_TIME, Extractor, ScriptRecords, extractor_of
from keyed.sql.wire_formats import WireFormats

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


#: Called with the name of an output, and its records of a batch.
OnRecords = Callable[[str, list[OutputRecord]], object]


@attrs.frozen(eq=False)
class ScriptResult:
    """The outputs of a script.

    Attributes:
        records: The records of each stream and table that a query wrote, by its name, without those that were written
            to Kafka topics.
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
    kafka: Kafka | None = None,
    on_records: OnRecords | None = None,
    rows_per_batch: int | None = None,
    properties: Mapping[str, str] | None = None,
    parameters: Parameters | None = None,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
    spark: SparkSession | None = None,
    **options: Any,
) -> ScriptResult:
    """Run a script of SQL statements over records, and return what its queries write.

    The whole script is checked before anything runs. Over Kafka topics without ``Kafka(bounded=True)`` it runs until it
    is stopped.

    Args:
        text: The statements.
        streams: Rows of streams and tables by their names: a list of dictionaries with the columns, those of the key
            too, and optionally ``ROWTIME``; a pandas, polars or Arrow table; or the path of a file (``.jsonl``,
            ``.csv``, ``.parquet``); or a `keyed.Stream` or `keyed.Output` whose elements have the columns. If all are
            Spark DataFrames, or streams and outputs over them, the script runs on Spark.
        topics: Records of topics by name: ``(key, value, timestamp)``, and optionally more fields: partition, offset,
            headers, window; or the records of an output. Records of several topics are merged by timestamp. A list of
            ``(topic, key, value, timestamp, …)`` gives the order in which they arrive.
        kafka: The cluster whose topics are read and written, those that ``KAFKA_TOPIC`` names. Rows in ``streams`` and
            ``topics`` take the place of a topic. Outputs that are written to a topic need a ``checkpoint``.
        on_records: Called with the name of an output and its records of a batch, which are then not in the result.
        rows_per_batch: Records of a micro-batch, not on Spark; 1 by default, and 10,000 with ``kafka``. The results do
            not depend on it.
        properties: Settings, as of ``SET``.
        parameters: Values for ``?`` in the text, in their order, or for ``$name`` by name.
        schemas: Schemas by topic, for statements without columns: a dictionary with ``key``, ``value`` or both, each in
            the form of the topic's format: Avro or JSON Schema, as text or data, or the text of a Protobuf file. The
            texts of other files that it imports are ``references``.
        spark: With ``kafka`` the session in which the script runs: Spark reads the topics, from which the sinks of this
            process write.
        options: Other options of `keyed.run`, such as ``checkpoint`` and ``tables``.

    Raises:
        SqlError: A statement is not valid.
        DefinitionError: A stream or record does not fit the script.
        KeyedError: The query failed.
    """
    made = _Script(text, streams, topics, kafka, on_records, properties, parameters, "script", schemas, spark)
    if not made.found.queries:
        return ScriptResult(made.sinks, {}, None, answers=made.found.answers)
    if spark is not None and kafka is not None and not kafka.bounded:
        raise DefinitionError(
            "keyed.sql.script: on Spark it ends with the records of its topics; give Kafka(..., bounded=True), or use "
            "keyed.sql.start"
        )
    bound, options = made.bound(rows_per_batch, options)
    return made.result(keyed.run(*bound, **options))


def start(
    text: str,
    streams: Mapping[str, Any] | None = None,
    *,
    kafka: Kafka,
    on_records: OnRecords | None = None,
    rows_per_batch: int | None = None,
    properties: Mapping[str, str] | None = None,
    parameters: Parameters | None = None,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
    spark: SparkSession | None = None,
    **options: Any,
) -> keyed.Query:
    """Start a script over Kafka topics in a thread, and return the handle of its query.

    Args:
        text: See `script`, as for the other arguments.
        streams: See `script`.
        kafka: See `script`.
        on_records: Called with the name of an output that is not written to a topic, and its records of a batch.
        rows_per_batch: See `script`.
        properties: See `script`.
        parameters: See `script`.
        schemas: See `script`.
        spark: See `script`.
        options: Other options of `keyed.start`, such as ``checkpoint`` and ``tables``.

    Raises:
        SqlError: A statement is not valid.
        DefinitionError: A stream does not fit the script, or no query writes.
        KeyedError: A topic or the schema registry cannot be used.
    """
    if kafka is None:
        raise DefinitionError("keyed.sql.start: kafka=None must be a keyed.sql.Kafka; keyed.sql.script runs over rows")
    made = _Script(text, streams, None, kafka, on_records or _nowhere, properties, parameters, "start", schemas, spark)
    if not made.found.queries:
        raise DefinitionError("keyed.sql.start: no statement of the script writes; add CREATE ... AS SELECT")
    if made.on_spark and kafka.bounded:
        raise DefinitionError(
            "keyed.sql.start: on Spark it follows its topics until it is stopped; give Kafka(...) without bounded=, or "
            "use keyed.sql.script"
        )
    bound, options = made.bound(rows_per_batch, options)
    if made.on_spark:
        interval = milliseconds_of(kafka.batch_interval, "Kafka(batch_interval)")
        options = {"trigger": f"{interval} milliseconds"} | options
    return keyed.start(*bound, **options)


def _nowhere(name: str, records: list[OutputRecord]) -> None:
    """Discard records."""


class _Script:
    """A script with its inputs, checked and ready to run."""

    def __init__(
        self,
        text: str,
        streams: Mapping[str, Any] | None,
        topics: Any,
        kafka: Kafka | None,
        on_records: OnRecords | None,
        properties: Mapping[str, str] | None,
        parameters: Parameters | None,
        call: str,
        schemas: Mapping[str, Mapping[str, Any]] | None,
        spark: SparkSession | None,
    ) -> None:
        where = f"keyed.sql.{call}"
        if not isinstance(text, str):
            raise DefinitionError(f"{where}: text={shown(text)} must be text with SQL statements")
        if not isinstance(streams or {}, Mapping):
            raise DefinitionError(f"{where}: streams={shown(streams)} must be a dict of rows by stream")
        if not isinstance(topics or {}, Mapping | Sequence):
            raise DefinitionError(f"{where}: topics={shown(topics)} must be a dict of records by topic, or a list")
        if kafka is not None and not isinstance(kafka, Kafka):
            raise DefinitionError(f"{where}: kafka={shown(kafka)} must be a keyed.sql.Kafka(bootstrap)")
        if on_records is not None and not callable(on_records):
            raise DefinitionError(f"{where}: on_records={shown(on_records)} must be a function of a name and records")
        parsed, statements = parse(text, parameters)
        if not statements:
            raise DefinitionError(f"{where}: the text has no statements; write CREATE STREAM name (...) WITH (...)")
        self.found = found = define(
            parsed,
            statements,
            texts(properties, f"{where}: properties"),
            RegistrySchemas(schemas),
            {} if topics else {str(name): made for name, given in (streams or {}).items() if (made := _engine(given))},
        )
        self._where = where
        streams = streams or {}
        if spark is not None and (kafka is None or not hasattr(spark, "readStream")):
            raise DefinitionError(
                f"{where}: spark={shown(spark)} must be a SparkSession, for the topics of kafka=; without topics give "
                "DataFrames in streams="
            )
        self._bound = _bound(found, streams, topics, is_on_spark=spark is not None)
        self.on_spark = spark is not None or any(map(runs_on_spark, self._bound.values()))
        rows = {name: given for name, given in streams.items() if not is_frame(given) and not is_stream(given)}
        inputs, self._read = _inputs(found, rows, topics or {})
        self._deployment: Deployment | None = None
        formats = WireFormats(None)
        if kafka is not None:
            self._deployment = Deployment(
                found, kafka, self._read | {found.sources[name].topic for name in self._bound}
            )
            formats = self._deployment.formats
            self._read |= self._deployment.reads.keys()
            if spark is not None:
                self._bound |= self._deployment.frames(spark)
            elif self.on_spark and self._deployment.reads:
                raise DefinitionError(
                    f"{where}: no DataFrame is given for the topic {min(self._deployment.reads)!r}; give spark=, the "
                    "session that reads it"
                )
        for name, each in self._bound.items():
            if is_topic(each):
                formats.check(found.sources[name])
        self._kafka = kafka
        self._on_records = on_records
        self._formats = formats
        extractors = self._extractors = _extractors(found, self._deployment)
        queries = {each.name: each.plan.shape for each in found.queries}
        live = None if self._deployment is None or self.on_spark else self._deployment.reader(extractors)
        interval = 1.0 if self._deployment is None else self._deployment.interval_seconds
        self.records = ScriptRecords(inputs, extractors, queries, live, interval)
        self.sinks: dict[str, list[OutputRecord]] = {each.target: [] for each in found.queries}

    def bound(self, rows_per_batch: int | None, options: dict[str, Any]) -> tuple[list[BoundOutput], dict[str, Any]]:
        """Return the outputs with their sinks, and the options of the run."""
        found, deployment = self.found, self._deployment
        if deployment is not None and deployment.writes and options.get("checkpoint") is None:
            raise DefinitionError(
                f"{self._where}: an output is written to a Kafka topic, each record once, and that needs a checkpoint; "
                "give checkpoint= (--checkpoint), a folder"
            )
        on_spark = self.on_spark
        source: Any = keyed.stream(self.records, timestamp=_time, max_ahead=None) if not on_spark else None
        topics = () if deployment is None else deployment.reads
        self.compiler = Compiler(found, source, self._read, self._bound, self._extractors, self._formats, topics)
        self.records.unreadable = self.compiler.unreadable
        compiled = self.compiler.build()
        if deployment is not None:
            deployment.prepare()
        bound = []
        for query, output in compiled:
            sink = None if deployment is None else deployment.sink(query, is_packed=on_spark)
            if sink is not None:
                self.sinks.pop(query.target, None)
            bound.append(output.to(self._collector(query.target) if sink is None else sink))
        # The last windows of a script stay open, as those of a stream that has no end.
        options = {"drain": False} | options
        if not on_spark:
            default = 1 if deployment is None else 10_000
            options = {"rows_per_batch": default if rows_per_batch is None else rows_per_batch} | options
        return bound, options

    def result(self, run: keyed.RunResult) -> ScriptResult:
        """Return the result of a run."""
        found = self.found
        by_topic = {found.sources[name].topic: written for name, written in self.sinks.items()}
        return ScriptResult(self.sinks, by_topic, run, _skipped(found, self.compiler, self.records), found.answers)

    def _collector(self, target: str) -> Callable[[Iterable[Any], int], None]:
        source, collected = self.found.sources[target], self.sinks[target]
        key_of, value_of = source.key_encoder(), source.value_encoder()
        call = self._on_records
        if call is None and self._kafka is not None and not self._kafka.bounded and not self.on_spark:
            # There is no end at which a result could have them.
            call = _nowhere

        def collect(batch: Any, _: int) -> None:
            # A batch of Spark is a DataFrame.
            changes = map(unpack, batch.collect()) if is_frame(batch) else batch
            records = [
                OutputRecord(
                    None if change[ROUTE] == NO_KEY else key_of(change[KEY]),
                    value_of(change[VALUE]),
                    change[TIME],
                    change[WINDOW],
                )
                for change in changes
            ]
            if call is None:
                collected.extend(records)
            elif records:
                call(target, records)

        return collect


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


def _bound(found: Definitions, streams: Mapping[str, Any], topics: Any, *, is_on_spark: bool) -> dict[str, Any]:
    """Return the DataFrames, streams and outputs by the names of streams and tables.

    Raises:
        DefinitionError: Some of them run on Spark, and the script has records that Spark does not read.
    """
    bound = {found.named(name).name: each for name, each in streams.items() if is_frame(each) or is_stream(each)}
    on_spark = [name for name, each in bound.items() if runs_on_spark(each)]
    if (on_spark or is_on_spark) and (len(on_spark) < len(streams) or topics or found.inserts):
        raise DefinitionError(
            "a script runs on Spark if its streams are DataFrames: give all of them so, without topics= and without "
            "INSERT INTO ... VALUES"
        )
    return bound


def _engine(given: Any) -> EngineColumns | None:
    """Return the engine of the columns of what is given for a stream; ``None`` if it has none."""
    if is_frame(given):
        return None if is_topic(given) else EngineColumns("spark", columns_of(given.dtypes))
    return None if is_stream(given) else engine_of(given)


def _time(record: Any) -> Any:
    return record[STREAM_TIME]


def _inputs(found: Definitions, streams: Mapping[str, Any], topics: Any) -> tuple[dict[str, Iterable[Any]], set[str]]:
    """Return the given records by the name of their input, and the topics that have some."""
    known = {source.topic for source in found.sources.values()}
    inputs: dict[str, Iterable[Any]] = {}
    read: set[str] = set()
    if found.inserts:
        inputs["INSERT"] = [
            inserting(found.sources[each.target])(each.row, each.row.get("ROWTIME", 0)) for each in found.inserts
        ]
        read |= {record[0] for record in inputs["INSERT"]}
    for name, rows in streams.items():
        source = found.named(name)
        inputs[f"the rows of {source.name}"] = GivenRows(source, rows, not found.is_timed)
        read.add(source.topic)
    if isinstance(topics, Mapping):
        for name, given in topics.items():
            if isinstance(given, str | bytes) or not isinstance(given, Iterable):
                raise DefinitionError(f"topics={{{name!r}: ...}}: give a list of records, not {shown(given)}")
            topic = _topic(name, known)
            inputs[f"topic {topic}"] = [_raw(topic, each) for each in given]
            read.add(topic)
    else:
        for each in topics:
            if not isinstance(each, tuple | list) or not each:
                raise DefinitionError(
                    f"topics=: a record is (topic, key, value, timestamp), and this one is {shown(each)}"
                )
        found_records = [_raw(_topic(each[0], known), each[1:]) for each in topics]
        inputs["the records of topics"] = found_records
        read |= {record[0] for record in found_records}
    return inputs, read


def _topic(name: Any, known: Iterable[str]) -> str:
    """Return a topic of the script by its name, in any case if only one has it.

    Raises:
        DefinitionError: There is none.
    """
    if name in known:
        return str(name)
    alike = [each for each in known if each.upper() == str(name).upper()]
    if len(alike) != 1:
        raise DefinitionError(f"topics={{{name!r}: ...}}: no statement names that topic{nearest(str(name), known)}")
    return alike[0]


def _raw(topic: str, record: Any) -> tuple[Any, ...]:
    if isinstance(record, OutputRecord):
        record = (record.key, record.value, record.timestamp, None, None, None, record.window)
    if not isinstance(record, tuple | list) or not 2 <= len(record) <= 7:
        raise DefinitionError(
            f"topics={{{topic!r}: ...}}: a record is (key, value, timestamp), and this one is {shown(record)}"
        )
    key, value, *rest = record
    rest += [None] * (5 - len(rest))
    time, partition, offset, headers, window = rest
    if not isinstance(time, int | None):
        raise DefinitionError(
            f"topics={{{topic!r}: ...}}: a timestamp is a number of milliseconds, and that of {shown(record)} is none"
        )
    if window is not None and not (
        isinstance(window, tuple | list) and len(window) == 2 and all(isinstance(each, int) for each in window)
    ):
        raise DefinitionError(
            f"topics={{{topic!r}: ...}}: a window is (start, end) in milliseconds, and that of {shown(record)} is none"
        )
    return topic, key, value, time or 0, partition or 0, offset, headers, None if window is None else tuple(window)


def _extractors(found: Definitions, deployment: Deployment | None) -> dict[str, Extractor]:
    """Return for topics whose source has a column with the timestamp the function that reads it."""
    extractors: dict[str, Extractor] = {}
    for source in found.sources.values():
        if source.timestamp is None or source.is_query or source.topic in extractors:
            continue
        formats = deployment.formats if deployment is not None and source.topic in deployment.reads else None
        extractors[source.topic] = extractor_of(source, formats, strict=found.is_strict)
    return extractors
