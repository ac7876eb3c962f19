"""The command ``run``: runs a script of SQL statements over files and Kafka topics."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyed.base.scratch import ScratchFolder
from keyed.cli.command import (
    FREE,
    Place,
    add_list,
    add_settings,
    check_place,
    check_tables_folder,
    command,
    parse_pairs,
    print_json,
    print_rows,
    read_text,
    settings_of,
)
from keyed.errors import DefinitionError, QueryFailed
from keyed.tables.entries import shown_time

if TYPE_CHECKING:
    from keyed import sql
    from keyed.sql import OutputRecord
    from keyed.sql.script_runs import ScriptResult


#: Errors of standard output, to which a query prints: it has no reader, or its disk is full.
_OF_STDOUT = {errno.EPIPE, errno.ENOSPC}
#: Files that Spark reads.
_SUFFIXES = {".jsonl", ".json", ".csv", ".parquet"}


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", metavar="SCRIPT", help="file with the statements")
    files = "a file of .jsonl, .csv or .parquet, on Spark also a folder of them"
    add_list(parser, "--input", "NAME=FILE", f"rows of a stream or table of the script: {files}")
    parser.add_argument(
        "--runtime", choices=("local", "spark"), default="local", help="run in this process (local), or on Spark"
    )
    parser.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        help="brokers of Kafka, separated by commas: the topics that the script names are read and written",
    )
    parser.add_argument("--registry", metavar="URL", help="schema registry for the formats AVRO, PROTOBUF and JSON_SR")
    add_settings(parser)
    parser.add_argument(
        "--until-end", action="store_true", help="end where the topics ended at the start, not when it is interrupted"
    )
    parser.add_argument("--checkpoint", help="folder for state and positions: the next run reads only new rows")
    parser.add_argument("--tables", help="folder for state tables, which the other commands query")
    parser.add_argument("--serve", action="store_true", help="serve the tables and a page over HTTP when all is read")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve at (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="port to serve at (8765)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, as of SET")
    add_list(parser, "--parameter", "NAME=VALUE", "the value of $NAME in the script, a STRING")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="write the records to Parquet files, a folder for each output, with --checkpoint each exactly once; by "
        "default they are printed, at least once: those of a batch before it is committed, with its id",
    )
    parser.add_argument("--rows-per-batch", type=int, default=10_000, help="rows of a micro-batch (10000)")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


@command(
    "Run a script of SQL statements over files or Kafka topics, and print the records that it writes.",
    _add_run,
    "averages.sql --input readings=readings.jsonl",
    "averages.sql --input readings=readings.jsonl --checkpoint state --tables tables --serve",
    "averages.sql --input readings=readings.jsonl --checkpoint state --output records",
    "averages.sql --input readings=readings --runtime spark --checkpoint state --tables tables",
    "averages.sql --bootstrap localhost:9092 --checkpoint state",
)
def _run(arguments: argparse.Namespace) -> None:
    """Run a script, print the records that it writes, and serve its tables."""
    from keyed import sql

    text = read_text(Path(arguments.script), "SCRIPT")
    if arguments.checkpoint is not None:
        kind = Place.SPARK_CHECKPOINT if arguments.runtime == "spark" else Place.CHECKPOINT
        check_place(arguments.checkpoint, FREE | {kind}, "--checkpoint", f"a new folder, or {kind.value}")
    if arguments.tables is not None:
        check_tables_folder(arguments.tables, "--tables")
    options: dict[str, Any] = {}
    if arguments.checkpoint is not None:
        options["checkpoint"] = arguments.checkpoint
    with ExitStack() as stack:
        if arguments.tables is not None or arguments.serve:
            options["tables"] = arguments.tables or stack.enter_context(ScratchFolder("tables")).path
        inputs: dict[str, Any] = {**parse_pairs(arguments.input, "--input", "NAME=FILE")}
        kafka = _kafka(arguments)
        if arguments.runtime == "spark":
            streams = arguments.checkpoint is not None or arguments.serve or kafka is not None
            spark, inputs = _frames(inputs, arguments, streams=streams)
            if kafka is not None:
                options["spark"] = spark
            if streams and arguments.checkpoint is None:
                options["checkpoint"] = str(stack.enter_context(ScratchFolder("checkpoint")).path)
        options |= {
            "parameters": parse_pairs(arguments.parameter, "--parameter") or None,
            "properties": {"ksql.persistence.default.format.value": "JSON"} | parse_pairs(arguments.set, "--set"),
            "rows_per_batch": arguments.rows_per_batch,
            "folder": arguments.output,
            "on_records": partial(_print_output, is_json=arguments.json),
        }
        try:
            if kafka is not None and not kafka.bounded:
                _follow(text, inputs, kafka, arguments, options)
                return
            result = sql.script(text, inputs, kafka=kafka, **options)
        except QueryFailed as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.filename is None and cause.errno in _OF_STDOUT:
                raise cause from None
            raise
        _print_answers(result, is_json=arguments.json)
        if arguments.serve and result.run is not None:
            from keyed.tables.server import serve

            with result.run.tables as tables:
                serve(
                    tables,
                    host=arguments.host,
                    port=arguments.port,
                    page=True,
                    ready=lambda address: print(address, flush=True),
                )


def _kafka(arguments: argparse.Namespace) -> sql.Kafka | None:
    """Return the cluster that the command line names.

    Raises:
        DefinitionError: There is none, and options for one.
    """
    from keyed import sql

    settings = settings_of(arguments)
    if arguments.bootstrap is None:
        for option in ("registry", "kafka_setting", "until_end"):
            if getattr(arguments, option):
                raise DefinitionError(f"--{option.replace('_', '-')} is for Kafka topics; give --bootstrap too")
        return None
    return sql.Kafka(arguments.bootstrap, registry=arguments.registry, settings=settings, bounded=arguments.until_end)


def _follow(
    text: str, inputs: Mapping[str, Any], kafka: sql.Kafka, arguments: argparse.Namespace, options: dict[str, Any]
) -> None:
    """Run a script over topics until the command is interrupted, and print records as they come."""
    from keyed import sql

    query = sql.start(text, inputs, kafka=kafka, **options)
    try:
        with ExitStack() as stack:
            if arguments.serve:
                from keyed.tables.server import serving

                tables = stack.enter_context(query.tables)
                server = serving(tables, host=arguments.host, port=arguments.port, page=True)
                print(stack.enter_context(server), flush=True)
            query.await_termination()
    finally:
        query.stop()


def _frames(inputs: Mapping[str, str], arguments: argparse.Namespace, *, streams: bool) -> tuple[Any, dict[str, Any]]:
    """Return a session of Spark, and files, or the files of folders, as DataFrames by the names of their streams.

    Args:
        inputs: The files or folders.
        arguments: The arguments of the command.
        streams: Each is a folder whose files are read once, also by later runs.

    Raises:
        DefinitionError: There are none, they cannot be read, or the command line has options for other runs.
    """
    if arguments.tables is not None and arguments.checkpoint is None:
        raise DefinitionError("--tables: --runtime spark keeps tables of a query with a checkpoint; give --checkpoint")
    if not inputs and arguments.bootstrap is None:
        raise DefinitionError(
            "--runtime spark needs --input NAME=FILE for each stream and table that is read, or --bootstrap"
        )
    suffixes = {
        name: _suffix(f"--input '{name}={place}'", Path(place), streams=streams) for name, place in inputs.items()
    }
    import keyed

    session = keyed.spark_session("keyed")
    frames = {}
    for name, place in inputs.items():
        format_ = {".jsonl": "json"}.get(suffixes[name], suffixes[name][1:])
        options: dict[str, Any] = {"header": True}
        if Path(place).is_dir():
            options["pathGlobFilter"] = f"*{suffixes[name]}"
        frame = session.read.format(format_).options(**options).load(place)
        if streams:
            frame = session.readStream.format(format_).options(**options).schema(frame.schema).load(place)
        frames[name] = frame
    return session, frames


def _suffix(flag: str, place: Path, *, streams: bool) -> str:
    """Return the suffix of a file, or of the files of a folder.

    Raises:
        DefinitionError: It cannot be read.
    """
    if not place.is_dir():
        if streams:
            raise DefinitionError(
                f"{flag}: a streaming query on Spark (--checkpoint, --serve) reads each file of a folder once; give "
                "the folder"
            )
        suffixes = {place.suffix.lower()}
    else:
        suffixes = {each.suffix for each in place.iterdir() if not each.name.startswith((".", "_"))}
    if len(suffixes) != 1 or not suffixes <= _SUFFIXES:
        raise DefinitionError(f"{flag} must be a file of .jsonl, .json, .csv or .parquet, or a folder of files of one")
    return suffixes.pop()


def _print_answers(result: ScriptResult, *, is_json: bool) -> None:
    """Print the answers of statements, and how many records were skipped."""
    for answer in result.answers:
        if is_json:
            print_json({"statement": answer.statement, **row} for row in answer.rows)
        else:
            sys.stdout.write(f"{answer.statement}\n")
            print_rows(answer.rows)
            sys.stdout.write("\n")
    for name, reasons in result.skipped.items():
        for reason, count in reasons.items():
            sys.stderr.write(f"{name}: {count} records skipped: {reason}\n")
    for name, columns in result.missing.items():
        for column, count in columns.items():
            sys.stderr.write(f"{name}: no row has the column {column}, of {count}; it is null\n")


def _print_output(name: str, records: Sequence[OutputRecord], batch: int, *, is_json: bool) -> None:
    """Print the records of a batch, which is committed afterwards."""
    if is_json:
        print_json({"output": name, "batch": batch, **_cells(record)} for record in records)
    else:
        sys.stdout.write(f"{name}, batch {batch}\n")
        rows = [_row(record) for record in records]
        columns = dict.fromkeys(column for row in rows for column in row)
        print_rows({column: row.get(column) for column in columns} for row in rows)
        sys.stdout.write("\n")
    sys.stdout.flush()


def _cells(record: OutputRecord) -> dict[str, Any]:
    cells: dict[str, Any] = {"key": record.key, "value": record.value, "timestamp": record.timestamp}
    return cells if record.window is None else cells | {"window": record.window}


def _row(record: OutputRecord) -> dict[str, Any]:
    """Return a record as a row with a column for each part of its key and value."""
    key, value = record.key, record.value
    shown: dict[str, Any] = dict(key) if isinstance(key, Mapping) else {"key": key}
    if record.window is not None:
        shown |= zip(("window_start", "window_end"), map(shown_time, record.window), strict=True)
    if isinstance(value, Mapping):
        shown |= value
    else:
        shown |= {"deleted": True} if value is None else {"value": value}
    return shown | {"timestamp": shown_time(record.timestamp)}
