"""Limits of requests: pages, sizes, nesting, concurrency; and the isolation of tokens."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import quote
from uuid import UUID

import attrs
import httpx
import psutil
import pyarrow as pa
import pytest

import keyed
from keyed.cli.main import main
from keyed.tables.push_worker import PushRequest
from keyed.tables.server import Access, serving
from keyed.tables.server.access import Refused
from keyed.tables.server.sql_process import WorkerProcesses
from tests.support.data_files import read_data
from tests.support.limits import patient
from tests.support.states import Upserts
from tests.support.tables import followed, read_pages, worker_processes
from tests.support.waiting import until

ALL, SOME = "token-of-all-tables-0001", "token-of-small-only-0002"
SLOW = "select count(*) from range(100000000000) a, range(1000) b"


REQUESTS = read_data("keyed/tables/server/requests.json")


@attrs.frozen
class Row:
    text: str
    number: int | None


class States(keyed.KeyedProcessFunction):
    small = keyed.ValueState(int)
    items = keyed.MapState(int, str)
    seen = keyed.ListState(int)
    pairs = keyed.MapState(tuple[str, int], Row)
    large = keyed.ValueState(str)
    nothing = keyed.MapState(str, int | None)

    def process_element(self, value, ctx):
        _, number = value
        self.small.update(number)
        for item in range(number, number + 30):
            self.items.put(item, f"null {item}")
            self.seen.add(item)
        self.pairs.put(("null", number), Row("null", None))
        self.pairs.put(("x", number), Row("y", 1))
        self.large.update("x" * 1_000_000)
        self.nothing.put("n", None)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bounds")
    with followed(States(), folder) as (harness, tables):
        for number in range(10):
            harness.process(("ann", number * 30))
            tables.poll()
        yield tables


def test_a_query_whose_process_starts_while_the_server_stops_is_refused():
    async def ask() -> None:
        processes: Any = WorkerProcesses("keyed.tables.push_worker", limits=patient(), tokens=1)
        start, workers = processes._start, processes._workers

        async def start_late() -> Any:
            process = await start()
            await processes.close()
            return process

        processes._start = start_late
        with pytest.raises(Refused, match="the server is stopping"):
            await processes.answer(PushRequest("select 1", None, {}, 1_000))
        assert not workers

    asyncio.run(ask())


@contextmanager
def client_of(tables, token=None, **limits):
    access = Access(tokens={ALL: ["*"], SOME: ["small", "missing"]}) if token else None
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with (
        serving(tables, port=0, limits=patient(**limits), access=access, status=lambda: {"secret": 1}) as address,
        httpx.Client(base_url=address, timeout=300, headers=headers) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def ask(tables):
    with client_of(tables) as client:
        yield client


def pages(ask, path: str, name: str, limit: int) -> list[Any]:
    return read_pages([ask], path, name, limit=limit)


def test_what_a_key_holds_comes_in_pages(tables, ask):
    seen = pages(ask, "/tables/seen/keys/ann", "value", 70)
    assert [len(page) for page in seen] == [70, 70, 70, 70, 20]
    assert [item for page in seen for item in page] == tables["seen"].get("ann") == list(range(300))
    items = pages(ask, "/tables/items/keys/ann", "value", 100)
    assert [len(page) for page in items] == [100, 100, 100]
    assert {int(key): value for page in items for key, value in page.items()} == tables["items"].get("ann")
    whole = ask.get("/tables/items/keys/ann").json()
    assert (len(whole["value"]), whole["next"], whole["found"]) == (300, None, True)
    assert ask.get("/tables/items/keys/bob").json()["found"] is False
    assert ask.get("/tables/small/keys/ann?limit=1").status_code == 400


def test_no_answer_is_longer_than_a_page(tables):
    with client_of(tables, page=7) as ask:
        for path, name in (("/tables/seen/keys/ann", "value"), ("/tables/items", "entries")):
            answer = ask.get(path).json()
            assert (len(answer[name]), bool(answer["next"])) == (7, True)
            assert ask.get(path, params={"limit": 8}).status_code == 400
        assert len(ask.get("/tables/small/history/ann").json()["versions"]) == 7


def test_history_comes_in_pages(tables, ask):
    whole = ask.get("/tables/small/history/ann").json()["versions"]
    assert [version["value"] for version in whole] == [number * 30 for number in reversed(range(10))]
    for limit in (1, 3, 10):
        paged = pages(ask, "/tables/small/history/ann", "versions", limit)
        assert [version for page in paged for version in page] == whole
        assert len(paged) == -(-10 // limit)
    assert ask.get("/tables/small/history/ann?after=nonsense").status_code == 400


def test_a_map_may_hold_nothing(ask, tables, capsys):
    answer = ask.get("/tables/nothing/keys/ann", params={"entry": "n"}).json()
    assert (answer["found"], answer["value"]) == (True, None)
    answer = ask.get("/tables/nothing/keys/ann", params={"entry": "m"}).json()
    assert (answer["found"], answer["value"]) == (False, None)
    assert tables["nothing"].query("ann", "n").found
    assert not tables["nothing"].query("ann", "m").found
    assert main(["get", "--json", str(tables.path), "nothing", "ann", "--entry", "n"]) == 0
    assert main(["get", "--json", str(tables.path), "nothing", "ann", "--entry", "m"]) == 1


def test_answers_that_are_too_large_are_refused(tables):
    with client_of(tables, answer=100_000) as ask:
        answers = [
            ask.get("/tables/large/keys/ann"),
            ask.get("/tables/large/history/ann"),
            ask.get("/tables/large"),
            ask.post("/sql", json={"query": "select value from large"}),
        ]
        assert [answer.status_code for answer in answers] == [413] * 4
        assert {answer.json()["error"]["type"] for answer in answers} == {"TooLarge"}
        assert ask.post("/sql", json={"query": "select length(value) as n from large"}).json()["rows"] == [[1_000_000]]


def test_a_scan_that_finds_nothing_ends_in_time(tables):
    """Windows that are not there are looked for in the whole table."""
    with client_of(tables, scan_seconds=0) as ask:
        for path in ("/tables/items?windows=-2/-1", "/tables/items/keys/ann", "/tables/seen"):
            answer = ask.get(path)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "TimeoutError")
    with client_of(tables) as ask:
        assert ask.get("/tables/items?windows=-2/-1").json()["entries"] == []


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


@pytest.mark.slow
def test_a_query_ends_with_its_client(tables):
    with client_of(tables, sql_seconds=1_000) as ask:
        for _ in range(4):
            with pytest.raises(httpx.ReadTimeout):
                ask.post("/sql", json={"query": SLOW}, timeout=0.5)
        assert ask.post("/sql", json={"query": "select 1 as one"}).json()["rows"] == [[1]]
        # That of a query whose client left last may still be ending.
        until(lambda: len(worker_processes()) == 1)
    until(lambda: not worker_processes())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system reports no current memory")
def test_the_memory_of_large_answers_is_returned(tables):
    large = [
        "select repeat('x', 1500) as a from range(10000)",
        "select a, count(*) from (select range % 4000000 as a from range(8000000)) group by 1 limit 10",
        "select list(range) from range(1500000)",
    ]

    def memory() -> int:
        total = 0
        for worker in worker_processes():
            with suppress(psutil.Error):
                total += worker.memory_info().rss
        return total

    with client_of(tables) as ask:
        assert ask.post("/sql", json={"query": "select count(*) from items"}).json()["rows"] == [[300]]
        (worker,) = worker_processes()
        before = memory()
        for query in [*large, *large]:
            assert ask.post("/sql", json={"query": query}).status_code == 200
        until(lambda: memory() < before + (96 << 20))
        assert ask.post("/sql", json={"query": "select 1 as one"}).json()["rows"] == [[1]]
        # One that could not return its memory has ended.
        until(partial(is_gone, worker.pid))


def test_a_process_that_was_killed_is_replaced(tables):
    with client_of(tables) as ask:
        for _ in range(2):
            assert ask.post("/sql", json={"query": "select 1 as one"}).json()["rows"] == [[1]]
            # That of a query of an earlier server may still be ending.
            until(lambda: len(worker_processes()) == 1)
            (worker,) = worker_processes()
            worker.kill()
            until(partial(is_gone, worker.pid))


@pytest.mark.parametrize(
    "path",
    [
        f"/tables/pairs/keys/ann?entry={'[' * 10_000}",
        f"/tables/pairs/keys/ann?entry={'[' * 100}{']' * 100}",
        f"/tables/small/keys/ann?namespace={'[' * 10_000}",
        f"/tables/small/keys/ann?namespace={'[' * 500}1{']' * 500}",
        f"/tables/pairs/history/ann?entry={'[' * 3_000}1{']' * 3_000}",
        "/tables/small?as_of=0001-01-01T00:00:00%2B23:59",
        "/tables/items/keys/ann?entry=" + "9" * 5_000,
        "/tables/items/keys/ann?entry=1e400",
    ],
)
def test_parameters_that_are_no_values_are_refused(ask, path):
    answer = ask.get(path)
    assert (answer.status_code, "type" in answer.json()["error"]) in ((400, True), (410, True)), answer.text


@pytest.mark.parametrize(
    "body",
    [
        b'{"query": "select 1", "parameters": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"query": "select ?", "parameters": [' + b"[" * 200 + b"]" * 200 + b"]}",
        b'{"query": "select ' + b"(" * 20_000 + b"1" + b")" * 20_000 + b'"}',
        b'{"query": "select 1", "as_of": "2026-01-01T00:00:00"}',
        b'{"query": "select 1", "as_of": "nonsense"}',
        b'{"query": "select 1", "as_of": 99999999999999999999999}',
        b'{"query": "\\ud800"}',
        b'{"query": "\\u0000"}',
        b"\xff",
        b"[" * 60_000,
        b"",
        b"null",
    ],
)
def test_bodies_that_are_no_queries_are_refused(ask, body):
    answer = ask.post("/sql", content=body)
    assert (answer.status_code, "type" in answer.json()["error"]) == (400, True), answer.text
    assert ask.post("/session", content=body).status_code == 400


def test_history_that_is_gone_is_a_410_in_sql_too(ask):
    answer = ask.post("/sql", json={"query": "select 1", "as_of": -1})
    assert (answer.status_code, answer.json()["error"]["type"]) == (410, "HistoryCompacted")


class Keys(keyed.KeyedProcessFunction):
    count = keyed.MapState(object, int)

    def process_element(self, value, ctx):
        self.count.put(value, 1)


KEYS = [
    *(("null", 1), ("a", "null"), (1.5, b"1234"), ("x", ("y", 2))),
    *(7, -1.5, float("inf"), float("nan"), True, b"1234", b"\xff", Decimal("1.50"), "null", "[1]", '"a"'),
    *(UUID(int=5), dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), dt.timedelta(hours=5)),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_a_key_goes_back_in_as_it_came_out(tmp_path, capsys, key):
    """Over HTTP and on the command line, keys and keys of maps."""
    with followed(Keys(), tmp_path, key=lambda value: value) as (harness, tables):
        harness.process(key)
        tables.poll()
        with client_of(tables) as ask:
            entry = ask.get("/tables/count").json()["entries"][0]
            assert entry["key"] == entry["entry"]
            assert not isinstance(key, tuple) or isinstance(entry["key"], list)
            text = entry["key"] if isinstance(entry["key"], str) else json.dumps(entry["key"])
            answer = ask.get("/tables/count/keys/" + quote(text, safe="")).json()
            assert answer["key"] == entry["key"]
            if isinstance(key, tuple):
                assert answer["value"] == [[entry["key"], 1]]
            else:
                assert answer["value"] == {text: 1}
            one = ask.get("/tables/count/keys/" + quote(text, safe=""), params={"entry": text}).json()
            assert (one["found"], one["value"]) == (True, 1)
        capsys.readouterr()
        assert main(["get", "--json", str(tables.path), "count", "--", text]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == answer["value"]


class Dated(keyed.KeyedProcessFunction):
    dated = keyed.MapState(tuple[str, dt.date | None], int)

    def process_element(self, value, ctx):
        for number, day in enumerate((None, dt.date(2026, 1, 2))):
            self.dated.put(("a", day), number)


#: The type of a further key column, and values of it; the first entry has none.
COLUMNS: list[tuple[str, Any, list[Any]]] = [
    ("string", pa.string(), ["null", "7", "x", "[1]", ""]),
    ("bigint", pa.int64(), [7, -1]),
    ("boolean", pa.bool_(), [True]),
    ("double", pa.float64(), [1.5, float("inf"), float("nan")]),
    ("decimal(9,2)", pa.decimal128(9, 2), [Decimal("1.50")]),
    ("binary", pa.binary(), [b"1234", b"\xff"]),
    ("date", pa.date32(), [dt.date(2026, 1, 2)]),
    ("timestamp", pa.timestamp("us", "UTC"), [dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)]),
]


def check_entries(tables, capsys, table: str, key: str, expected: int) -> None:
    """Check that each entry of a key is found by its text, over HTTP and on the command line."""
    with client_of(tables) as ask:
        answer = ask.get(f"/tables/{table}/keys/{key}").json()["value"]
        assert len(answer) == expected
        listed = [[each["entry"], each["value"]] for each in ask.get(f"/tables/{table}").json()["entries"]]
        assert listed == answer
        for entry, value in answer:
            given = {"entry": json.dumps(entry)}
            one = ask.get(f"/tables/{table}/keys/{key}", params=given).json()
            assert (one.get("found"), one.get("value")) == (True, value)
            history = ask.get(f"/tables/{table}/history/{key}", params=given).json()
            assert [each["value"] for each in history["versions"]] == [value]
    capsys.readouterr()
    folder = str(tables.path)
    assert main(["get", "--json", folder, table, key]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == answer
    entry, value = answer[-1]
    assert main(["get", "--json", "--entry", json.dumps(entry), folder, table, key]) == 0
    assert json.loads(capsys.readouterr().out)["value"] == value


@pytest.mark.parametrize(("declared", "type_", "values"), COLUMNS, ids=[name for name, _, _ in COLUMNS])
def test_rows_of_a_table_state_go_back_in_as_they_came_out(tmp_path, capsys, declared, type_, values):
    """Also where a part of the key is missing, or is the text "null"."""
    function = Upserts(f"user string, part {declared}, floor bigint, n bigint", ("user", "part", "floor"))
    found = [{"user": "null", "part": part, "floor": floor, "n": 1} for part in (None, *values) for floor in (None, 7)]
    schema = pa.schema([("user", pa.string()), ("part", type_), ("floor", pa.int64()), ("n", pa.int64())])
    with followed(function, tmp_path, key="user") as (harness, tables):
        harness.process_batch(pa.Table.from_pylist(found, schema))
        tables.poll()
        check_entries(tables, capsys, "rows", "null", len(found))


def test_the_only_further_key_column_is_text_as_it_is(tmp_path):
    with followed(Upserts("user string, part string, n bigint", ("user", "part")), tmp_path, key="user") as (
        harness,
        tables,
    ):
        harness.process_batch(pa.table({"user": ["u"] * 2, "part": [None, "7"], "n": [1, 2]}))
        tables.poll()
        with client_of(tables) as ask:
            for given, n in (("7", 2), ('["7"]', 2), ("null", 1), ("[null]", 1)):
                assert ask.get("/tables/rows/keys/u", params={"entry": given}).json()["value"] == {"n": n}


def test_map_keys_whose_first_has_a_null_part_go_back_in_as_they_came_out(tmp_path, capsys):
    with followed(Dated(), tmp_path, key=lambda value: value) as (harness, tables):
        harness.process("k")
        tables.poll()
        check_entries(tables, capsys, "dated", "k", 2)


def test_a_token_sees_nothing_of_other_tables(tables):
    hidden = ("items", "seen", "pairs", "large", "nothing", "secret", '"hash"', '"entries": ')
    with client_of(tables, SOME) as ask:
        texts = [ask.get(path).text for path in REQUESTS["paths of a token"]]
        texts.append(ask.post("/sql", json={"query": "select * from small"}).text)
        texts.append(ask.post("/sql", json={"query": "select * from item"}).text)
        texts.append(ask.post("/sql", json={"query": "from duckdb_views() select view_name"}).text)
        with ask.stream("GET", "/batches") as stream:
            texts.append(next(line for line in stream.iter_lines() if line.startswith("data")))
        position = ask.get("/status").json()["positions"]["function"]
        assert {*position} == {"operator", "batch", "watermark", "processing_time", "log_id"}
        assert ask.get("/metrics").status_code == 403
        assert ask.get("/tables/missing").status_code == 404
        assert ask.get("/tables/items").status_code == ask.get("/tables/nosuch").status_code == 403
    for text in texts:
        for word in hidden:
            assert word not in text.replace("'items'", "").replace('"item', ""), text
    with client_of(tables, ALL) as ask:
        assert ask.get("/status").json()["job"] == {"secret": 1}
        assert ask.get("/metrics").status_code == 200


GREEDY = """
    import resource
    from keyed.tables.sql_worker import bound_memory
    # As on macOS, which does not enforce it.
    resource.setrlimit = lambda *_: None
    bound_memory(400)
    held = [b"x" * (1 << 20) for _ in range(100)]
    print("enough", flush=True)
    while True:
        held.append(b"y" * (1 << 20))
        assert len(held) < 4_000
"""


@pytest.mark.slow
def test_memory_is_bounded_where_the_system_does_not_do_it():
    ended = subprocess.run([sys.executable, "-c", dedent(GREEDY)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "enough\n", "")


@pytest.mark.slow
def test_a_query_ends_where_its_server_is_gone(tables):
    program = [sys.executable, "-m", "keyed.tables.sql_worker", str(tables.path), "1000", "-4.9"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        asked = {"query": SLOW, "parameters": None, "names": None, "as_of": None, "rows": 1, "bytes": 1_000}
        worker.stdin.write(json.dumps(asked) + "\n")
        worker.stdin.flush()
        assert worker.wait() == -signal.SIGALRM
