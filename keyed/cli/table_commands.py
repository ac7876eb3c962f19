"""The commands that read state tables, from ``tables`` and ``get`` to ``replicate`` and ``serve``."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from stat import S_IROTH, S_IWGRP, S_IWOTH, filemode
from typing import Any

import attrs

import keyed
from keyed.base.arguments import clock_text
from keyed.base.background import keep_little_free_memory
from keyed.base.scratch import ScratchFolder
from keyed.cli.command import (
    CHANGELOG,
    CHANGELOGS,
    Command,
    Place,
    add_groups,
    add_settings,
    changelog_of,
    check_place,
    check_reader,
    check_tables_folder,
    command,
    namespace_text,
    print_json,
    print_rows,
    read_text,
    settings_of,
    topic_of,
)
from keyed.destinations.sink import Sink
from keyed.errors import DefinitionError, GroupUnavailable
from keyed.formats.declared_formats import Avro, Json
from keyed.metrics import Prometheus, export
from keyed.tables import StateTable, StateTables, open_tables, read_tables
from keyed.tables.entries import Entry
from keyed.tables.follower import shown_groups
from keyed.tables.json_values import batch_or_time, bounds_of, entry_of, key_of, namespace_of, window_row
from keyed.tables.state_table import NOT_GIVEN, Version
from keyed.topics import UpsertTopic

#: A query that follows a table.
_PUSH = re.compile(r"\bEMIT\s+CHANGES\b", re.IGNORECASE)


def _add_source(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all these commands share."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help=f"a changelog ({CHANGELOG}), or the folder of tables that another program writes",
    )
    parser.add_argument(
        "--tables", help="folder for the tables of a changelog, reused by the next command (default: a temporary one)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")
    add_settings(parser)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="name of the table")
    parser.add_argument(
        "key", metavar="KEY", help="the key: text, or JSON if keys are not text; null in broadcast states"
    )
    parser.add_argument(
        "--entry", help="the entry: the map key, the start of a window, or the other key columns of a table as JSON"
    )
    parser.add_argument("--namespace", help="the namespace beside the key, such as a window: JSON or text")


def _add_as_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--as-of", help="a past state: id of a batch, or a time such as 2026-01-31T12:00:00Z")


def _command(
    help: str, add: Callable[[argparse.ArgumentParser], None] | None, *examples: str
) -> Callable[[Callable[[argparse.Namespace], int | None]], Command]:
    """Make a function a command on tables, with the arguments that all these commands share."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        _add_source(parser)
        if add is not None:
            add(parser)

    return command(help, add_arguments, *examples)


@contextmanager
def _open(
    arguments: argparse.Namespace, *, poll: bool = True, groups: list[int] | None = None
) -> Iterator[StateTables]:
    """Open the tables that the command line names.

    Args:
        arguments: The command line.
        poll: True to apply the commits of the changelog first.
        groups: The key groups to follow; all if ``None``.
    """
    expected = f"a changelog ({CHANGELOG}) or a folder of tables"
    place = check_place(arguments.source, CHANGELOGS | {Place.TABLES}, "SOURCE", expected)
    if arguments.tables is not None:
        check_tables_folder(arguments.tables, "--tables")
    if place is Place.TABLES:
        if groups is not None:
            raise DefinitionError(
                f"--groups: SOURCE {arguments.source!r} is a folder of tables, which has the key groups that its "
                "program follows; give the changelog"
            )
        with read_tables(arguments.source) as tables:
            yield tables
        return
    changelog = changelog_of(arguments.source, arguments)
    with ExitStack() as stack:
        folder = arguments.tables or stack.enter_context(ScratchFolder("tables")).path
        tables = stack.enter_context(open_tables(changelog, folder, groups=groups))
        if poll:
            tables.poll()
        yield tables


def _place(table: StateTable, arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return the key, entry and namespace that the command line names."""
    first = table.first()
    if first is None and table.groups is not None:
        raise GroupUnavailable(
            f"KEY {arguments.key!r}: these tables have key groups {shown_groups(table.groups)}, and no entry there "
            "that shows the type of the keys; ask tables that have its key group"
        )
    key = key_of(arguments.key, first and first.key, "KEY")
    entry: Any = NOT_GIVEN
    if arguments.entry is not None:
        entry = entry_of(arguments.entry, first and first.entry, table.schema, "--entry")
    # This key may have namespaces besides the state itself, whose namespace is none.
    named = arguments.namespace is not None
    example = (
        next((place.namespace for place in table.scan(key=key) if place.namespace is not None), None) if named else None
    )
    return key, entry, namespace_of(arguments.namespace, example, "--namespace")


def _print(arguments: argparse.Namespace, rows: Iterable[dict[str, Any]]) -> None:
    """Print rows as JSON, one object per line, or as a table with aligned columns."""
    (print_json if arguments.json else print_rows)(rows)


@_command("List the tables of a job: kinds, types, entries.", None, "job-log")
def _tables(arguments: argparse.Namespace) -> None:
    with _open(arguments) as tables:
        rows = (
            {
                "table": name,
                "operator": table.operator,
                "kind": table.schema.kind,
                "types": table.types,
                "entries": len(table),
                "batch": tables.batch,
            }
            | ({} if table.groups is None else {"groups": shown_groups(table.groups)})
            for name, table in tables.share.items()
        )
        _print(arguments, rows)


def _add_get(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    _add_as_of(parser)


@_command(
    "Print the entries of a key. The status is 1 if there are none.",
    _add_get,
    "job-log sold 'Die Hard'",
    "job-log sold 'Die Hard' --as-of 2026-01-31T12:00:00Z",
    "job-log hourly 'Die Hard' --entry 2026-01-31T12:00:00Z",
)
def _get(arguments: argparse.Namespace) -> int:
    with _open(arguments) as tables:
        table = tables.share[arguments.table]
        key, entry, namespace = _place(table, arguments)
        as_of = batch_or_time(arguments.as_of, "--as-of")
        if entry is NOT_GIVEN and table.schema.kind == "window":
            rows = list(map(_row_maker(table, is_json=arguments.json), table.scan(key=key, as_of=as_of)))
            _print(arguments, rows)
            return int(not rows)
        answer = table.query(key, entry, namespace=namespace, as_of=as_of)
        _print(arguments, [{"key": key, "value": answer.value, "batch": answer.position.batch}])
    # Like grep: no result is not a success.
    return int(not answer.found)


def _add_scan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="name of the table")
    parser.add_argument("--key", help="only this key")
    parser.add_argument("--windows", help="windows that start from ... to before ...: FROM/TO, milliseconds or times")
    parser.add_argument("--prefix", help="prefix of the keys")
    parser.add_argument("--from", help="the first key")
    parser.add_argument("--to", help="the key before which the range ends")
    parser.add_argument("--limit", type=int, default=100, help="maximal number of entries (100)")
    _add_as_of(parser)


@_command("Print the entries of a range of keys.", _add_scan, "job-log sold --prefix D --limit 10")
def _scan(arguments: argparse.Namespace) -> None:
    with _open(arguments) as tables:
        table = tables[arguments.table]
        first = table.first()
        bounds = bounds_of(vars(arguments), first and first.key, "--")
        scan = table.scan(**bounds, limit=arguments.limit, as_of=batch_or_time(arguments.as_of, "--as-of"))
        _print(arguments, map(_row_maker(table, is_json=arguments.json), scan))


def _row_maker(table: StateTable, *, is_json: bool) -> Callable[[Entry], dict[str, Any]]:
    """Return a function that converts an entry to a row: a window has its own columns, and times are readable."""
    schema, names = table.schema, table.key_columns

    def row(entry: Entry) -> dict[str, Any]:
        if schema.kind != "window":
            cells = attrs.asdict(entry, recurse=False)
            if is_json:
                return cells
            expires = None if entry.expires is None else clock_text(entry.expires)
            return cells | {"namespace": namespace_text(entry.namespace), "expires": expires}
        keys = entry.key if isinstance(entry.key, tuple) and len(names) > 1 else (entry.key,)
        return dict(zip(names or ("key",), keys, strict=True)) | window_row(schema, entry)

    return row


@_command("Print the versions of an entry.", _add_place, "job-log sold 'Die Hard'")
def _history(arguments: argparse.Namespace) -> None:
    with _open(arguments) as tables:
        table = tables.share[arguments.table]
        key, entry, namespace = _place(table, arguments)
        versions = table.history(key, entry, namespace=namespace)
        _print(arguments, (_version(version, arguments.json) for version in versions))


def _version(version: Version, is_json: bool) -> dict[str, Any]:
    """Return a version as a row; its clocks are text unless the output is JSON."""
    row = attrs.asdict(version, recurse=False)
    if not is_json:
        row |= {name: clock_text(row[name]) for name in ("processing_time", "watermark")}
    return row


def _add_sql(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "query", metavar="QUERY", help="a SELECT, in DuckDB's dialect; or one of scripts, with EMIT CHANGES"
    )
    parser.add_argument("--after", help="with EMIT CHANGES: now, beginning, or the token of a row: resume after it")
    _add_as_of(parser)


@_command(
    "Run a SELECT over the tables.",
    _add_sql,
    "job-log 'select key, value from sold order by value desc limit 3'",
    "job-log 'select key, value from sold where value > 3 emit changes'",
)
def _sql(arguments: argparse.Namespace) -> None:
    if _PUSH.search(arguments.query):
        _push(arguments)
        return
    if arguments.after is not None:
        raise DefinitionError(f"--after {arguments.after!r} is for queries that end with EMIT CHANGES")
    with _open(arguments) as tables, tables.snapshot(batch_or_time(arguments.as_of, "--as-of")) as snapshot:
        result = snapshot.sql(arguments.query)
        # Two columns of a join may have the same name.
        names: list[str] = []
        for name in result.column_names:
            free = (name, *(f"{name}_{number}" for number in range(1, result.num_columns)))
            names.append(next(new for new in free if new not in names))
        _print(arguments, result.rename_columns(names).to_pylist())


def _push(arguments: argparse.Namespace) -> None:
    """Print the rows of a push query until interrupted, or up to its limit."""
    from keyed.sql import subscribe

    if arguments.as_of is not None:
        raise DefinitionError(
            f"--as-of {arguments.as_of!r}: a query that ends with EMIT CHANGES begins now, or --after"
        )
    with _open(arguments) as tables:
        subscription = subscribe(tables, arguments.query, after=arguments.after)
        with suppress(KeyboardInterrupt):
            while not subscription.is_done:
                _print_changes(subscription.take(1.0))


def _add_tail(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="name of the table")
    parser.add_argument("--prefix", help="only keys that begin with this")
    parser.add_argument("--after", help="now, beginning, or the token of a change: resume after it")
    parser.add_argument("--limit", type=int, help="end after this many changes")


@_command("Print a table, and then each change of it, as JSON.", _add_tail, "job-log sold --after now")
def _tail(arguments: argparse.Namespace) -> None:
    """Print changes until interrupted, or up to the limit."""
    with _open(arguments) as tables:
        subscription = tables[arguments.table].subscribe(prefix=arguments.prefix, after=arguments.after)
        left = arguments.limit
        with suppress(KeyboardInterrupt):
            while left is None or left > 0:
                changes = subscription.take(1.0)[:left]
                _print_changes(changes)
                left = None if left is None else left - len(changes)


def _print_changes(changes: Sequence[Any]) -> None:
    """Print the next changes of a table or query as JSON, or notice that nobody reads them any more."""
    print_json(attrs.asdict(change, recurse=False) for change in changes)
    sys.stdout.flush()
    check_reader()


def _add_replicate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="name of the table")
    parser.add_argument("--to-topic", help="compacted topic, kafka://HOST:PORT/TOPIC; created if missing")
    parser.add_argument("--to-delta", metavar="PATH", help="Delta table; created if missing")
    parser.add_argument("--format", choices=("json", "avro"), help="format of keys and values (json)")
    parser.add_argument("--registry", metavar="URL", help="schema registry, for avro")
    parser.add_argument("--namespaces", action="store_true", help="add the namespace to the key")
    parser.add_argument("--partitions", type=int, help="partitions of a new topic (1)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two polls of the changelog (1)")
    parser.add_argument("--once", action="store_true", help="end when the copy has the newest batch")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="port of this machine for Prometheus")
    parser.add_argument("--metrics-file", metavar="PATH", help="file for the node exporter, which ends in .prom")


@_command(
    "Copy a table, and each change of it, to a Kafka topic or a Delta table.",
    _add_replicate,
    "job-log sold --tables job-tables --to-topic kafka://localhost:9092/sold",
    "job-log sold --tables job-tables --to-delta lake/sold --once",
)
def _replicate(arguments: argparse.Namespace) -> None:
    """Copy a table until interrupted, or once."""
    settings = settings_of(arguments)
    if (arguments.to_topic is None) == (arguments.to_delta is None):
        raise DefinitionError("give --to-topic kafka://HOST:PORT/TOPIC or --to-delta PATH")
    for option in ("format", "registry", "partitions", "namespaces"):
        if arguments.to_delta is not None and getattr(arguments, option):
            raise DefinitionError(f"--{option} is for --to-topic")
    topic = None if arguments.to_topic is None else _upsert_topic(arguments, settings)
    port, file = arguments.metrics_port, arguments.metrics_file
    metrics = None if port is None and file is None else Prometheus(port, file=file)
    with _open(arguments) as tables:
        tables.start(every=arguments.every)
        table = tables[arguments.table]
        to: Sink = topic or keyed.delta_sink(arguments.to_delta, mode="upsert", key=table.row_key)
        with table.replicate(to) as replication, nullcontext() if metrics is None else export(replication, metrics):
            print(f"replicating {replication.table} to {arguments.to_topic or arguments.to_delta}", flush=True)
            with suppress(KeyboardInterrupt):
                if arguments.once:
                    replication.wait_for(tables.batch, math.inf)
                else:
                    replication.join()
        print(f"batch {replication.batch}, {replication.rows} rows written, {replication.tombstones} removed")


def _upsert_topic(arguments: argparse.Namespace, settings: dict[str, str]) -> UpsertTopic:
    """Return the topic that the command line names."""
    bootstrap, topic = topic_of(arguments.to_topic, "--to-topic")
    if arguments.format == "avro":
        if arguments.registry is None:
            raise DefinitionError("--format avro: give --registry URL, where the schemas are registered")
        format_: Any = Avro(registry=arguments.registry)
    elif arguments.registry is not None:
        raise DefinitionError("--registry is for --format avro")
    else:
        format_ = Json()
    return UpsertTopic(
        topic,
        bootstrap=bootstrap,
        key=format_,
        value=format_,
        namespaces=arguments.namespaces,
        partitions=arguments.partitions or 1,
        settings=settings,
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="port (8765)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two polls of the changelog (1)")
    parser.add_argument(
        "--token-file", help="file with lines TOKEN TABLE [TABLE ...], or TOKEN * (mode 0600); needed off loopback"
    )
    parser.add_argument(
        "--page",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="also serve a page over all tables, or the page in your own folder",
    )
    add_groups(parser)
    parser.add_argument(
        "--peers", metavar="URL,URL", help="servers of the other key groups, which are asked for keys of these"
    )
    parser.add_argument("--peer-token-file", help="file with a token that the peers accept for all tables (mode 0600)")
    parser.add_argument("--host-name", action="append", default=[], help="a name that clients have for this machine")


@_command("Serve the tables over HTTP.", _add_serve, "job-log --tables job-tables --port 8765")
def _serve(arguments: argparse.Namespace) -> None:
    from keyed.tables.server import Access, Peers, serve

    keep_little_free_memory()
    tokens = {} if arguments.token_file is None else _tokens(Path(arguments.token_file))
    peers = None
    if arguments.peers is not None:
        path = arguments.peer_token_file
        peers = Peers(arguments.peers.split(","), token=None if path is None else _peer_token(Path(path)))
    elif arguments.peer_token_file is not None:
        raise DefinitionError("--peer-token-file is for the servers of --peers: give them too")
    hosts = (*Access().hosts, *arguments.host_name)
    with _open(arguments, poll=False, groups=arguments.groups) as tables:
        # It answers /health while the first poll applies the commits of the changelog.
        tables.start(every=arguments.every, wait=False)
        serve(
            tables,
            host=arguments.host,
            port=arguments.port,
            access=Access(tokens, hosts),
            peers=peers,
            page=Path(arguments.page) if arguments.page else arguments.page is not None,
            ready=lambda address: print(address if arguments.page is not None else f"{address}/tables", flush=True),
        )


def _tokens(path: Path) -> dict[str, list[str]]:
    """Read tokens from a file with one per line: the token, and then its tables or ``*``."""
    tokens: dict[str, list[str]] = {}
    for number, (token, *tables) in _private_lines(path, "--token-file").items():
        where = f"--token-file {str(path)!r}, line {number}"
        if not tables:
            raise DefinitionError(f"{where}: give TOKEN TABLE [TABLE ...], or TOKEN *")
        if token in tokens:
            raise DefinitionError(f"{where}: the token has a line already; give all of its tables in one line")
        tokens[token] = tables
    if not tokens:
        # Without tokens every client would have all rights.
        raise DefinitionError(
            f"--token-file {str(path)!r} has no tokens; give lines TOKEN TABLE [TABLE ...], or TOKEN *"
        )
    return tokens


def _peer_token(path: Path) -> str:
    """Read the token of the peers, the first word of the only line of a file."""
    tokens = [words[0] for words in _private_lines(path, "--peer-token-file").values()]
    if len(tokens) != 1:
        raise DefinitionError(
            f"--peer-token-file {str(path)!r} has {len(tokens)} tokens; give one, which all peers have"
        )
    return tokens[0]


def _private_lines(path: Path, option: str) -> dict[int, list[str]]:
    """Return the words of a file with tokens, by the number of their line, without comments.

    Raises:
        DefinitionError: Others can read or change it, or it cannot be read.
    """
    text, mode = read_text(path, option), path.stat().st_mode
    if mode & (S_IROTH | S_IWOTH | S_IWGRP):
        raise DefinitionError(
            f"{option} {str(path)!r} has mode {filemode(mode)}: others can read or change the tokens; "
            f"chmod o=,g-w {path}"
        )
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return {number: line.split() for number, line in lines if line and not line.startswith("#")}
