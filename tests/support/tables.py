"""State tables that follow the changelog of a harness, and servers over tables."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow as pa
import pytest
import uvicorn

import keyed
from keyed.job.functions import Function
from keyed.tables import Change, StateTables, open_tables
from keyed.tables.server.app import make_app
from keyed.testing import KeyedTestHarness
from tests.support.limits import patient


def rows_with_dicts(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table with maps as dicts; pyarrow converts maps itself from version 19 on."""
    maps = [field.name for field in table.schema if pa.types.is_map(field.type)]
    return [row | {name: dict(row[name]) for name in maps if row[name] is not None} for row in table.to_pylist()]


@contextmanager
def poll_tables(changelogs: Any, folder: Path | str, **options: Any) -> Iterator[StateTables]:
    """Yield tables that have followed their changelogs to the end once."""
    with open_tables(changelogs, folder, **options) as tables:
        tables.poll()
        yield tables


def write_tables(changelogs: Any, folder: Path | str, **options: Any) -> None:
    """Follow changelogs to the end once, and close the tables."""
    with poll_tables(changelogs, folder, **options):
        pass


@contextmanager
def followed(
    function: Function, folder: Path, *, opened: dict[str, Any] | None = None, **options: Any
) -> Iterator[tuple[KeyedTestHarness, StateTables]]:
    """Yield a harness, whose elements begin with their key, and tables of its changelog, both over a folder.

    Args:
        function: The function.
        folder: The folder of the tables, and of the changelog ``log`` if none is given.
        opened: Options of the tables.
        options: Options of the harness.
    """
    changelog = options.pop("changelog", None) or keyed.DirectoryChangelog(folder / "log")
    with (
        KeyedTestHarness(function, **{"key": itemgetter(0), **options}, changelog=changelog) as harness,
        open_tables(changelog, folder / "tables", **(opened or {})) as tables,
    ):
        yield harness, tables


@contextmanager
def served(tables: StateTables, **options: Any) -> Iterator[str]:
    """Yield the address of a server over tables."""
    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(tables, **{"limits": patient(), **options})
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(300)
        listening.close()


@contextmanager
def client_of(tables: StateTables, headers: dict[str, str] | None = None, **options: Any) -> Iterator[httpx.Client]:
    """Yield a client of a server over tables."""
    with served(tables, **options) as address, httpx.Client(base_url=address, timeout=300, headers=headers) as client:
        yield client


def read_events(lines: Iterable[str]) -> Iterator[tuple[str | None, str | None, Any]]:
    """Yield id, name and data of each server-sent event; one with an id alone has no name."""
    event: dict[str, str] = {}
    for line in lines:
        if not line and event.keys() & {"id", "event"}:
            yield event.get("id"), event.get("event"), json.loads(event.get("data", "null"))
            event = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def read_pages(clients: Sequence[httpx.Client], path: str, name: str, **query: Any) -> list[list[Any]]:
    """Return the pages of an answer, each of which the next client asks for."""
    pages: list[list[Any]] = []
    after: dict[str, str] = {}
    for client in cycle(clients):
        answer = client.get(path, params=query | after).json()
        pages.append(answer[name])
        if answer["next"] is None:
            break
        after = {"after": answer["next"]}
    return pages


def apply_changes(copy: dict[Any, Any], changes: list[Change]) -> None:
    """Apply changes, and check that none is missing and none comes twice."""
    for change in changes:
        place = (change.key, change.entry)
        if change.kind == "snapshot":
            assert place not in copy
        else:
            assert copy.get(place) == change.old
            assert change.old != change.new
        copy.pop(place, None)
        if not change.removed:
            copy[place] = change.new


def worker_processes(module: str = "keyed.tables.sql_worker") -> list[psutil.Process]:
    """Return the children of this process that run a module and are alive."""
    workers = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if module in child.cmdline():
                workers.append(child)
    return workers


def entries_read(tables: StateTables, patch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the entries that scans of the only operator of tables read from now on."""
    (operator,) = tables._operators.values()
    store, read = operator.source.pinned.store, list[Any]()
    scan = store.scan

    def counted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for entry in scan(*arguments, **options):
            read.append(entry)
            yield entry

    patch.setattr(store, "scan", counted)
    return read
