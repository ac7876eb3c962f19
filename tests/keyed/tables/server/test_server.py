"""The HTTP interface, asked over a real socket, while the job goes on."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import Route

import keyed
from keyed import windows as w
from keyed.base import background
from keyed.tables import open_tables
from keyed.tables.server import Access, event_stream, serve, serving
from keyed.tables.server.app import make_app
from keyed.tables.server.event_stream import BatchEvents, ChangeEvents
from keyed.testing import KeyedTestHarness
from tests.support.data_files import read_data
from tests.support.limits import patient
from tests.support.tables import client_of, followed, poll_tables, read_events, read_pages, served, worker_processes
from tests.support.waiting import until

REQUESTS = read_data("keyed/tables/server/requests.json")
TOKEN, OTHER = "token-of-all-tables-0001", "token-of-count-only-0002"


class Orders(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int)
    items = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        _, item, number = value
        self.count.update((self.count.value() or 0) + number)
        self.items.put(item, number)
        self.count.namespace((0, 10)).update(number)
        ctx.timer_service().set_timer("due", 1_000 + number)

    def on_timer(self, timestamp, ctx):
        return ()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    with followed(Orders(), folder, parallelism=2) as (harness, tables):
        for number, key in enumerate(["ann", "bob/../x", "<script>", "ü", "a b"]):
            harness.process((key, "book", number))
        tables.poll()
        tables.start(every=0.02)
        yield harness, tables


@pytest.fixture(scope="module")
def ask(job):
    with client_of(job[1]) as client:
        yield client


def test_tables_are_listed_with_their_types(ask):
    answer = ask.get("/tables").json()
    assert {table["name"]: (table["kind"], table["types"]) for table in answer["tables"]} == {
        "count": ("value", "int"),
        "items": ("map", "str -> int"),
    }
    assert ask.get("/health").json() == {"status": "following"}


def test_the_openapi_document_describes_each_route(job, ask):
    described = {
        (path, method.upper()) for path, each in ask.get("/openapi.json").json()["paths"].items() for method in each
    }
    routes = [route for route in make_app(job[1]).routes if isinstance(route, Route)]
    answered = {(route.path.replace(":path", ""), *((route.methods or set()) - {"HEAD"})) for route in routes}
    assert described == answered


def test_a_key_is_found_whatever_characters_it_has(ask):
    for number, key in enumerate(["ann", "bob/../x", "<script>", "ü", "a b"]):
        answer = ask.get("/tables/count/keys/" + httpx.QueryParams({"": key}).__str__()[1:].replace("+", "%20")).json()
        assert (answer["key"], answer["value"]) == (key, number)
        assert answer["position"]["operator"] == "function"
    assert ask.get("/tables/items/keys/ann").json()["value"] == {"book": 0}
    assert ask.get("/tables/items/keys/ann", params={"entry": "book"}).json()["value"] == 0
    assert ask.get("/tables/count/keys/ann", params={"namespace": "[0, 10]"}).json()["value"] == 0
    nobody = ask.get("/tables/count/keys/nobody").json()
    assert (nobody["found"], nobody["value"]) == (False, None)
    assert ask.get("/tables/count/keys/ann").json()["found"] is True
    assert ask.get("/tables/count/history/ann").json()["versions"][-1]["value"] == 0


def test_windows_are_rows_with_times(tmp_path):
    rows = [{"k": "ann", "t": time, "n": time} for time in range(0, 9000, 1000)]
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=9000)).key_by("k")
    output = stream.window(w.TumblingEventTimeWindows.of(5000)).aggregate(
        {"n": w.Count(), "mean": w.Mean("n")}, name="x"
    )
    start, middle, end = (f"1970-01-01T00:00:{second}Z" for second in ("00", "05", "10"))
    first, second = {"n": 5, "mean": 2000.0}, {"n": 4, "mean": 6500.0}
    with output.run(tables=tmp_path / "tables", drain=False).tables as tables, client_of(tables) as client:
        (table,) = client.get("/tables").json()["tables"]
        assert (table["name"], table["kind"], table["key_columns"], table["entry"]) == (
            "x", "window", ["k"], ["window_start", "window_end"]
        )  # fmt: skip
        entries = client.get("/tables/x", params={"windows": f"{middle}/{end}"}).json()["entries"]
        assert entries == [{"key": "ann", "namespace": None, "entry": [middle, end], "value": second, "expires": None}]
        value = client.get("/tables/x/keys/ann").json()["value"]
        bounds = [{"window_start": start, "window_end": middle}, {"window_start": middle, "window_end": end}]
        assert value == [bounds[0] | first, bounds[1] | second]
        for entry in (middle, "5000", f'["{middle}", "{end}"]', "[5000, 10000]"):
            assert client.get("/tables/x/keys/ann", params={"entry": entry}).json()["value"] == second
        assert client.get("/tables/x/keys/ann", params={"entry": "noon"}).status_code == 400
        assert client.get("/tables/x/history/ann", params={"entry": middle}).json()["versions"][0]["value"] == second
        assert client.get("/tables/x/keys/nobody").json()["found"] is False


class NotRead(keyed.DirectoryChangelog):
    """A changelog that fails the test when it is read after its header was."""

    def reader(self, group: int) -> Any:
        raise AssertionError("the changelog is read")


def test_health_and_readiness_read_nothing(tmp_path, monkeypatch):
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    with KeyedTestHarness(Orders(), key=lambda value: value[0], changelog=changelog) as harness:
        harness.process(("ann", "book", 1))
    access = Access(tokens={TOKEN: ["*"]})
    with (
        open_tables(NotRead(tmp_path / "log"), tmp_path / "tables") as tables,
        client_of(tables, access=access) as client,
    ):
        # No token, no batch, and no look at the changelog.
        health, ready = client.get("/health"), client.get("/ready")
        assert (health.status_code, health.json()) == (200, {"status": "starting"})
        assert (ready.status_code, ready.json()) == (503, {"status": "starting", "ready": False, "within": 300.0})


def test_ready_is_freshness_within_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(background, "_LONGEST_WAIT", 0.0)
    header, away = tmp_path / "log" / "header", tmp_path / "log" / "away"
    with (
        followed(Orders(), tmp_path) as (harness, tables),
        client_of(tables, limits=patient(fresh_seconds=300)) as client,
    ):
        harness.process(("ann", "book", 1))
        tables.start(every=0.02)
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["ready"], ready.json()["batch"]) == (200, True, tables.batch)
        header.rename(away)
        # It cannot be read.
        header.mkdir()
        until(lambda: tables.trouble)
        # It answers, and may be behind: by no more than this yet.
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200
        old = client.get("/ready", params={"within": "0.000001"})
        assert (old.status_code, old.json()["ready"]) == (503, False)
        assert "Is a directory" in old.json()["error"]
        assert client.get("/tables/count/keys/ann").json()["value"] == 1
        assert re.search(r"keyed_tables_failures_total [1-9]", client.get("/metrics").text)
        for wrong in ("0", "-1", "nan", "inf", "soon"):
            assert client.get("/ready", params={"within": wrong}).status_code == 400
        header.rename(tmp_path / "log" / "folder")
        # Where it is gone, nothing can follow, whatever the bound.
        until(lambda: client.get("/ready").status_code == 503)
        assert client.get("/ready", params={"within": "300"}).status_code == 503
        assert "is gone" in client.get("/ready").json()["error"]
        assert client.get("/health").status_code == 200
        away.rename(header)
        until(lambda: not tables.trouble)
        assert client.get("/ready").json()["ready"] is True
        assert "error" not in client.get("/ready").json()


def events(lines: Iterator[str]) -> Iterator[tuple[Any, str, Any]]:
    """The (id, event, data) of a stream, without those of an id alone."""
    return ((token, name, data) for token, name, data in read_events(lines) if name)


def test_a_server_whose_follower_ended_says_so_everywhere(tmp_path, caplog):
    access = Access(tokens={TOKEN: ["*"], OTHER: ["count"]})
    authorization = {"authorization": f"Bearer {TOKEN}"}
    with (
        followed(Orders(), tmp_path) as (harness, tables),
        served(tables, access=access) as address,
        httpx.Client(base_url=address, timeout=300, headers=authorization) as client,
    ):
        harness.process(("ann", "book", 1))
        tables.start(every=0.02)
        of_count = {"authorization": f"Bearer {OTHER}"}
        with (
            client.stream("GET", "/tables/count/changes") as changes,
            client.stream("GET", "/batches") as batches,
            client.stream("GET", "/batches", headers=of_count) as of_some,
        ):
            streams, narrow = [events(each.iter_lines()) for each in (changes, batches)], events(of_some.iter_lines())
            assert [next(stream)[1] for stream in (*streams, narrow)] == ["snapshot", "batch", "batch"]
            next(streams[0])
            shutil.rmtree(tmp_path / "tables")
            for stream in streams:
                _, name, error = next(stream)
                assert (name, error["type"]) == ("error", "LocalStoreError")
                assert "was deleted or replaced" in error["message"]
                assert list(stream) == []
            # Those who may read one table get the kind of the error, and no text that names things.
            message = "following ended; the server's log has the reason"
            assert [event[1:] for event in narrow] == [("error", {"type": "LocalStoreError", "message": message})]
        for _ in range(2):
            health = client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "failed")
            assert "was deleted or replaced" in health.json()["error"]
            for path in ("/tables", "/tables/count", "/tables/count/keys/ann", "/tables/count/history/ann", "/timers"):
                answer = client.get(path)
                assert (answer.status_code, answer.json()["error"]["type"]) == (503, "LocalStoreError"), path
            for path in ("/status", "/batches", "/tables/count/changes"):
                with client.stream("GET", path) as answer:
                    assert answer.status_code == 503 or [name for _, name, _ in events(answer.iter_lines())] == [
                        "error"
                    ], path
            answer = client.post("/sql", json={"query": "select 1"})
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "LocalStoreError")
        assert client.get("/ready").status_code == 503
        # Without a token there is the kind of the error, and no text that names things.
        assert httpx.get(f"{address}/health", timeout=300).json() == {"status": "failed", "error": "LocalStoreError"}
        metrics = client.get("/metrics").text
        assert 'keyed_tables_status{status="failed"} 1' in metrics
        assert 'keyed_tables_status{status="following"} 0' in metrics
        assert "keyed_tables_batch -1" in metrics
        until(lambda: not tables._work.is_running)
        gc.collect()
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
            "tables of function: ended"
        ]
        assert "never retrieved" not in caplog.text


def test_scans_go_on_where_the_page_before_ended(ask):
    pages = read_pages([ask], "/tables/count", "entries", limit=3)
    keys = [(entry["key"], str(entry["namespace"])) for page in pages for entry in page]
    assert len(keys) == len(set(keys)) == 10
    assert {entry["key"] for entry in ask.get("/tables/count", params={"prefix": "a"}).json()["entries"]} == {
        "ann",
        "a b",
    }
    assert len(ask.get("/timers").json()["timers"]) == 5
    assert [timer["name"] for timer in ask.get("/timers", params={"key": "ann"}).json()["timers"]] == ["due"]


def test_sql_is_answered_by_a_process_of_its_own(job):
    limits = patient(sql_seconds=60, sql_megabytes=700, sql_rows=3)
    with client_of(job[1], limits=limits) as client:
        answer = client.post("/sql", json={"query": "select key, value from count where key = ?", "parameters": ["ü"]})
        assert answer.json().get("rows") == [["ü", 3], ["ü", 3]], answer.text
        assert client.post("/sql", json={"query": "select * from count"}).json()["more"] is True
        large = client.post("/sql", json={"query": "select list(a) from range(400000000) t(a)"})
        assert large.status_code == 400
        assert client.post("/sql", json={"query": "select 1 as one"}).json().get("rows") == [[1]]


def test_a_query_that_takes_too_long_is_killed(job):
    with client_of(job[1], limits=patient(sql_seconds=1)) as client:
        slow = client.post("/sql", json={"query": "select count(*) from range(100000000000) a, range(1000) b"})
        assert slow.status_code == 400
        assert "took longer than 1 s" in slow.json()["error"]["message"]


@pytest.mark.parametrize(("path", "status", "kind"), REQUESTS["errors"])
def test_errors_have_a_status_and_say_what_to_do(ask, path, status, kind):
    answer = ask.get(path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)


def test_paths_lead_nowhere_else(ask):
    for path in ("/../etc/passwd", "/tables/../../etc/passwd", "/tables/%2e%2e%2fetc", "/static/x", "//etc/passwd"):
        assert ask.get(path).status_code in (404, 405)


def test_other_hosts_and_origins_are_refused(ask):
    assert ask.get("/tables", headers={"host": "evil.example"}).status_code == 421
    assert ask.get("/tables", headers={"origin": "http://evil.example"}).status_code == 403
    assert ask.get("/tables", headers={"origin": "null"}).status_code == 403
    # A page of this machine, but of another program; and our own, by each of its names.
    port = ask.base_url.port
    assert ask.get("/tables", headers={"origin": "http://localhost:5173"}).status_code == 403
    assert ask.get("/tables", headers={"origin": f"http://localhost:{port}"}).status_code == 403
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
        assert ask.get("/tables", headers={"host": host, "origin": f"http://{host}"}).status_code == 200
    assert ask.get("/tables", headers={"host": "LOCALHOST", "origin": "https://localhost:443"}).status_code == 200


def test_a_token_opens_its_tables_and_no_others(job):
    access = Access(tokens={TOKEN: ["*"], OTHER: ["count"]})
    with client_of(job[1], access=access) as client:

        def ask(path: str, token: str | None) -> int:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            return client.get(path, headers=headers).status_code

        assert ask("/tables/count", None) == 401
        assert ask("/tables/count", "wrong") == 401
        assert ask("/tables/count", OTHER) == 200
        assert ask("/tables/items", OTHER) == 403
        assert ask("/timers", OTHER) == 403
        assert ask("/timers", TOKEN) == 200
        assert ask("/health", None) == 200
        for value, said in (("Bearer wrong", "the token is unknown"), ("Basic x", "give the header Authorization: ")):
            answer = client.get("/tables", headers={"authorization": value})
            assert answer.status_code == 401
            assert said in answer.json()["error"]["message"]
        listed = client.get("/tables", headers={"authorization": f"Bearer {OTHER}"}).json()
        assert [table["name"] for table in listed["tables"]] == ["count"]
        query = {"query": "select * from items"}
        answer = client.post("/sql", json=query, headers={"authorization": f"Bearer {OTHER}"})
        assert "items does not exist" in answer.json()["error"]["message"]


def test_other_machines_need_a_token(job):
    with pytest.raises(keyed.errors.DefinitionError, match="can be reached from other machines"):
        serve(job[1], host="0.0.0.0")
    with pytest.raises(keyed.errors.DefinitionError, match="16 to 512"):
        Access(tokens={"short": ["*"]})
    with pytest.raises(keyed.errors.DefinitionError, match="'\\[\"count\"\\],' is not a name"):
        Access(tokens={TOKEN: ['["count"],']})


def test_changes_are_pushed_and_go_on_behind_the_last_event(job, ask):
    harness, _ = job
    with ask.stream("GET", "/tables/count/changes", params={"key": "ann"}) as stream:
        came = events(stream.iter_lines())
        first = next(came)
        assert (first[1], first[2]["key"], first[2]["new"]) == ("snapshot", "ann", 0)
        next(came)
        harness.process(("ann", "pen", 7))
        last = next(came)
        assert (last[1], last[2]["old"], last[2]["new"]) == ("change", 0, 7)
    harness.process(("ann", "pen", 1))
    headers = {"Last-Event-ID": last[0]}
    with ask.stream("GET", "/tables/count/changes", params={"key": "ann"}, headers=headers) as stream:
        came = events(stream.iter_lines())
        found = [next(came)[2] for _ in range(2)]
    assert [(change["namespace"], change["old"], change["new"]) for change in found] == [([0, 10], 0, 7), (None, 7, 8)]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
FUZZED = {name: st.sampled_from(choices) for name, choices in REQUESTS["fuzzed"].items()}


@settings(max_examples=int(os.environ.get("KEYED_FUZZ", "100")), deadline=None)
@given(
    FUZZED["methods"],
    FUZZED["paths"],
    TEXT,
    st.dictionaries(FUZZED["parameters"], TEXT | FUZZED["values"], max_size=3),
)
def test_whatever_is_asked_is_answered_or_refused(ask, method, path, text, query):
    """``KEYED_FUZZ=10000`` asks more."""
    answer = ask.request(method, path.replace("{}", quote(text, safe="/")), params=query)
    assert answer.status_code in (200, 204, 307, 400, 404, 405, 410)
    assert answer.status_code != 200 or answer.json() is not None
    assert "Traceback" not in answer.text


def test_a_scan_from_the_end_gives_the_pages_backwards(ask):
    forwards = ask.get("/tables/count", params={"limit": "1000"}).json()["entries"]
    pages = read_pages([ask], "/tables/count", "entries", order="desc", limit=3)
    assert [entry for page in pages for entry in page] == forwards[::-1]
    assert ask.get("/tables/count", params={"order": "down"}).status_code == 400


def test_batches_are_told_with_what_the_job_says_of_itself(job):
    harness, tables = job
    rows = iter(range(100))
    with client_of(tables, status=lambda: {"rows": next(rows)}) as client, client.stream("GET", "/batches") as stream:
        told = events(stream.iter_lines())
        token, kind, first = next(told)
        assert (kind, token) == ("batch", str(first["batch"]))
        assert first["job"] == {"rows": 0}
        assert first["positions"]["function"]["entries"] == len(tables["count"]) + len(tables["items"]) + len(
            tables.timers
        )
        harness.process(("zoe", "book", 7))
        _, _, second = next(told)
        assert second["batch"] > first["batch"]
        assert second["positions"]["function"]["hash"] != first["positions"]["function"]["hash"]
        assert client.get("/status").json()["batch"] == second["batch"]


def test_a_job_that_ends_without_a_batch_is_told(job, monkeypatch):
    monkeypatch.setattr(event_stream, "_SILENCE", 0.02)
    calls: list[str] = []

    def status():
        calls.append("")
        return {"job": found}

    found = background.Status.FOLLOWING.value
    with client_of(job[1], status=status) as client, client.stream("GET", "/batches") as stream:
        told = events(stream.iter_lines())
        _, _, first = next(told)
        assert first["job"] == {"job": "following"}
        # It is the same at the next looks, so nothing is sent.
        until(lambda: len(calls) > 3)
        found = background.Status.CLOSED.value
        assert next(told)[2] == first | {"job": {"job": "closed"}}


def test_a_status_that_changes_at_every_look_is_sent_once_for_each_wait():
    looks = iter(range(100))
    events = BatchEvents(lambda: 3, lambda: {"look": next(looks)}, lambda job: {"job": job})
    assert [bool(events.take()) for _ in range(6)] == [True, False] * 3


def test_few_streams_read_at_a_time_however_many_are_open(job, monkeypatch):
    """A thread for each would keep the event loop, and so ``/health``, waiting for the interpreter lock."""
    reading: list[int] = []
    go_on = threading.Event()
    take = ChangeEvents.take

    def slow(self):
        reading.append(threading.get_ident())
        go_on.wait(300)
        return take(self)

    monkeypatch.setattr(ChangeEvents, "take", slow)
    with client_of(job[1]) as client, ExitStack() as stack:
        try:
            streams = [stack.enter_context(client.stream("GET", "/tables/count/changes")) for _ in range(8)]
            lines = [stream.iter_lines() for stream in streams]
            assert {next(each) for each in lines} == {"retry: 1000"}
            until(lambda: len(reading) >= 2)
            # Each of them has had its turn since.
            assert client.get("/health").status_code == 200
            assert client.get("/tables/count/keys/ann").status_code == 200
            assert len(reading) == 2
        finally:
            go_on.set()
        assert {next(events(each))[1] for each in lines} == {"snapshot"}


def test_two_servers_over_one_changelog_go_on_where_the_other_ended(job, tmp_path):
    harness, tables = job
    changelog = next(iter(tables._operators.values())).source.changelog
    with poll_tables(changelog, tmp_path / "second") as second:
        second.start(every=0.02)
        with (
            served(tables) as one,
            served(second) as other,
            httpx.Client(base_url=one, timeout=300) as first_client,
            httpx.Client(base_url=other, timeout=300) as second_client,
        ):
            assert second.wait_for(tables.batch, 300) >= tables.batch
            whole = first_client.get("/tables/count", params={"limit": "1000"}).json()["entries"]
            page = first_client.get("/tables/count", params={"limit": "2"}).json()
            rest = second_client.get("/tables/count", params={"after": page["next"], "limit": "1000"}).json()
            assert page["entries"] + rest["entries"] == whole
            assert rest["position"] == page["position"]
            with first_client.stream("GET", "/tables/count/changes") as stream:
                told = events(stream.iter_lines())
                token = [next(told)[0] for _ in whole][-1]
            harness.process(("balanced", "book", 3))
            with second_client.stream("GET", "/tables/count/changes", headers={"Last-Event-ID": token}) as stream:
                _, kind, change = next(events(stream.iter_lines()))
            assert (kind, change["key"], change["old"], change["new"]) == ("change", "balanced", None, 3)


class Reminders(keyed.KeyedProcessFunction):
    """Sets a timer named after its operator, for each key."""

    def __init__(self, name):
        self.name = name

    def process_element(self, value, ctx):
        ctx.timer_service().set_timer(self.name, keyed.MAX_TIMESTAMP)

    def on_timer(self, timestamp, ctx):
        return ()


def test_timers_of_an_operator_are_asked_for_by_its_name(tmp_path):
    logs = []
    for name in ("first", "second"):
        logs.append(keyed.DirectoryChangelog(tmp_path / name))
        numbers = keyed.stream([1, 2]).key_by(lambda value: value)
        numbers.process(Reminders(name), name=name, changelog=logs[-1]).run(drain=False)
    with open_tables(logs, tmp_path / "tables") as tables, client_of(tables) as client:
        tables.poll()

        def names(**query: str) -> list[Any]:
            timers = client.get("/timers", params=query).json()["timers"]
            return [(timer["key"], timer["name"]) for timer in timers]

        assert names(operator="second") == [(1, "second"), (2, "second")]
        assert names(operator="first", limit="1") == [(1, "first")]
        assert names(operator="second", key="2") == [(2, "second")]
        answer = client.get("/timers")
        assert answer.status_code == 400
        assert "?operator=first" in answer.json()["error"]["message"]
        answer = client.get("/timers", params={"operator": "third"})
        assert answer.status_code == 404
        assert "there are: first, second" in answer.json()["error"]["message"]
        assert client.get("/timers", params={"operator": "second", "key": "x"}).status_code == 400


def test_a_browser_has_a_cookie_in_place_of_the_token(job, monkeypatch):
    access = Access(tokens={TOKEN: ["*"], OTHER: ["count"]})
    with served(job[1], access=access, page=True) as address, httpx.Client(base_url=address, timeout=300) as client:
        assert client.post("/session", json={"token": "not-a-token-of-this-server"}).status_code == 401
        assert client.post("/session", json={"password": TOKEN}).status_code == 400
        evil = {"origin": "http://evil.example"}
        assert client.post("/session", json={"token": TOKEN}, headers=evil).status_code == 403
        answer = client.post("/session", json={"token": OTHER})
        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 204
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert OTHER not in cookie
        assert client.get("/tables/count").status_code == 200
        assert client.get("/tables/items").status_code == 403
        session = client.cookies["keyed_session"]
    # A server that was started again knows it; another one, and a changed or old one, do not open anything.
    again = {"cookie": f"keyed_session={session}"}
    with served(job[1], access=access) as address, httpx.Client(base_url=address, timeout=300) as client:
        assert client.get("/tables/count", headers=again).status_code == 200
        later = session.replace(session.split(".")[0], str(int(session.split(".")[0]) + 1))
        assert client.get("/tables/count", headers={"cookie": f"keyed_session={later}"}).status_code == 401
        assert client.request("DELETE", "/session").headers["set-cookie"].startswith('keyed_session="";')
        monkeypatch.setattr(time, "time", lambda: float(session.split(".")[0]) + 1)
        assert client.get("/tables/count", headers=again).status_code == 401


def test_the_page_may_load_nothing_from_elsewhere(job):
    static = Path(keyed.__file__).parent / "tables" / "server" / "static"
    with client_of(job[1], page=True) as client:
        for path in ("/", "/page/keyed.js", "/page/uplot/uPlot.iife.min.js"):
            answer = client.get(path)
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
        for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page/%2e%2e%2f%2e%2e%2fentries.py", "/../app.py"):
            assert client.get(path).status_code == 404
        for file in static.glob("*"):
            if file.is_file():
                assert not re.search(r"https?://(?!www\.w3\.org/)|style=|innerHTML|<script>", file.read_text()), file
    with pytest.raises(keyed.errors.DefinitionError, match="holds no index"):
        make_app(job[1], page=static / "uplot")


def test_a_query_that_still_runs_when_the_server_stops_is_answered(job, monkeypatch):
    async def stopped() -> httpx.Response:
        runs = asyncio.Event()

        async def forever(request: Any, work: Any) -> None:
            del request
            work.close()
            runs.set()
            await asyncio.Event().wait()

        monkeypatch.setattr("keyed.tables.server.app._while_connected", forever)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(make_app(job[1])), base_url="http://127.0.0.1")
        asking = asyncio.create_task(client.post("/sql", json={"query": "select 1"}))
        await runs.wait()
        # As the server does with what still runs after its time to stop.
        asking.cancel()
        return await asking

    answer = asyncio.run(stopped())
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Stopping")


@pytest.mark.parametrize("seconds", [0.0, 2.0], ids=["it starts", "it computes"])
def test_a_query_that_runs_when_the_server_stops_is_refused_and_its_process_ends(job, monkeypatch, seconds):
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    slow = {"query": "select count(*) from range(100000000000) a, range(1000) b"}
    answers: list[httpx.Response] = []

    def ask(address: str) -> None:
        answers.append(httpx.post(f"{address}/sql", json=slow, timeout=300))

    with serving(job[1], port=0) as address:
        asking = threading.Thread(target=ask, args=(address,))
        asking.start()
        until(lambda: any(sum(each.cpu_times()[:2]) >= seconds for each in worker_processes()))
    asking.join()
    assert [(each.status_code, each.json()["error"]["type"]) for each in answers] == [(503, "Stopping")]
    assert not worker_processes()
    gc.collect()
    assert not unraisable
