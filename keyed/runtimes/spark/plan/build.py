"""From a chain of stages to one DataFrame: source and tick, pack, operate, and so on for each stage.

The DataFrame has the main output of the last stage as columns, and in the column ``NOTE`` everything else: chunks of
the side outputs that are read and of the main outputs of inner stages that are read, and the marks of the key groups.
`Plan.output` takes one output out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs

from keyed.arrow.write import arrow_schema
from keyed.codec.key_hash import spark_key_type
from keyed.column_types import quoted
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.functions import takes_two
from keyed.outputs import OutputTag, Schema
from keyed.recovery.cut import Cut
from keyed.runtimes.spark.plan.inputs import (
    hash_expression,
    key_columns,
    no_hash,
    packed_ticks,
    schema_of_frame,
    time_column,
    too_far_ahead,
)
from keyed.runtimes.spark.plan.packed_initial import packed_initial
from keyed.runtimes.spark.plan.travelling import check_travels
from keyed.runtimes.spark.query.metrics import OBSERVED
from keyed.runtimes.spark.session.session_check import is_remote
from keyed.runtimes.spark.session.ship import Parcel, carried, parcel_for
from keyed.runtimes.spark.worker.emit import Emitter, unwired
from keyed.runtimes.spark.worker.pack import Packer
from keyed.runtimes.spark.worker.processor import Operation, Processor
from keyed.runtimes.spark.worker.settle import settle
from keyed.runtimes.spark.worker.unpack import PackedInput
from keyed.runtimes.spark.worker.wire import NOTE, PACKED, TIMESTAMP, chunk_prefix, output_id, read_chunk
from keyed.streams import Output, Source, Stage
from keyed.vectorized import combines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation


@attrs.frozen
class Route:
    """How an output is taken out of the plan's DataFrame.

    Attributes:
        schema: Its columns.
        chunks: Id under which it travels in notes; ``None`` for the main output of the last stage.
        parcel: Sources that workers need, over Spark Connect.
    """

    schema: Schema
    chunks: str | None
    parcel: Parcel | None = None

    def frame(self, whole: DataFrame) -> DataFrame:
        """Return the output out of the whole output of the plan."""
        columns = [quoted(name) for name in self.schema.names]
        if self.chunks is None:
            return whole.where(f"{NOTE} IS NULL").selectExpr(*columns)
        notes = whole.where(f"startswith({NOTE}, X'{chunk_prefix(self.chunks).hex()}')").select(NOTE)
        return notes.mapInArrow(carried(self.parcel, _unpacker(self.schema)), self.schema.ddl)


@attrs.frozen(eq=False)
class Plan:
    """A chain as a DataFrame.

    Attributes:
        frame: The whole output.
        routes: How each wanted output is taken out, in the order in which they were asked for.
        observations: For a batch DataFrame, the metrics of each operator by name.
        parcel: Sources that workers need, over Spark Connect.
    """

    frame: DataFrame
    routes: list[Route]
    observations: dict[str, Observation]
    parcel: Parcel | None = None


def parallelism_of(last: Stage) -> int | None:
    """Return the number of key groups that a chain asks for, ``None`` if it does not.

    Raises:
        DefinitionError: Its stages ask for different numbers.
    """
    asked = {stage.parallelism: stage.name for stage in last.chain if stage.parallelism is not None}
    if len(asked) > 1:
        (one, first), (other, second) = list(asked.items())[:2]
        raise DefinitionError(
            f"operators {first!r} and {second!r} ask for parallelism {one} and {other}: the stages of one Spark query "
            "have as many key groups as it has shuffle partitions; give the same number"
        )
    return next(iter(asked), None)


def build(
    last: Stage,
    wanted: Sequence[Output],
    parallelism: int,
    *,
    changelogs: Mapping[str, str],
    local_dir: str | None = None,
    end: bool = False,
    cut: Cut | None = None,
    ticks_alone: bool = False,
    tick_files: DataFrame | None = None,
    begins: bool = True,
) -> Plan:
    """Build the DataFrame of a chain.

    Args:
        last: The last stage.
        wanted: Outputs of stages of the chain that are read. Others are not produced.
        parallelism: Number of key groups.
        changelogs: Identity of the changelog of each operator that has one, by name.
        local_dir: Folder for stores on disk.
        end: Whether the input ends with this batch.
        cut: What the key groups are restored from that have no state yet.
        ticks_alone: Whether the source is left out: the batch does nothing but wake the key groups.
        tick_files: The ticks, where they are written when they are due.
        begins: Whether the query may have no batch yet, with which it would take its initial state.

    Raises:
        DefinitionError: Something about the chain is wrong; names it and the remedy.
    """
    chain = last.chain
    schemas = _input_schemas(chain)
    observations: dict[str, Observation] = {}
    parcel = parcel_for(stage.function for stage in chain) if is_remote(last.source.data.sparkSession) else None
    for stage in chain:
        check_travels(stage.function, stage.name)
    ticks = packed_ticks(last, parallelism, end=end, needed=ticks_alone, files=tick_files)
    frame: DataFrame | None = None
    emitters: list[Emitter] = []
    for index, stage in enumerate(chain):
        emitter = _emitter(chain, index, schemas[index], wanted)
        if frame is None:
            read = [_from_source(chain, number, wanted, parallelism) for number in range(len(stage.inputs))]
        else:
            read = [_from_stage(chain, index, frame, emitters[-1], schemas[index], wanted, parallelism)]
        sided = takes_two(stage.function)
        operation = Operation(
            spec=stage.spec(parallelism, output_timestamps=emitter.timestamps),
            inputs=tuple(
                PackedInput(
                    each.packer.keys,
                    each.packer.time if each.packer.combiner is None else None,
                    stage.inputs[each.packer.input].side if sided else None,
                    each.packer.broadcast,
                )
                for each in read
            ),
            key_type=_key_type(stage, [each.key_type for each in read if not each.packer.broadcast]),
            emitter=emitter,
            store=stage.store,
            local_dir=local_dir,
            upstream=parallelism if index else None,
            changelog_id=changelogs.get(stage.name, ""),
            cut=cut,
        )
        packed = [each.frame.mapInArrow(carried(parcel, _packing(each.packer)), PACKED) for each in read]
        if ticks is not None and frame is None:
            packed = [ticks] if ticks_alone else [*packed, ticks]
        # The batch's time as Spark logs it, so that a batch that is run again sees the same. It is text because Spark
        # writes numbers into the code that it generates, which would be compiled anew for each batch.
        clock = "CAST(unix_millis(current_timestamp()) AS STRING) AS clock"
        timed = reduce(type(packed[0]).unionAll, packed).selectExpr("keygroup", clock, "payload")
        worked = timed.groupBy("keygroup").transformWithStateInPandas(
            carried(parcel, Processor(operation)),
            emitter.ddl,
            outputMode="append",
            timeMode="None",
            initialState=packed_initial(stage, parallelism, parcel) if begins else None,
        )
        frame = _observed(worked, emitter, stage.name, observations)
        emitters.append(emitter)
    assert frame is not None
    return Plan(frame, [_route(chain, schemas, output, parcel) for output in wanted], observations, parcel)


@attrs.frozen
class _Read:
    """What a stage reads, before it is packed.

    Attributes:
        frame: The columns of the user and the hidden ones.
        packer: Packs it.
        key_type: Type of the keys.
    """

    frame: DataFrame
    packer: Packer
    key_type: str


def _from_source(chain: list[Stage], number: int, wanted: Sequence[Output], parallelism: int) -> _Read:
    """Return one input of the first stage.

    Raises:
        DefinitionError: A column is missing or has a type that cannot be used.
    """
    stage = chain[0]
    each = stage.inputs[number]
    source, schema = each.source, schema_of_frame(each.source.data)
    keys, time = key_columns(each.keys, schema, stage.name), time_column(source, schema)
    bad = too_far_ahead(source, schema)
    hashed = no_hash(bad) if each.is_broadcast else hash_expression(keys, schema, stage.name, bad)
    partition_by = source.watermark.partition_by
    if partition_by is not None and partition_by not in schema.names:
        raise DefinitionError(
            f"with_partitions({partition_by!r}): the column is not in the source: {', '.join(schema.names)}"
        )
    # A union has the columns in the order of its first stream.
    names = schema_of_frame(stage.source.data).names if each.side == 0 else schema.names
    return _Read(
        source.data.selectExpr(*map(quoted, names), hashed),
        Packer(
            operator=stage.name,
            keys=keys,
            columns=names,
            parallelism=parallelism,
            time=time,
            from_source=True,
            bad_rows=_bad_rows(source, wanted, chain),
            # With ingestion time rows get their timestamps in the key group, and are combined there.
            combiner=stage.function if combines(stage.function) and not source.ingests else None,
            input=number,
            partition_by=partition_by,
            broadcast=each.is_broadcast,
        ),
        "" if each.is_broadcast else _type_of_keys(keys, schema),
    )


def _from_stage(
    chain: list[Stage],
    index: int,
    frame: DataFrame,
    before: Emitter,
    schema: Schema,
    wanted: Sequence[Output],
    parallelism: int,
) -> _Read:
    """Return what a later stage reads: the main output of the one before, or chunks of another one."""
    stage = chain[index]
    keys = key_columns(stage.keys, schema, stage.name)
    # Rows that are there as columns are those of the stage before; what else is read comes in notes.
    columns = before.main.names if before.main is not None else ()
    hashed = [hash_expression(keys, schema, stage.name)] if stage.reads is None else []
    return _Read(
        frame.selectExpr(*map(quoted, columns), *hashed, *([TIMESTAMP] if before.timestamps else []), NOTE),
        Packer(
            operator=stage.name,
            keys=keys,
            columns=schema.names,
            parallelism=parallelism,
            time=TIMESTAMP if stage.source.timestamp is not None else None,
            from_source=False,
            forward_rows=_forwarded(chain, index, wanted),
            combiner=stage.function if combines(stage.function) else None,
            reads=_id_of(chain, stage.reads) if stage.reads is not None else None,
            reads_last=stage.reads is None or not _needed(chain[index + 1 :], wanted, chain, stage.reads),
        ),
        _type_of_keys(keys, schema),
    )


def _type_of_keys(keys: tuple[str, ...], schema: Schema) -> str:
    types = dict(schema.columns)
    return spark_key_type([types[key] for key in keys])


def _key_type(stage: Stage, types: list[str]) -> str:
    """Return the type of a stage's keys.

    Raises:
        DefinitionError: The streams that it reads have keys of different types.
    """
    if len(set(types)) > 1:
        raise DefinitionError(
            f"operator {stage.name!r}: the streams that it reads have keys of types {' and '.join(sorted({*types}))}; "
            "cast them to one type"
        )
    return types[0]


def _input_schemas(chain: list[Stage]) -> list[Schema]:
    """Return the columns that each stage reads.

    Raises:
        OutputDefinitionError: A stage that is read by another one has no output type.
    """
    schemas = [schema_of_frame(chain[0].source.data)]
    for before, stage in pairwise(chain):
        name, tag = stage.reads or (before.name, None)
        index = next(i for i, other in enumerate(chain) if other.name == name)
        read = chain[index]
        if tag is None:
            schemas.append(_main_schema(read, f"operator {stage.name!r} reads it"))
        else:
            schemas.append(_side_schema(read, tag, schemas[index]))
    return schemas


def _id_of(chain: list[Stage], output: tuple[str, OutputTag | None]) -> str:
    """Return the id under which an output travels in notes."""
    index = next(i for i, stage in enumerate(chain) if stage.name == output[0])
    return output_id(index, output[1].name if output[1] else None)


def _needed(
    later: list[Stage], wanted: Sequence[Output], chain: list[Stage], output: tuple[str, OutputTag | None]
) -> bool:
    """Tell whether an output is read by later stages, from notes, or by a sink."""
    wants = [(each.stage.name, each.tag) for each in wanted]
    reads = [stage.reads for stage in later if stage.reads is not None]
    return any(_id_of(chain, each) == _id_of(chain, output) for each in [*wants, *reads])


def _main_schema(stage: Stage, reason: str) -> Schema:
    if stage.output is None:
        raise OutputDefinitionError(
            f"operator {stage.name!r} has no output type, and {reason}; give process(..., output='name type, ...')"
        )
    _check(stage.output, f"operator {stage.name!r}, main output")
    return stage.output


def _side_schema(stage: Stage, tag: Any, columns: Schema) -> Schema:
    """Return the columns of a side output: those of its type, or of the stage's input.

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


def _emitter(chain: list[Stage], index: int, columns: Schema, wanted: Sequence[Output]) -> Emitter:
    """Return the outputs of a stage that sinks or other stages read."""
    stage = chain[index]
    own = [output for output in wanted if output.stage is stage]
    later = chain[index + 1 :]
    followed = any(each.reader_of((stage.name, None)) for each in later)
    main = None
    if followed or any(output.tag is None for output in own):
        main = _main_schema(stage, "its main output is read")
    side: dict[str, Schema] = {}
    read = [each.reads[1] for each in later if each.reads is not None and each.reads[0] == stage.name]
    tags = [tag for tag in read if tag is not None]
    for tag in [*(output.tag for output in own if output.tag is not None), *tags]:
        schema = _side_schema(stage, tag, columns)
        if side.setdefault(tag.name, schema) != schema:
            raise OutputDefinitionError(f"operator {stage.name!r}: side output {tag.name!r} is read with two types")
    timed = stage.source.timestamp is not None
    return Emitter(
        stage.name,
        index,
        main,
        side,
        timestamps=followed and timed,
        timed_side=frozenset(tag.name for tag in tags) if timed else frozenset(),
    )


def _bad_rows(source: Source, wanted: Sequence[Output], chain: list[Stage]) -> str | None:
    """Return the output for bad rows: ``None`` refuses them, an empty one drops them."""
    tag = source.on_bad_row
    if tag is None:
        return None
    return output_id(0, tag.name) if _needed(chain[1:], wanted, chain, (chain[0].name, tag)) else ""


def _forwarded(chain: list[Stage], index: int, wanted: Sequence[Output]) -> str | None:
    """Return the id under which the main output of the stage before is passed on, if someone else reads it too."""
    output = (chain[index - 1].name, None)
    return _id_of(chain, output) if _needed(chain[index:], wanted, chain, output) else None


def _route(chain: list[Stage], schemas: list[Schema], output: Output, parcel: Parcel | None) -> Route:
    index = next(i for i, stage in enumerate(chain) if stage is output.stage)
    if output.tag is not None:
        schema = _side_schema(output.stage, output.tag, schemas[index])
        return Route(schema, output_id(index, output.tag.name), parcel)
    schema = _main_schema(output.stage, "its main output is read")
    return Route(schema, None if index + 1 == len(chain) else output_id(index, None), parcel)


def _observed(worked: DataFrame, emitter: Emitter, operator: str, observations: dict[str, Observation]) -> DataFrame:
    """Return the stage's output with its columns as they are meant, and with its metrics observed."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    columns = [unwired(name, type_) for name, type_ in (emitter.main.columns if emitter.main else ())]
    columns += [TIMESTAMP] if emitter.timestamps else []
    frame = worked.selectExpr(*columns, NOTE)
    # One aggregate, because Spark interprets each of them for every row; who reads the progress takes the marks apart.
    mark = f"CASE WHEN startswith({NOTE}, X'4D') THEN CAST(substring({NOTE}, 2) AS STRING) END"
    # As one text: what Spark 4.0 gives of an array is no Python object.
    marks = F.expr(f"concat('[', concat_ws(',', collect_list({mark})), ']')").alias("marks")
    name = f"{OBSERVED}{operator}"
    if frame.isStreaming:
        return frame.observe(name, marks)
    observations[operator] = Observation(name)
    return frame.observe(observations[operator], marks)


# What the Python workers run ------------------------------------------------------------------------------------------


def _packing(packer: Packer) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def pack(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from packer.pack(batches, context.partitionId() if context is not None else 0)
        settle()

    return pack


def _unpacker(schema: Schema) -> Callable[[Iterator[Any]], Iterator[Any]]:
    names = list(schema.names)

    def unpack(batches: Iterator[Any]) -> Iterator[Any]:
        target = arrow_schema(schema)
        for batch in batches:
            for note in batch.column(0).to_pylist():
                table = read_chunk(note).select(names)
                yield from (table if table.schema == target else table.cast(target)).to_batches()

    return unpack
