"""Connections that clients do not finish, do not read, or drop: they cost little, end in time and keep nobody out."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from functools import partial
from http.client import HTTPResponse
from textwrap import dedent
from typing import Any

import attrs
import httpx
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed.base.background import Status
from keyed.metrics import Prometheus
from keyed.runtimes import metrics_export
from keyed.runtimes.job_metrics import JobMetrics
from keyed.tables.server import Access, Limits, event_stream, serving
from keyed.tables.server import http_server as serving_module
from keyed.tables.server.event_stream import BatchEvents, EventStream, Watch
from tests.support.data_files import read_data
from tests.support.tables import followed
from tests.support.waiting import no_more, until


class Texts(keyed.KeyedProcessFunction):
    text = keyed.ValueState(str)

    def process_element(self, value, ctx):
        self.text.update(value[1])


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("connections")
    with followed(Texts(), folder) as (harness, tables):
        with harness.batch():
            for number in range(400):
                harness.process((f"key{number}", "x" * 10_000))
        tables.poll()
        yield harness, tables


def connected(address: str, text: str = "") -> socket.socket:
    """A connection that has sent some text."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(text.encode())
    return connection


def test_a_connection_that_has_ended_does_not_wait_for_the_garbage_collector(job):
    def kept():
        return [each for each in gc.get_objects() if isinstance(each, serving_module._Connection)]

    gc.collect()
    before = len(kept())
    gc.disable()
    try:
        with serving(job[1], port=0) as address:
            for _ in range(3):
                httpx.get(f"{address}/tables/text/keys/key1").raise_for_status()
                connected(address, "GET /tables/text/changes HTTP/1.1\r\nHost: a\r\n\r\n").close()
                connected(address, "GET /tables").close()
            until(lambda: len(kept()) <= before, report=lambda: f"{len(kept())} connections are kept")
    finally:
        gc.enable()


def connections(address: str) -> int:
    """The number of connections that a server in this process has."""
    port = int(address.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp")
    return sum(each.laddr[1] == port and each.status != psutil.CONN_LISTEN for each in found)


def request(path: str, method: str = "GET", headers: str = "") -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"


def test_headers_that_are_never_finished_keep_nobody_out_and_end_in_time(job):
    limits = Limits(connections=50, request_seconds=2)
    with serving(job[1], port=0, limits=limits) as address, ExitStack() as stack:
        for _ in range(900):
            stack.enter_context(connected(address, "GET /tables HTTP/1.1\r\nHost: loc"))
        until(lambda: connections(address) <= 50 + 16)
        assert httpx.get(f"{address}/tables", timeout=300).status_code == 200
        until(lambda: connections(address) == 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GET",
        request("/tables"),
        request("/tables") * 3 + "GET /ta",
        request("/sql", "POST", "Content-Length: 1000\r\n") + '{"query"',
        request("/tables", headers="Content-Length: 100000\r\n") + "x",
        request("/openapi.json", headers="Connection: close\r\n"),
        "\0" * 100,
    ],
)
def test_a_connection_that_is_left_open_is_closed(job, text):
    limits = Limits(request_seconds=0.2)
    with serving(job[1], port=0, limits=limits) as address, connected(address, text):
        until(lambda: connections(address) == 0)


def test_a_body_that_does_not_arrive_is_a_408(job):
    with (
        serving(job[1], port=0, limits=Limits(request_seconds=2)) as address,
        connected(address, request("/sql", "POST", "Content-Length: 1000\r\n") + '{"query"') as client,
    ):
        answer = HTTPResponse(client)
        answer.begin()
        assert (answer.status, json.load(answer)["error"]["type"]) == (408, "RequestTimeout")


def test_aborted_bodies_leave_no_traceback(job, caplog):
    with serving(job[1], port=0) as address:
        for _ in range(20):
            with connected(address, request("/sql", "POST", "Content-Length: 1000\r\n") + '{"query"'):
                pass
        until(lambda: 'route="/sql",status="400"} 20' in httpx.get(f"{address}/metrics", timeout=300).text)
    assert "Traceback" not in caplog.text
    assert len(caplog.records) <= 1


@pytest.mark.slow
def test_readers_that_never_read_are_closed_and_their_memory_is_bounded(job):
    process = psutil.Process()
    with serving(job[1], port=0, limits=Limits(send_seconds=1)) as address, ExitStack() as stack:
        before = process.memory_info().rss
        paths = ("/tables/text/changes", "/tables/text?limit=400")
        for number in range(300):
            stack.enter_context(connected(address, request(paths[number % 2])))
        until(lambda: connections(address) == 0)
        until(lambda: "keyed_streams 0" in httpx.get(f"{address}/metrics", timeout=300).text)
        assert re.search(r"keyed_streams_dropped_total [1-9]", httpx.get(f"{address}/metrics", timeout=300).text)
        assert process.memory_info().rss - before < 400 << 20


def test_readers_that_are_dropped_for_memory_are_counted(job, monkeypatch):
    monkeypatch.setattr(serving_module, "_UNREAD", 6 << 20)
    with serving(job[1], port=0) as address, ExitStack() as stack:
        for _ in range(3):
            # An answer of 4 MB each.
            stack.enter_context(connected(address, request("/tables/text?limit=400")))
        until(lambda: "keyed_unread_dropped_total 2" in httpx.get(f"{address}/metrics", timeout=300).text)


def test_readers_that_leave_as_a_batch_comes_leave_no_writers(job, monkeypatch):
    """Two hundred streams, half of which leave before the batch is announced and half after, in one round."""
    monkeypatch.setattr(event_stream, "_LOOK_AGAIN", 0.01)

    async def receive_when(left: asyncio.Event) -> dict[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    async def rounds() -> tuple[int, list[str]]:
        watch, left = Watch(job[1], 200, 1), [asyncio.Event() for _ in range(200)]
        sent: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            sent.append(message)

        def started(event: asyncio.Event) -> asyncio.Task[None]:
            stream = EventStream(BatchEvents(lambda: watch.batch, dict, dict), watch, 30.0, str)
            return asyncio.create_task(stream({}, partial(receive_when, event), send))

        streams = [started(event) for event in left]
        # Each has sent its header, a line and the newest batch, and waits for the next one.
        await asyncio.to_thread(until, lambda: len(sent) == 600 and len(watch._changed._waiters) == 200)
        async with watch._changed:
            for event in left[:100]:
                event.set()
            watch._changed.notify_all()
            for event in left[100:]:
                event.set()
        await asyncio.wait(streams)
        writers = [each for each in asyncio.all_tasks() if "EventStream" in repr(each.get_coro())]
        _, left_over = await asyncio.wait(writers, timeout=300) if writers else ((), ())
        await watch.end()
        return watch.streams, [repr(each) for each in left_over]

    assert asyncio.run(rounds()) == (0, [])


@attrs.define
class Looks:
    """Tables whose batch and status are the next ones at each look, and then stay."""

    batches: list[int]
    statuses: list[Status]

    def wait_for(self, batch, seconds):
        raise TimeoutError

    def __getattr__(self, name):
        looks: Any = self.batches if name == "batch" else self.statuses
        return looks.pop(0) if len(looks) > 1 else looks[0]


@pytest.mark.parametrize("looks", [1, 3])
@pytest.mark.parametrize(("batch", "status"), [(6, Status.FOLLOWING), (5, Status.FAILED)])
def test_a_batch_or_an_end_between_two_looks_wakes_the_streams(monkeypatch, batch, status, looks):
    monkeypatch.setattr(event_stream, "_SILENCE", 300.0)
    tables: Any = Looks([5] * looks + [batch], [Status.FOLLOWING] * looks + [status])

    async def wait() -> None:
        watch = Watch(tables, 1, 1)
        watch.slots.used[0] = 1
        await asyncio.wait_for(watch.next_batch(5), 30)
        watch.slots.release(0)

    asyncio.run(wait())


def test_where_all_connections_are_answered_a_further_one_is_a_503(job):
    limits = Limits(connections=3)
    with serving(job[1], port=0, limits=limits) as address, ExitStack() as stack:
        streams = [
            stack.enter_context(httpx.stream("GET", f"{address}/tables/text/changes", timeout=300)).iter_lines()
            for _ in range(3)
        ]
        assert all(map(next, streams))
        answer = httpx.get(f"{address}/tables", timeout=300)
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Busy")
        stack.close()
        until(lambda: httpx.get(f"{address}/tables", timeout=300).status_code == 200)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "transfer-encoding: Chunked\r\ncontent-length: 4\r\ncontent-length: 4\r\n",
        "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\nContent-Length: 0\r\n",
    ],
)
def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(job, method, headers):
    smuggled = request("/tables")
    with serving(job[1], port=0) as address:
        with connected(address, request("/sql", method, headers) + f"0\r\n\r\n{smuggled}") as client:
            client.settimeout(300)
            answer = b"".join(iter(lambda: client.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"connection: close" in answer
        assert b"not both" in answer


def test_an_answer_in_parts_is_whole(job):
    with serving(job[1], port=0) as address:
        answer = httpx.get(f"{address}/tables/text", params={"limit": 400}, timeout=300)
        assert len(answer.content) > 4_000_000
        assert [entry["value"] for entry in answer.json()["entries"]] == ["x" * 10_000] * 400


PROGRAM = """
    import resource, socket, sys
    import keyed
    from keyed.tables.server import serving
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with keyed.tables.read_tables(sys.argv[1]) as tables, serving(tables, port=0) as address:
        print(address, flush=True)
        sys.stdin.readline()
"""


def test_half_open_connections_do_not_use_up_the_descriptors_of_a_process(job):
    """A process without descriptors left wrote 64 MB of tracebacks in 8 seconds."""
    program = [sys.executable, "-c", dedent(PROGRAM), str(job[1].path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as server, ExitStack() as stack:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        for _ in range(300):
            stack.enter_context(connected(address, "GET /"))
        for _ in range(10):
            assert httpx.get(f"{address}/tables", timeout=300).status_code == 200
        _, errors = server.communicate("\n")
    assert server.returncode == 0
    assert errors == ""


def test_a_process_without_descriptors_reports_it_once(job, caplog):
    (repeats,) = serving_module._log.filters
    assert isinstance(repeats, serving_module.LogRateLimit)
    repeats._seen.clear()
    with serving(job[1], port=0) as address:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        host, port = address.removeprefix("http://").split(":")
        # More than one: what else the process closes meanwhile makes room for a connection.
        clients = [socket.socket() for _ in range(20)]
        # The limit is one of numbers, and the lowest that is free comes next.
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            for client in clients:
                client.connect((host, int(port)))
            until(lambda: "raise ulimit -n" in caplog.text)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for client in clients:
                client.close()
        assert httpx.get(f"{address}/tables", timeout=300).status_code == 200
    assert caplog.text.count("raise ulimit -n") == 1
    assert "Traceback" not in caplog.text


@pytest.mark.slow
def test_a_thousand_rounds_of_connecting_and_dropping_leave_nothing(job, monkeypatch):
    """``connect, ask, drop`` in every phase of a request: threads, descriptors and memory stay as they were."""
    process = psutil.Process()
    servers: list[serving_module.Connections] = []
    created = serving_module.Connections.__init__

    def keep(self: Any, *arguments: Any) -> None:
        created(self, *arguments)
        servers.append(self)

    monkeypatch.setattr(serving_module.Connections, "__init__", keep)
    texts = [
        "",
        "GET /tab",
        request("/tables"),
        request("/tables/text/changes"),
        request("/batches"),
        request("/tables/text?limit=400"),
        request("/sql", "POST", "Content-Length: 99\r\n") + "{",
        request("/nothing") + request("/tables"),
    ]
    with serving(job[1], port=0) as address:

        def rounds(count: int) -> None:
            for number in range(count):
                with connected(address, texts[number % len(texts)]) as client:
                    if number % 3 == 0 and "\r\n\r\n" in texts[number % len(texts)] and number % 8 != 6:
                        client.recv(1)

        def is_quiet() -> bool:
            return "keyed_streams 0" in httpx.get(f"{address}/metrics", timeout=300).text and connections(address) <= 1

        rounds(200)
        until(is_quiet)
        # Threads of the pools come as they are needed, up to 40 and 6.
        before = threading.active_count() + 46, process.num_fds() + 5
        memory = process.memory_info().rss
        rounds(1_000)
        until(is_quiet)
        until(lambda: [(each.waiting, each._unread) for each in servers] == [({}, {})])
        until(lambda: no_more((threading.active_count(), process.num_fds()), before))
        assert process.memory_info().rss - memory < 64 << 20


#: Those that are too long for the file.
LONG_WORDS = [
    "[" * 200,
    "9" * 400,
    "Cookie: keyed_session=" + "9" * 5_000 + ".x\r\n",
    '{"token": "' + "x" * 20 + '"}',
    "A: " + "b" * 70_000 + "\r\n",
]
WORDS = st.sampled_from(read_data("keyed/tables/server/requests.json")["words of requests"] + LONG_WORDS)
REQUESTS = st.one_of(
    st.lists(WORDS, max_size=12).map("".join),
    st.tuples(WORDS, st.lists(WORDS, max_size=4).map("".join)).map(
        lambda parts: request("/tables" + parts[0]) + parts[1]
    ),
    st.tuples(
        st.sampled_from(["GET", "POST", "DELETE", "PUT"]), st.sampled_from(["/sql", "/session", "/tables/text"]), WORDS
    ).map(lambda parts: request(parts[1], parts[0], "Content-Length: 20\r\n") + parts[2]),
)


@pytest.fixture(scope="module")
def patient(job):
    access = Access(tokens={"token-of-all-tables-0001": ["*"]})
    with serving(job[1], port=0, limits=Limits(request_seconds=0.1), access=access) as address:
        yield address


# Some requests are long on purpose.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=int(os.environ.get("KEYED_FUZZ", "100")), deadline=None)
@given(REQUESTS, st.booleans())
def test_whatever_is_sent_is_answered_or_the_connection_is_closed(patient, text, ends):
    """``KEYED_FUZZ=10000`` sends more."""
    answer = b""
    with suppress(ConnectionError), connected(patient) as client:
        client.settimeout(300)
        client.sendall(text.encode("latin-1"))
        if ends:
            # The server may have closed it already.
            with suppress(OSError):
                client.shutdown(socket.SHUT_WR)
        while part := client.recv(65_536):
            answer += part
    assert b"HTTP/1.1 5" not in answer
    assert b"Traceback" not in answer


def test_nothing_that_was_sent_is_left(patient, caplog):
    until(lambda: connections(patient) == 0)
    assert httpx.get(f"{patient}/health", timeout=300).status_code == 200
    assert "Traceback" not in caplog.text


UNSTARTED = """
    import os, resource, sys
    from keyed.errors import KeyedError
    from keyed.tables import read_tables
    from keyed.tables.server import serving
    with read_tables(sys.argv[1]) as tables:
        used = max(map(int, os.listdir("/dev/fd")))
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1, max(held) + 1))
        # One for the socket that listens, and none for an event loop.
        for each in held[:2]:
            os.close(each)
        try:
            with serving(tables, port=0) as address:
                print("serves", address)
        except BaseException as error:
            print(type(error).__name__, *error.__notes__)
"""


def test_a_server_whose_thread_cannot_start_raises_that(job):
    command = [sys.executable, "-c", dedent(UNSTARTED), str(job[1].path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith("OSError server at http://127.0.0.1:")
    assert "ended with this error" in done.stdout
    assert done.stderr.count(": ended\n") == 1


def test_a_server_that_ends_with_an_error_is_logged_and_raises_it(job, monkeypatch, caplog):
    error = MemoryError("no more")

    # The package has a function of the module's name.
    serving_module: Any = sys.modules["keyed.tables.server.http_server"]

    class Ends(serving_module._Server):  # type: ignore[misc]
        """This server alone: those of other tests go on."""

        async def on_tick(self, counter: int) -> bool:
            if ending.is_set():
                raise error
            return await super().on_tick(counter)

    ending = threading.Event()
    began: set[threading.Thread] = set()
    monkeypatch.setattr(serving_module, "_Server", Ends)

    def serve_until_it_ends(then: Exception | None) -> None:
        ending.clear()
        with serving(job[1], port=0) as address:
            assert httpx.get(f"{address}/health", timeout=300).status_code == 200
            began.update(thread for thread in threading.enumerate() if thread.name == f"server at {address}")
            ending.set()
            until(lambda: f"server at {address}: ended" in [record.getMessage() for record in caplog.records])
            if then is not None:
                raise then

    with pytest.raises(MemoryError, match="no more") as raised:
        serve_until_it_ends(None)
    assert raised.value.__cause__ is error
    # What its context raises itself comes first.
    with pytest.raises(ZeroDivisionError):
        serve_until_it_ends(ZeroDivisionError())
    assert len(began) == 2
    assert set(threading.enumerate()) & began == set()


def test_a_forked_process_does_not_keep_the_ports_of_servers(job):
    """That of state tables, and that of metrics."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    export = metrics_export._Port(Prometheus(port), JobMetrics("query", []))
    ends, end = os.pipe()
    try:
        with serving(job[1], port=0) as address:
            child = os.fork()
            if not child:
                os.close(end)
                os.read(ends, 1)
                os._exit(0)
            assert httpx.get(f"{address}/health", timeout=300).status_code == 200
        export.close()
        for each in (port, int(address.rpartition(":")[2])):
            socket.create_server(("127.0.0.1", each)).close()
    finally:
        export.close()
        os.close(end)
        os.close(ends)
        os.waitpid(child, 0)
