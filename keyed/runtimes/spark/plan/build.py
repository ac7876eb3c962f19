"""Compilation of a chain of stages to one DataFrame: source and tick, pack, operate, and so on for each line of stages.

The DataFrame has the main output of the last stage as columns, and in the column ``NOTE`` everything else: chunks of
the requested side outputs and main outputs of inner stages, and the marks of the key groups. `Route.frame` selects one
output of it.

The functions are in the order of the calls: `build`, then its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from keyed.arrow.write import arrow_schema
from keyed.base.schemas import Schema, quoted
from keyed.codec.key_hash import spark_key_type
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.job.functions import VectorizedFunction, combines, takes_two, unannotated
from keyed.job.global_tables import GlobalTable
from keyed.job.graph import Input, Port, Source, Stage, Transform, is_dataframe, schema_after
from keyed.recovery.cut import Cut
from keyed.runtimes.garbage import freeze_modules
from keyed.runtimes.initial_frames import arrow_table, frames_of
from keyed.runtimes.recording import Recorder
from keyed.runtimes.spark.plan.inputs import (
    check_read_once,
    hash_expression,
    key_columns,
    packed_ticks,
    schema_of_frame,
    time_column,
    too_far_ahead,
)
from keyed.runtimes.spark.plan.serialization import check_serializable
from keyed.runtimes.spark.query.exports import OBSERVED
from keyed.runtimes.spark.session.ship import SourceArchive, archive_for, shipped
from keyed.runtimes.spark.session.spark_session import is_remote
from keyed.runtimes.spark.worker.pack import Packer, Reading, pack_initial
from keyed.runtimes.spark.worker.processor import Operation, PackedInput, Processor
from keyed.runtimes.spark.worker.wire import (
    NOTE,
    PACKED,
    TIMESTAMP,
    Emitter,
    chunk_prefix,
    hash_column,
    output_id,
    read_chunk,
    source_id,
)
from keyed.runtimes.transforming import TransformedRows, transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.group import GroupedData

_Function = Callable[[Iterator[Any]], Iterator[Any]]


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

    def frame(self, plan: DataFrame) -> DataFrame:
        """Return this output from the whole output of the plan."""
        frame = self._plain(plan)
        if self.result is None:
            return frame
        transform = partial(_transform, self.steps, self.operator, self.result)
        return _map_in_arrow(frame, transform, self.result.ddl, self.archive)

    def _plain(self, plan: DataFrame) -> DataFrame:
        columns = [quoted(name) for name in self.schema.names]
        if self.chunks is None:
            return plan.where(f"{NOTE} IS NULL").selectExpr(*columns)
        notes = plan.where(f"startswith({NOTE}, X'{chunk_prefix(self.chunks).hex()}')").select(NOTE)
        return notes.mapInArrow(shipped(self.archive, partial(_unpack, self.schema)), self.schema.ddl)


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
    if changelogs:
        check_read_once(last.sources)
    stages = _Stages(last, ports, parallelism)
    chain = stages.chain
    functions: list[tuple[object, str]] = [(stage.function, stage.name) for stage in chain]
    all_steps = [(stage.name, each.steps) for stage in chain for each in stage.inputs]
    all_steps += [(output.stage.name, output.steps) for output in ports]
    functions += [(step.function, f"{name}, {step!r}") for name, steps in all_steps for step in steps]
    is_shipped = is_remote(last.source.data.sparkSession)
    archive = archive_for(function for function, _ in functions) if is_shipped else None
    for function, name in functions:
        check_serializable(function, name)
    ticks = packed_ticks(last, parallelism, end=end, needed=ticks_alone, files=tick_files)
    handing_on = {stage.name for line in lines for stage in line[:-1]}
    emitters = [stages.emitter(index, forwards=stage.name in handing_on) for index, stage in enumerate(chain)]
    observations: dict[str, Observation] = {}
    frame: DataFrame | None = None
    index = 0

    def frames_before(index: int) -> list[tuple[DataFrame, Packer]]:
        frames = [] if ticks_alone else stages.source_frames(index)
        return frames if frame is None else [*frames, stages.stage_frame(index, frame, emitters[index - 1])]

    for line in lines:
        if line[0].is_relay:
            continue
        frames = frames_before(index)
        if recorder is not None and not index:
            frames = [(each, _recorded(packer, chain[index], recorder)) for each, packer in frames]
        packed = [_map_in_arrow(each, partial(_pack, packer), PACKED, archive) for each, packer in frames]
        if ticks is not None and not index:
            # They are the last of the query's sources: the sources of later stages come before them.
            packed.append(ticks)
        operations = [
            Operation(
                spec=stage.spec(parallelism, output_timestamps=emitters[place].timestamps),
                inputs=stages.packed_inputs(place),
                key_type=stages.key_type(place),
                emitter=emitters[place],
                store=stage.store,
                local_dir=local_dir,
                changelog_id=changelogs.get(stage.name, ""),
                cut=cut,
                first_batch=first_batch,
            )
            for place, stage in enumerate(chain[index : index + len(line)], index)
        ]
        initial = _initial_state(chain[index], parallelism, archive) if begins else None
        emitter = operations[-1].emitter
        worked = _worked(packed, shipped(archive, Processor(operations)), emitter, initial)
        frame = _observed(worked.selectExpr(*emitter.expressions), line[-1].name, observations)
        index += len(line)
    if index < len(chain):
        main = _main_schema(last, "it is written")
        wire = f"{main.ddl}, {NOTE} binary"
        relays = [
            _map_in_arrow(each, partial(_pack, attrs.evolve(packer, main=arrow_schema(main))), wire, archive)
            for each, packer in frames_before(index)
        ]
        frame = _observed(reduce(type(relays[0]).unionAll, relays), last.name, observations)
    assert frame is not None
    return Plan(frame, [stages.route(output, archive) for output in ports], observations, archive)


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


class _Stages:
    """The stages of a chain, and the outputs that sinks read. A stage and an input of it are given by their index.

    Args:
        last: The last stage.
        ports: The outputs.
        parallelism: Number of key groups.

    Attributes:
        chain: The stages in order.
        columns: The columns of the inputs of each stage, before their transformations.
        schemas: The same, after them.

    Raises:
        OutputDefinitionError: An input is an output without a type.
    """

    def __init__(self, last: Stage, ports: Sequence[Port], parallelism: int) -> None:
        self.chain = last.chain
        self._ports = ports
        self._parallelism = parallelism
        self.columns: list[list[Schema]] = []
        self.schemas: list[list[Schema]] = []
        for stage in self.chain:
            before = [self._columns_of(each.origin, stage) for each in stage.inputs]
            self.columns.append(before)
            pairs = zip(before, stage.inputs, strict=True)
            self.schemas.append([_after(columns, each.steps, stage.name) for columns, each in pairs])

    def emitter(self, index: int, *, forwards: bool) -> Emitter:
        """Return the emitter of a stage, for the outputs that sinks or other stages read.

        Args:
            index: The stage.
            forwards: Whether the next stage is chained to it.
        """
        stage = self.chain[index]
        own = [output for output in self._ports if output.stage.name == stage.name]
        origins = [each.origin for other in self.chain[index + 1 :] for each in other.inputs]
        read = [each for each in origins if isinstance(each, Port) and each.stage.name == stage.name]
        followed = any(output.tag is None for output in read)
        main = None
        if followed or any(output.tag is None for output in own):
            main = _main_schema(stage, "its main output is read")
        side: dict[str, Schema] = {}
        tags = [output.tag for output in read if output.tag is not None]
        for tag in [*(output.tag for output in own if output.tag is not None), *tags]:
            schema = _side_schema(stage, tag, self.schemas[index][0])
            if side.setdefault(tag.name, schema) != schema:
                raise OutputDefinitionError(f"operator {stage.name!r}: side output {tag.name!r} is read with two types")
        timed = stage.event_time
        also_needed = forwards and self._is_read(index + 1, (stage.name, None))
        return Emitter(
            stage.name,
            index,
            main,
            side,
            timestamps=followed and timed,
            timed_side=frozenset(tag.name for tag in tags) if timed else frozenset(),
            main_chunks=output_id(index, None) if also_needed else None,
        )

    def source_frames(self, index: int) -> list[tuple[DataFrame, Packer]]:
        """Return the sources that a stage is the first to read, each once, with their packers.

        Other readers of such a source get its rows as chunks, because Spark would otherwise read it again.
        """
        frames = []
        together = self._together(index)
        for number, source in enumerate(self.chain[-1].sources):
            readers = self._readers(source)
            if readers[0][0] not in together:
                continue
            schema = schema_of_frame(source.data)
            readings = tuple(self._reading(*reader) for reader in readers if reader[0] in together)
            ahead = too_far_ahead(source, schema)
            hashes = [self._hash(*reader, schema, ahead) for reader in readers]
            shared = source_id(number) if readers[-1][0] not in together else None
            frame = source.data.selectExpr(*map(quoted, schema.names), *hashes)
            frames.append((frame, Packer(self._groups(index), readings, forward=shared)))
        return frames

    def stage_frame(self, index: int, frame: DataFrame, before: Emitter) -> tuple[DataFrame, Packer]:
        """Return the output of the previous stage, and the packer of its rows (if a stage reads them) and chunks.

        Args:
            index: The stage.
            frame: The output of the stage before it.
            before: The emitter of that stage.
        """
        main, together = (self.chain[index - 1].name, None), self._together(index)
        readings, hashes = [], []
        for place in together:
            for number, each in enumerate(self.chain[place].inputs):
                if isinstance(each.origin, Source):
                    if self._readers(each.origin)[0][0] in together:
                        continue
                elif each.origin.address == main:
                    hashes.append(self._hash(place, number, self.schemas[place][number], None))
                readings.append(self._reading(place, number))
        # Rows in columns are those of the previous stage; other inputs come in notes.
        columns = before.main.names if before.main is not None else ()
        forward = output_id(index - 1, None) if self._is_read(together.stop - 1, main) else None
        return (
            frame.selectExpr(*map(quoted, columns), *hashes, *([TIMESTAMP] if before.timestamps else []), NOTE),
            Packer(self._groups(index), tuple(readings), after_stage=True, forward=forward),
        )

    def packed_inputs(self, index: int) -> tuple[PackedInput, ...]:
        """Return the inputs of a stage, for unpacking."""
        stage = self.chain[index]
        sided = takes_two(stage.function)
        return tuple(
            PackedInput(
                () if callable(each.keys) else each.keys,
                _packed_time(each) if _combiner(stage, each) is None else None,
                each.side if sided else None,
                each.is_broadcast,
                self._index_of(each.origin.stage) if isinstance(each.origin, Port) and each.counts else None,
                self._packed_schema(index, number),
            )
            for number, each in enumerate(stage.inputs)
        )

    def key_type(self, index: int) -> str:
        """Return the type of a stage's keys.

        Raises:
            DefinitionError: The streams that it reads have keys of different types.
        """
        stage = self.chain[index]
        types = set()
        for each, schema in zip(stage.inputs, self.schemas[index], strict=True):
            if not each.is_broadcast:
                columns = dict(schema.columns)
                types.add(spark_key_type([columns[key] for key in key_columns(each.keys, schema, stage.name)]))
        if len(types) > 1:
            raise DefinitionError(
                f"operator {stage.name!r}: the streams that it reads have keys of types {' and '.join(sorted(types))}; "
                "cast them to one type"
            )
        return next(iter(types))

    def route(self, output: Port, archive: SourceArchive | None) -> Route:
        """Return the part of the plan's DataFrame that is an output."""
        index = self._index_of(output.stage)
        if output.tag is not None:
            schema = _side_schema(output.stage, output.tag, self.schemas[index][0])
            chunks: str | None = output_id(index, output.tag.name)
        else:
            schema = _main_schema(output.stage, "its main output is read")
            chunks = None if index + 1 == len(self.chain) else output_id(index, None)
        name, steps = output.stage.name, output.steps
        return Route(schema, chunks, archive, name, steps, _after(schema, steps, name) if steps else None)

    def _columns_of(self, origin: Source | Port, reader: Stage) -> Schema:
        """Return the columns of a source, or of an output of an earlier stage."""
        if isinstance(origin, Source):
            return schema_of_frame(origin.data)
        place = self._index_of(origin.stage)
        if origin.tag is None:
            return _main_schema(self.chain[place], f"operator {reader.name!r} reads it")
        return _side_schema(self.chain[place], origin.tag, self.schemas[place][0])

    def _index_of(self, stage: Stage) -> int:
        return next(index for index, other in enumerate(self.chain) if other.name == stage.name)

    def _together(self, index: int) -> range:
        """Return the stages whose inputs are packed with those of a stage: of one without a key, all of these."""
        if not self.chain[index].is_relay:
            return range(index, index + 1)
        return range(next(place for place, stage in enumerate(self.chain) if stage.is_relay), len(self.chain))

    def _groups(self, index: int) -> int:
        """Return the number of key groups of a stage; one without a key has one."""
        return 1 if self.chain[index].is_relay else self._parallelism

    def _is_read(self, index: int, address: tuple[str, str | None]) -> bool:
        """Return true if stages after one, or a sink, read an output from notes."""
        read = [each.origin for stage in self.chain[index + 1 :] for each in stage.inputs]
        return any(isinstance(each, Port) and each.address == address for each in [*self._ports, *read])

    def _readers(self, source: Source) -> list[tuple[int, int]]:
        """Return the inputs that read a source."""
        return [(self.chain.index(stage), number) for stage, number in self.chain[-1].readers_of(source)]

    def _reading(self, index: int, number: int) -> Reading:
        """Return the packing of an input: with transformations that of its rows, and in it that of the results."""
        each = self.chain[index].inputs[number]
        keyed = self._keyed_reading(index, number)
        if not each.steps:
            return keyed
        diverts = all(step.kind == "filter" for step in each.steps)
        after = attrs.evolve(
            keyed,
            time=None if keyed.time is None else TIMESTAMP,
            of_source=False,
            bad_rows=keyed.bad_rows if diverts else None,
            partition_by=None,
            chunks=None,
        )
        names = self.columns[index][number].names
        return attrs.evolve(keyed, keys=(), columns=names, combiner=None, schema=None, steps=each.steps, after=after)

    def _keyed_reading(self, index: int, number: int) -> Reading:
        """Return the packing of an input, as if it had no transformations.

        Raises:
            DefinitionError: A column is missing or has a type that cannot be used.
        """
        stage = self.chain[index]
        each = stage.inputs[number]
        together = self._together(index)
        reading = Reading(
            operator=stage.name,
            keys=key_columns(each.keys, self.schemas[index][number], stage.name),
            columns=self._names(index, number),
            time=TIMESTAMP if each.event_time else None,
            of_source=False,
            hash=hash_column(index, number),
            combiner=_combiner(stage, each),
            input=number,
            broadcast=each.is_broadcast,
            schema=self._packed_schema(index, number),
            output=output_id(index, None) if stage.is_relay and stage is not self.chain[-1] else "",
        )
        if not isinstance(each.origin, Source):
            address = each.origin.address
            adjacent = address == (self.chain[together.start - 1].name, None)
            chunks = None if adjacent else output_id(self._index_of(each.origin.stage), address[1])
            return attrs.evolve(reading, chunks=chunks, last=not self._is_read(together.stop - 1, address))
        source = each.origin
        if source.watermark.alignment_group is not None:
            raise DefinitionError(
                "with_watermark_alignment: Spark chooses the rows of a batch from each source before the batch, so no "
                "source can be held back for others; limit the rows of a batch from each source with "
                "maxOffsetsPerTrigger, maxFilesPerTrigger and so on"
            )
        columns, partition_by = self.columns[index][number], source.watermark.partition_by
        if partition_by is not None and partition_by not in columns.names:
            raise DefinitionError(
                f"with_partitions({partition_by!r}): the column is not in the source: {', '.join(columns.names)}"
            )
        readers = [place for place, _ in self._readers(source)]
        return attrs.evolve(
            reading,
            time=time_column(source, columns),
            of_source=True,
            bad_rows=self._bad_rows(index, source),
            partition_by=partition_by,
            chunks=None if readers[0] in together else source_id(self.chain[-1].sources.index(source)),
            last=readers[-1] in together,
        )

    def _names(self, index: int, number: int) -> tuple[str, ...]:
        """Return the columns of an input in their order: a union has that of its first stream."""
        inputs = self.chain[index].inputs
        first = next(place for place, other in enumerate(inputs) if other.side == inputs[number].side)
        return self.schemas[index][first].names

    def _packed_schema(self, index: int, number: int) -> pa.Schema | None:
        """Return the Arrow schema of the packed rows of an input; ``None`` if the function combines them.

        It is an expectation, which saves sending the schema with each chunk. Rows with another schema have it with
        them.
        """
        each = self.chain[index].inputs[number]
        if _combiner(self.chain[index], each) is not None:
            return None
        columns = dict(self.schemas[index][number].columns)
        try:
            schema = arrow_schema(Schema(tuple((name, columns[name]) for name in self._names(index, number))))
        except (KeyError, OutputDefinitionError):
            return None
        zone = self.chain[-1].source.data.sparkSession.conf.get("spark.sql.session.timeZone")
        schema = pa.schema([pa.field(field.name, _zoned(field.type, zone)) for field in schema])
        # The hidden column has the timestamps of rows that keyed has emitted or transformed.
        return schema.append(pa.field(TIMESTAMP, pa.int64())) if _packed_time(each) == TIMESTAMP else schema

    def _bad_rows(self, index: int, source: Source) -> str | None:
        """Return the id of the output for bad rows: ``None`` refuses them, an empty id drops them."""
        tag = source.on_bad_row
        if tag is None:
            return None
        return output_id(index, tag.name) if self._is_read(index, (self.chain[index].name, tag.name)) else ""

    def _hash(self, index: int, number: int, schema: Schema, bad: str | None) -> str:
        """Return the SQL expression of the hidden column with the hashes of an input's keys, null for bad rows."""
        stage = self.chain[index]
        each = stage.inputs[number]
        # The keys of transformed rows are hashed where they are packed.
        is_keyed = each.keys and not (each.is_broadcast or each.steps)
        keys = key_columns(each.keys, schema, stage.name) if is_keyed else ()
        return f"{hash_expression(keys, schema, stage.name, bad)} AS {hash_column(index, number)}"


def _combiner(stage: Stage, each: Input) -> VectorizedFunction | None:
    """Return the function that combines the rows of an input before they are sent; ``None`` if they are not.

    With ingestion time, rows get their timestamps in the key group, and are combined there.
    """
    ingests = isinstance(each.origin, Source) and each.origin.ingests
    return stage.function if combines(stage.function) and not ingests else None


def _packed_time(each: Input) -> str | None:
    """Return the column with the event time of packed rows; ``None`` if they have none."""
    time: Any = each.source.time if isinstance(each.origin, Source) else TIMESTAMP if each.event_time else None
    return TIMESTAMP if time is not None and each.steps else time


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


def _zoned(type_: pa.DataType, zone: str) -> pa.DataType:
    """Return a type with its timestamps in a zone."""
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


def _recorded(packer: Packer, stage: Stage, recorder: Recorder) -> Packer:
    """Return a packer that records its rows."""
    readings = (attrs.evolve(each, recorder=recorder, side=stage.inputs[each.input].side) for each in packer.readings)
    return attrs.evolve(packer, readings=tuple(readings))


def _pack(packer: Packer, batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    context = TaskContext.get()
    partition, batch = 0, 0
    if context is not None:
        # The jobs of a stream know their batch; a batch DataFrame has only one batch.
        partition, batch = context.partitionId(), int(context.getLocalProperty("streaming.sql.batchId") or 0)
    yield from packer.pack(batches, partition, batch)
    freeze_modules()


def _initial_state(stage: Stage, parallelism: int, archive: SourceArchive | None) -> GroupedData | None:
    """Return a stage's initial state as packed rows by key group; ``None`` if it has none.

    Raises:
        DefinitionError: An argument is not a frame.
    """
    if stage.initial_state is None:
        return None
    session = stage.source.data.sparkSession
    packed: list[DataFrame] = []
    for state, frame in frames_of(stage.initial_state, stage.function, stage.name):
        rows = frame if is_dataframe(frame) else session.createDataFrame(arrow_table(frame))
        pack = partial(pack_initial, state, stage.key_columns, stage.name, parallelism)
        packed.append(_map_in_arrow(rows, pack, PACKED, archive))
    return reduce(type(packed[0]).unionAll, packed).groupBy("keygroup")


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


def _map_in_arrow(frame: DataFrame, function: _Function, schema: str, archive: SourceArchive | None) -> DataFrame:
    """Return a DataFrame of the results of a function of Arrow batches.

    Args:
        frame: The rows. Their columns may have any names.
        function: The function.
        schema: Columns of the results, as Spark DDL.
        archive: Source code that workers need, over Spark Connect.
    """
    names = frame.columns
    if any(character in name for name in names for character in "`."):
        # Spark 4.0 parses the names of the columns that it passes to the function.
        frame = frame.toDF(*(f"column_{number}" for number in range(len(names))))
        function = partial(_with_names, function, names)
    return frame.mapInArrow(shipped(archive, function), schema)


def _with_names(function: _Function, names: Sequence[str], batches: Iterator[Any]) -> Iterator[Any]:
    """Call a function of batches whose columns get their names back."""
    yield from function(batch.rename_columns(names) for batch in batches)


def _transform(
    steps: tuple[Transform, ...], operator: str, result: Schema, batches: Iterator[Any]
) -> Iterator[pa.RecordBatch]:
    target = arrow_schema(result)
    for batch in batches:
        rows = transformed(TransformedRows(None, table=pa.Table.from_batches([batch])), steps, operator)
        if rows.count:
            table = rows.table(f"operator {operator!r}")
            yield from (table if table.schema == target else table.cast(target)).to_batches()


def _unpack(schema: Schema, batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    target = arrow_schema(schema)
    for batch in batches:
        for note in batch.column(0).to_pylist():
            table = read_chunk(note).select(list(schema.names))
            yield from (table if table.schema == target else table.cast(target)).to_batches()


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
