"""Compilation of a chain of stages to one DataFrame: source and tick, pack, operate, and so on for each line of stages.

The DataFrame has the main output of the last stage as columns, and in the column ``NOTE`` everything else: chunks of
the requested side outputs and main outputs of inner stages, and the marks of the key groups. `Route.frame` selects one
output of it.

The functions are in the order of the calls: `build`, then its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import attrs

from keyed.arrow.write import arrow_schema
from keyed.base.column_types import quoted
from keyed.base.schemas import Schema
from keyed.codec.key_hash import spark_key_type
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.job.functions import takes_two
from keyed.job.global_tables import GlobalTable
from keyed.job.graph import Input, Port, Source, Stage
from keyed.job.inference import unannotated
from keyed.job.transforms import Transform, schema_after
from keyed.job.vectorized_functions import combines
from keyed.recovery.cut import Cut
from keyed.runtimes.recording import Recorder
from keyed.runtimes.spark.plan.initial_state import initial_state_of
from keyed.runtimes.spark.plan.inputs import (
    check_read_once,
    hash_expression,
    key_columns,
    no_hash,
    packed_ticks,
    schema_of_frame,
    time_column,
    too_far_ahead,
)
from keyed.runtimes.spark.plan.mapping import map_in_arrow
from keyed.runtimes.spark.plan.serialization import check_serializable
from keyed.runtimes.spark.query.group_marks import OBSERVED
from keyed.runtimes.spark.session.session_check import is_remote
from keyed.runtimes.spark.session.ship import SourceArchive, archive_for, shipped
from keyed.runtimes.spark.worker.emit import Emitter, unwired
from keyed.runtimes.spark.worker.frozen_modules import freeze_modules
from keyed.runtimes.spark.worker.pack import Packer, Reading
from keyed.runtimes.spark.worker.processor import Operation, Processor
from keyed.runtimes.spark.worker.unpack import PackedInput
from keyed.runtimes.spark.worker.wire import (
    NOTE,
    PACKED,
    TIMESTAMP,
    chunk_prefix,
    hash_column,
    output_id,
    read_chunk,
    source_id,
)
from keyed.runtimes.transforming import TransformedRows, transformed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Observation


@attrs.frozen(eq=False)
class Plan:
    """A chain as a DataFrame.

    Attributes:
        frame: The whole output.
        routes: The wanted outputs, in the requested order.
        observations: The metrics of each operator by name, for a batch DataFrame.
        archive: Source code that workers need, over Spark Connect.
    """

    frame: DataFrame
    routes: list[Route]
    observations: dict[str, Observation]
    archive: SourceArchive | None = None


@attrs.frozen
class Route:
    """The part of the plan's DataFrame that is an output.

    Attributes:
        schema: Its columns.
        chunks: Its id in notes; ``None`` for the main output of the last stage.
        archive: Source code that workers need, over Spark Connect.
        operator: Name of the operator.
        steps: Transformations of its rows.
        result: The columns after them.
    """

    schema: Schema
    chunks: str | None
    archive: SourceArchive | None = None
    operator: str = ""
    steps: tuple[Transform, ...] = ()
    result: Schema | None = None

    def frame(self, whole: DataFrame) -> DataFrame:
        """Return this output from the whole output of the plan."""
        frame = self._plain(whole)
        if self.result is None:
            return frame
        return map_in_arrow(frame, _transforming(self, self.result), self.result.ddl, self.archive)

    def _plain(self, whole: DataFrame) -> DataFrame:
        columns = [quoted(name) for name in self.schema.names]
        if self.chunks is None:
            return whole.where(f"{NOTE} IS NULL").selectExpr(*columns)
        notes = whole.where(f"startswith({NOTE}, X'{chunk_prefix(self.chunks).hex()}')").select(NOTE)
        return notes.mapInArrow(shipped(self.archive, _unpacker(self.schema)), self.schema.ddl)


def build(
    lines: Sequence[Sequence[Stage]],
    ports: Sequence[Port],
    parallelism: int,
    *,
    changelogs: Mapping[str, str],
    local_dir: str | None = None,
    end: bool = False,
    cut: Cut | None = None,
    ticks_alone: bool = False,
    tick_files: DataFrame | None = None,
    begins: bool = True,
    recorder: Recorder | None = None,
    tables: Callable[[GlobalTable], DataFrame] | None = None,
    first_batch: int = 0,
) -> Plan:
    """Build the DataFrame of a chain.

    Args:
        lines: The stages in order, grouped into chained lines (`keyed.job.chaining.lines`).
        ports: Outputs of stages of the chain that are read. Others are not produced.
        parallelism: Number of key groups.
        changelogs: Identity of the changelog of each operator that has one, by name.
        local_dir: Folder for stores on disk.
        end: True if the input ends with this batch.
        cut: The cut from which key groups without state are restored.
        ticks_alone: Leave out the source: the batch has only ticks for the key groups.
        tick_files: The ticks, if they are files that are written when something is due.
        begins: True if the query may have no batch yet, so that it loads its initial state.
        recorder: The recorder of the first operator's rows, if they are recorded.
        tables: Returns the versions of a global table.
        first_batch: The public id of Spark's batch 0.

    Raises:
        DefinitionError: The chain is invalid; the message names the problem and the remedy.
    """
    last = _with_versions(lines[-1][-1], tables)
    chain = last.chain
    if changelogs:
        origins = [each.origin for stage in chain for each in stage.inputs]
        check_read_once([each for each in dict.fromkeys(origins) if isinstance(each, Source)])
    schemas = [
        [_schema_of(chain, index, number) for number in range(len(stage.inputs))] for index, stage in enumerate(chain)
    ]
    functions = [stage.function for stage in chain]
    functions += [step.function for stage in chain for each in stage.inputs for step in each.steps]  # type: ignore[misc]
    functions += [step.function for output in ports for step in output.steps]  # type: ignore[misc]
    archive = archive_for(functions) if is_remote(last.source.data.sparkSession) else None
    for stage in chain:
        check_serializable(stage.function, stage.name)
        for step in [step for each in stage.inputs for step in each.steps]:
            check_serializable(step.function, f"{stage.name}, {step!r}")
    ticks = packed_ticks(last, parallelism, end=end, needed=ticks_alone, files=tick_files)
    handing_on = {stage.name for line in lines for stage in line[:-1]}
    emitters = [
        _emitter(chain, index, schema, ports, forwards=chain[index].name in handing_on)
        for index, (schema, *_) in enumerate(schemas)
    ]
    observations: dict[str, Observation] = {}
    frame: DataFrame | None = None
    index = 0
    for line in lines:
        if line[0].is_relay:
            continue
        frames = [] if ticks_alone else _source_frames(chain, index, ports, parallelism)
        if frame is not None:
            before = emitters[index - 1]
            frames.append(_stage_frame(chain, index, frame, before, schemas, ports, parallelism))
        if recorder is not None and not index:
            frames = [(each, _recorded(packer, chain[index], recorder)) for each, packer in frames]
        packed = [map_in_arrow(each, _packing(packer), PACKED, archive) for each, packer in frames]
        if ticks is not None and not index:
            # They are the last of the query's sources: the sources of later stages come before them.
            packed.append(ticks)
        operations = [
            Operation(
                spec=stage.spec(parallelism, output_timestamps=emitters[place].timestamps),
                inputs=_packed_inputs(chain, place),
                key_type=_key_type(stage, schemas[place]),
                emitter=emitters[place],
                store=stage.store,
                local_dir=local_dir,
                changelog_id=changelogs.get(stage.name, ""),
                cut=cut,
                first_batch=first_batch,
            )
            for place, stage in enumerate(chain[index : index + len(line)], index)
        ]
        initial = initial_state_of(chain[index], parallelism, archive) if begins else None
        worked = _worked(packed, shipped(archive, Processor(operations)), operations[-1].emitter, initial)
        emitter = operations[-1].emitter
        columns = [unwired(name, type_) for name, type_ in (emitter.main.columns if emitter.main else ())]
        columns += [TIMESTAMP] if emitter.timestamps else []
        frame = _observed(worked.selectExpr(*columns, NOTE), line[-1].name, observations)
        index += len(line)
    if index < len(chain):
        frames = [] if ticks_alone else _source_frames(chain, index, ports, 1)
        if frame is not None:
            before = emitters[index - 1]
            frames.append(_stage_frame(chain, index, frame, before, schemas, ports, 1))
        main = _main_schema(last, "it is written")
        wire = f"{main.ddl}, {NOTE} binary"
        relays = [
            map_in_arrow(each, _packing(attrs.evolve(packer, main=arrow_schema(main))), wire, archive)
            for each, packer in frames
        ]
        frame = _observed(reduce(type(relays[0]).unionAll, relays), last.name, observations)
    assert frame is not None
    return Plan(frame, [_route(chain, schemas, output, archive) for output in ports], observations, archive)


def _with_versions(last: Stage, tables: Callable[[GlobalTable], DataFrame] | None) -> Stage:
    """Return the last stage of a chain that reads DataFrames in place of global tables."""
    if tables is None or not any(isinstance(source.data, GlobalTable) for source in last.sources):
        return last

    def reading(each: Input) -> Input:
        if isinstance(each.origin, Source) and isinstance(each.origin.data, GlobalTable):
            return attrs.evolve(each, origin=attrs.evolve(each.origin, data=tables(each.origin.data)))
        return each

    stages = [attrs.evolve(stage, inputs=tuple(map(reading, stage.inputs))) for stage in last.chain]
    return attrs.evolve(stages[-1], before=tuple(stages[:-1]))


def _schema_of(chain: list[Stage], index: int, number: int) -> Schema:
    """Return the columns of an input of a stage.

    Raises:
        OutputDefinitionError: The input is an output without a type.
    """
    each = chain[index].inputs[number]
    return _after(_schema_before(chain, index, number), each.steps, chain[index].name)


def _schema_before(chain: list[Stage], index: int, number: int) -> Schema:
    """Return the columns of an input of a stage before its transformations."""
    stage = chain[index]
    origin = stage.inputs[number].origin
    if isinstance(origin, Source):
        return schema_of_frame(origin.data)
    place = _index_of(chain, origin.stage.name)
    if origin.tag is None:
        return _main_schema(chain[place], f"operator {stage.name!r} reads it")
    return _side_schema(chain[place], origin.tag, _schema_of(chain, place, 0))


def _together(chain: list[Stage], index: int) -> range:
    """Return the stages whose inputs are packed with those of a stage: of one without a key, all of these."""
    if not chain[index].is_relay:
        return range(index, index + 1)
    return range(next(place for place, stage in enumerate(chain) if stage.is_relay), len(chain))


def _index_of(chain: list[Stage], name: str) -> int:
    return next(index for index, stage in enumerate(chain) if stage.name == name)


def _main_schema(stage: Stage, reason: str) -> Schema:
    if stage.output is None:
        raise OutputDefinitionError(
            f"operator {stage.name!r} has no output type, and {reason}; give process(..., output='name type, ...')"
            f"{unannotated(stage.function)}"
        )
    _check(stage.output, f"operator {stage.name!r}, main output")
    return stage.output


def _side_schema(stage: Stage, tag: Any, columns: Schema) -> Schema:
    """Return the columns of a side output: the columns of its type, or of the stage's input.

    Raises:
        OutputDefinitionError: It takes the bad rows of inputs with different columns.
    """
    bad = [schema_of_frame(stage.inputs[number].source.data) for number in stage.bad_row_outputs.get(tag.name, ())]
    if any(set(each.columns) != set(bad[0].columns) for each in bad):
        raise OutputDefinitionError(
            f"operator {stage.name!r}: on_bad_row={tag.name!r} takes rows of streams with different columns; give each "
            "a tag of its own"
        )
    schema: Schema = tag.schema or (columns if not bad or set(bad[0].columns) == set(columns.columns) else bad[0])
    _check(schema, f"operator {stage.name!r}, side output {tag.name!r}")
    return schema


def _check(schema: Schema, where: str) -> None:
    try:
        arrow_schema(schema)
    except OutputDefinitionError as error:
        raise OutputDefinitionError(f"{where}: {error}") from None


def _emitter(chain: list[Stage], index: int, columns: Schema, ports: Sequence[Port], *, forwards: bool) -> Emitter:
    """Return the emitter of a stage, for the outputs that sinks or other stages read.

    Args:
        chain: The stages.
        index: Index of the stage.
        columns: The columns that it reads.
        ports: The outputs that sinks read.
        forwards: Whether the next stage is chained to it.
    """
    stage = chain[index]
    own = [output for output in ports if output.stage.name == stage.name]
    origins = [each.origin for other in chain[index + 1 :] for each in other.inputs]
    read = [each for each in origins if isinstance(each, Port) and each.stage.name == stage.name]
    followed = any(output.tag is None for output in read)
    main = None
    if followed or any(output.tag is None for output in own):
        main = _main_schema(stage, "its main output is read")
    side: dict[str, Schema] = {}
    tags = [output.tag for output in read if output.tag is not None]
    for tag in [*(output.tag for output in own if output.tag is not None), *tags]:
        schema = _side_schema(stage, tag, columns)
        if side.setdefault(tag.name, schema) != schema:
            raise OutputDefinitionError(f"operator {stage.name!r}: side output {tag.name!r} is read with two types")
    timed = stage.event_time
    also_needed = forwards and _needed(chain, index + 1, ports, (stage.name, None))
    return Emitter(
        stage.name,
        index,
        main,
        side,
        timestamps=followed and timed,
        timed_side=frozenset(tag.name for tag in tags) if timed else frozenset(),
        main_chunks=output_id(index, None) if also_needed else None,
    )


def _needed(chain: list[Stage], index: int, ports: Sequence[Port], address: tuple[str, str | None]) -> bool:
    """Return true if later stages, or a sink, read an output from notes."""
    read = [each.origin for stage in chain[index + 1 :] for each in stage.inputs]
    return any(isinstance(each, Port) and each.address == address for each in [*ports, *read])


def _source_frames(
    chain: list[Stage], index: int, ports: Sequence[Port], parallelism: int
) -> list[tuple[DataFrame, Packer]]:
    """Return the sources that a stage is the first to read, each once, with their packers.

    Other readers of such a source get its rows as chunks, because Spark would otherwise read it again.
    """
    frames = []
    together = _together(chain, index)
    for number, source in enumerate(chain[-1].sources):
        readers = _readers(chain, source)
        if readers[0][0] not in together:
            continue
        schema = schema_of_frame(source.data)
        readings = tuple(_reading(chain, place, position, ports) for place, position in readers if place in together)
        ahead = too_far_ahead(source, schema)
        hashes = [
            f"{_hash(chain[place], position, schema, ahead)} AS {hash_column(place, position)}"
            for place, position in readers
        ]
        shared = source_id(number) if readers[-1][0] not in together else None
        frame = source.data.selectExpr(*map(quoted, schema.names), *hashes)
        frames.append((frame, Packer(parallelism, readings, forward=shared)))
    return frames


def _readers(chain: list[Stage], source: Source) -> list[tuple[int, int]]:
    """Return the indices of the stages that read a source, each with the number of that input."""
    return [(chain.index(stage), number) for stage, number in chain[-1].readers_of(source)]


def _reading(chain: list[Stage], index: int, number: int, ports: Sequence[Port]) -> Reading:
    """Return the packing of a stage's input: with transformations that of its rows, and in it that of the results."""
    stage = chain[index]
    each = stage.inputs[number]
    keyed = _keyed_reading(chain, index, number, ports)
    if not each.steps:
        return keyed
    timed = keyed.time is not None
    diverts = all(step.kind == "filter" for step in each.steps)
    after = attrs.evolve(
        keyed,
        time=TIMESTAMP if timed else None,
        of_source=False,
        bad_rows=keyed.bad_rows if diverts else None,
        partition_by=None,
        chunks=None,
    )
    names = _schema_before(chain, index, number).names
    return attrs.evolve(keyed, keys=(), columns=names, combiner=None, schema=None, steps=each.steps, after=after)


def _keyed_reading(chain: list[Stage], index: int, number: int, ports: Sequence[Port]) -> Reading:
    """Return the packing of a stage's input, as if it had no transformations.

    Raises:
        DefinitionError: A column is missing or has a type that cannot be used.
    """
    stage = chain[index]
    each = stage.inputs[number]
    schema = _schema_of(chain, index, number)
    # A union has the columns in the order of its first stream.
    first = next(place for place, other in enumerate(stage.inputs) if other.side == each.side)
    names = _schema_of(chain, index, first).names
    keys = key_columns(each.keys, schema, stage.name)
    combiner = stage.function if combines(stage.function) else None
    together = _together(chain, index)
    output = output_id(index, None) if stage.is_relay and stage is not chain[-1] else ""
    if not isinstance(each.origin, Source):
        address = each.origin.address
        adjacent = address == (chain[together.start - 1].name, None)
        return Reading(
            operator=stage.name,
            keys=keys,
            columns=names,
            time=TIMESTAMP if each.event_time else None,
            of_source=False,
            hash=hash_column(index, number),
            combiner=combiner,
            input=number,
            chunks=None if adjacent else output_id(_index_of(chain, address[0]), address[1]),
            last=not _needed(chain, together.stop - 1, ports, address),
            broadcast=each.is_broadcast,
            schema=_packed_schema(chain, index, number),
            output=output,
        )
    source = each.origin
    of_source = _schema_before(chain, index, number)
    if source.watermark.alignment_group is not None:
        raise DefinitionError(
            "with_watermark_alignment: Spark chooses the rows of a batch from each source before the batch, so no "
            "source can be held back for others; limit the rows of a batch from each source with "
            "maxOffsetsPerTrigger, maxFilesPerTrigger and so on"
        )
    partition_by = source.watermark.partition_by
    if partition_by is not None and partition_by not in of_source.names:
        raise DefinitionError(
            f"with_partitions({partition_by!r}): the column is not in the source: {', '.join(of_source.names)}"
        )
    readers = [place for place, _ in _readers(chain, source)]
    return Reading(
        operator=stage.name,
        keys=keys,
        columns=names,
        time=time_column(source, of_source),
        of_source=True,
        hash=hash_column(index, number),
        bad_rows=_bad_rows(source, ports, chain, index),
        # With ingestion time, rows get their timestamps in the key group, and are combined there.
        combiner=None if source.ingests else combiner,
        input=number,
        partition_by=partition_by,
        chunks=None if readers[0] in together else source_id(chain[-1].sources.index(source)),
        last=readers[-1] in together,
        broadcast=each.is_broadcast,
        schema=_packed_schema(chain, index, number),
        output=output,
    )


def _packed_schema(chain: list[Stage], index: int, number: int) -> pa.Schema | None:
    """Return the Arrow schema of the packed rows of an input; ``None`` if the function combines them.

    It is an expectation, which saves sending the schema with each chunk. Rows with another schema have it with them.
    """
    import pyarrow as pa

    stage = chain[index]
    each = stage.inputs[number]
    of_source = isinstance(each.origin, Source)
    if combines(stage.function) and not (isinstance(each.origin, Source) and each.origin.ingests):
        return None
    columns = dict(_schema_of(chain, index, number).columns)
    first = next(place for place, other in enumerate(stage.inputs) if other.side == each.side)
    names = _schema_of(chain, index, first).names
    try:
        schema = arrow_schema(Schema(tuple((name, columns[name]) for name in names)))
    except (KeyError, OutputDefinitionError):
        return None
    zone = chain[-1].source.data.sparkSession.conf.get("spark.sql.session.timeZone")
    schema = pa.schema([pa.field(field.name, _zoned(field.type, zone)) for field in schema])
    # The hidden column has the timestamps of rows that keyed has emitted or transformed.
    timed = each.source.time is not None if of_source else each.event_time
    if timed and (each.steps or not of_source):
        schema = schema.append(pa.field(TIMESTAMP, pa.int64()))
    return schema


def _zoned(type_: pa.DataType, zone: str) -> pa.DataType:
    """Return a type with its timestamps in a zone."""
    import pyarrow as pa

    if pa.types.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp("us", zone)
    fields = [type_.field(place) for place in range(type_.num_fields)]
    inner = [field.with_type(_zoned(field.type, zone)) for field in fields]
    if pa.types.is_struct(type_):
        return pa.struct(inner)
    if pa.types.is_list(type_):
        return pa.list_(inner[0])
    if pa.types.is_map(type_):
        return pa.map_(_zoned(type_.key_type, zone), _zoned(type_.item_type, zone))
    return type_


def _bad_rows(source: Source, ports: Sequence[Port], chain: list[Stage], index: int) -> str | None:
    """Return the id of the output for bad rows: ``None`` refuses them, an empty id drops them."""
    tag = source.on_bad_row
    if tag is None:
        return None
    return output_id(index, tag.name) if _needed(chain, index, ports, (chain[index].name, tag.name)) else ""


def _hash(stage: Stage, number: int, schema: Schema, bad: str | None) -> str:
    """Return the SQL expression of the hash of the keys of an input, null for bad rows."""
    each = stage.inputs[number]
    if each.is_broadcast or each.steps or not each.keys:
        # The keys of transformed rows are hashed where they are packed.
        return no_hash(bad)
    return hash_expression(key_columns(each.keys, schema, stage.name), schema, stage.name, bad)


def _stage_frame(
    chain: list[Stage],
    index: int,
    frame: DataFrame,
    before: Emitter,
    schemas: list[list[Schema]],
    ports: Sequence[Port],
    parallelism: int,
) -> tuple[DataFrame, Packer]:
    """Return the output of the previous stage, and the packer of its rows (if the stage reads them) and chunks."""
    main, together = (chain[index - 1].name, None), _together(chain, index)
    readings, hashes = [], []
    for place in together:
        stage = chain[place]
        for number, each in enumerate(stage.inputs):
            if isinstance(each.origin, Source):
                if _readers(chain, each.origin)[0][0] in together:
                    continue
            elif each.origin.address == main:
                hashed = _hash(stage, number, schemas[place][number], None)
                hashes.append(f"{hashed} AS {hash_column(place, number)}")
            readings.append(_reading(chain, place, number, ports))
    # Rows in columns are those of the previous stage; other inputs come in notes.
    columns = before.main.names if before.main is not None else ()
    return (
        frame.selectExpr(*map(quoted, columns), *hashes, *([TIMESTAMP] if before.timestamps else []), NOTE),
        Packer(
            parallelism,
            tuple(readings),
            after_stage=True,
            forward=output_id(index - 1, None) if _needed(chain, together.stop - 1, ports, main) else None,
        ),
    )


def _recorded(packer: Packer, stage: Stage, recorder: Recorder) -> Packer:
    """Return a packer that records its rows."""
    readings = (attrs.evolve(each, recorder=recorder, side=stage.inputs[each.input].side) for each in packer.readings)
    return attrs.evolve(packer, readings=tuple(readings))


def _packing(packer: Packer) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition, batch = 0, 0
        if context is not None:
            # The jobs of a stream know their batch; a batch DataFrame has only one batch.
            partition, batch = context.partitionId(), int(context.getLocalProperty("streaming.sql.batchId") or 0)
        yield from packer.pack(batches, partition, batch)
        freeze_modules()

    return pack


def _packed_inputs(chain: list[Stage], index: int) -> tuple[PackedInput, ...]:
    """Return the inputs of a stage, for unpacking."""
    stage, inputs = chain[index], []
    sided = takes_two(stage.function)
    for number, each in enumerate(stage.inputs):
        is_source = isinstance(each.origin, Source)
        time: Any = each.source.time if is_source else TIMESTAMP if each.event_time else None
        if time is not None and each.steps:
            time = TIMESTAMP
        combined = combines(stage.function) and not (is_source and each.source.ingests)
        inputs.append(
            PackedInput(
                () if callable(each.keys) else each.keys,
                None if combined else time,
                each.side if sided else None,
                each.is_broadcast,
                _index_of(chain, each.origin.stage.name) if isinstance(each.origin, Port) and each.counts else None,
                _packed_schema(chain, index, number),
            )
        )
    return tuple(inputs)


def _key_type(stage: Stage, schemas: list[Schema]) -> str:
    """Return the type of a stage's keys.

    Raises:
        DefinitionError: The streams that it reads have keys of different types.
    """
    types = set()
    for each, schema in zip(stage.inputs, schemas, strict=True):
        if each.is_broadcast:
            continue
        columns = dict(schema.columns)
        types.add(spark_key_type([columns[key] for key in key_columns(each.keys, schema, stage.name)]))
    if len(types) > 1:
        raise DefinitionError(
            f"operator {stage.name!r}: the streams that it reads have keys of types {' and '.join(sorted(types))}; "
            "cast them to one type"
        )
    return next(iter(types))


def _worked(packed: list[DataFrame], processor: Any, emitter: Emitter, initial: Any) -> DataFrame:
    """Return the output of the key groups for packed rows, in the columns of an emitter."""
    # The batch's time from Spark's log, so that a rerun has the same time. It is text, because Spark writes numbers
    # into its generated code, which would be compiled again for each batch.
    clock = "CAST(unix_millis(current_timestamp()) AS STRING) AS clock"
    timed = reduce(type(packed[0]).unionAll, packed).selectExpr("keygroup", clock, "payload")
    return timed.groupBy("keygroup").transformWithStateInPandas(
        processor, emitter.ddl, outputMode="append", timeMode="None", initialState=initial
    )


def _observed(frame: DataFrame, operator: str, observations: dict[str, Observation]) -> DataFrame:
    """Return the output of a line of stages, with its metrics observed."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    # One aggregate, because Spark evaluates each aggregate for every row; readers of the progress split the marks.
    mark = f"CASE WHEN startswith({NOTE}, X'4D') THEN CAST(substring({NOTE}, 2) AS STRING) END"
    # As one text, because Spark 4.0 returns no Python object for an array.
    marks = F.expr(f"concat('[', concat_ws(',', collect_list({mark})), ']')").alias("marks")
    name = f"{OBSERVED}{operator}"
    if frame.isStreaming:
        return frame.observe(name, marks)
    # Spark 4.1 starts the coordinator of state stores only when streaming queries are listed.
    _ = frame.sparkSession.streams.active
    observations[operator] = Observation(name)
    return frame.observe(observations[operator], marks)


def _route(chain: list[Stage], schemas: list[list[Schema]], output: Port, archive: SourceArchive | None) -> Route:
    index = _index_of(chain, output.stage.name)
    if output.tag is not None:
        schema = _side_schema(output.stage, output.tag, schemas[index][0])
        chunks: str | None = output_id(index, output.tag.name)
    else:
        schema = _main_schema(output.stage, "its main output is read")
        chunks = None if index + 1 == len(chain) else output_id(index, None)
    name, steps = output.stage.name, output.steps
    result = _after(schema, steps, name) if steps else None
    for step in steps:
        check_serializable(step.function, f"{name}, {step!r}")
    return Route(schema, chunks, archive, name, steps, result)


def _after(schema: Schema, steps: tuple[Transform, ...], operator: str) -> Schema:
    """Return the columns after transformations.

    Raises:
        OutputDefinitionError: They are not declared, or Spark has no such type.
    """
    for step in steps:
        after = schema_after(schema, [step])
        if after is None:
            raise OutputDefinitionError(
                f"operator {operator!r}, {step!r}: its result has no type, which Spark needs; give "
                f"{step.kind}(..., output='name type, ...')"
            )
        _check(after, f"operator {operator!r}, {step!r}")
        schema = after
    return schema


def _transforming(route: Route, result: Schema) -> Callable[[Iterator[Any]], Iterator[Any]]:
    steps, operator = route.steps, route.operator

    def transform(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        target = arrow_schema(result)
        for batch in batches:
            rows = TransformedRows(None, table=pa.Table.from_batches([batch]))
            rows = transformed(rows, steps, operator)
            if rows.count:
                table = rows.table(f"operator {operator!r}")
                yield from (table if table.schema == target else table.cast(target)).to_batches()

    return transform


def _unpacker(schema: Schema) -> Callable[[Iterator[Any]], Iterator[Any]]:
    names = list(schema.names)

    def unpack(batches: Iterator[Any]) -> Iterator[Any]:
        target = arrow_schema(schema)
        for batch in batches:
            for note in batch.column(0).to_pylist():
                table = read_chunk(note).select(names)
                yield from (table if table.schema == target else table.cast(target)).to_batches()

    return unpack


def parallelism_of(last: Stage) -> int | None:
    """Return the number of key groups that a chain sets, ``None`` if it sets none.

    Raises:
        DefinitionError: Its stages set different numbers.
    """
    declared = {stage.parallelism: stage.name for stage in last.chain if stage.parallelism is not None}
    if len(declared) > 1:
        (one, first), (other, second) = list(declared.items())[:2]
        raise DefinitionError(
            f"operators {first!r} and {second!r} have parallelism {one} and {other}: the stages of one Spark query "
            "have as many key groups as it has shuffle partitions; give the same number"
        )
    return next(iter(declared), None)
