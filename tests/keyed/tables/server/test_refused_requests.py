"""Shares of tokens: none of them keeps the others out of processes, threads or streams, whatever it asks for."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import threading
import types
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import quote

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed.tables.server import Access, serving
from keyed.tables.server import access as module
from keyed.tables.server.access import ASKING, ConcurrencyLimit, Refused, Slots
from tests.support.limits import patient
from tests.support.tables import followed, worker_processes
from tests.support.waiting import until

TOKENS = ["token-of-the-greedy-001", "token-of-the-modest-002", "token-of-a-third-one-003"]
TEXTS = ", ".join(f"LPAD('', CAST(value AS INT) * {{0}}, '{letter}')" for letter in "ab")
SLOW_PUSH = f"SELECT LEVENSHTEIN({TEXTS.format(600_000)}) AS x FROM n EMIT CHANGES"
PUSH, SQL = "keyed.tables.push_worker", "keyed.tables.sql_worker"
SLOW_SQL = "select count(*) from range(100000000000) a, range(1000) b"


class Number(keyed.KeyedProcessFunction):
    n = keyed.ValueState(int)

    def process_element(self, value, ctx):
        self.n.update(value[1])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shares")
    with followed(Number(), folder) as (harness, tables):
        harness.process(("a", 1))
        yield tables.start(every=0.05)


@contextmanager
def clients(tables, limits):
    """A client for each token."""
    access = Access(tokens={token: ["*"] for token in TOKENS})
    with serving(tables, port=0, limits=limits, access=access) as address, ExitStack() as stack:
        yield [
            stack.enter_context(
                httpx.Client(
                    base_url=address,
                    timeout=300,
                    headers={"authorization": f"Bearer {token}"},
                    limits=httpx.Limits(max_connections=100),
                )
            )
            for token in TOKENS
        ]


def kinds(client, query) -> list[str]:
    """The events of a push query until it ends; its status if it is refused."""
    with client.stream("GET", "/sql/changes", params={"query": query}) as stream:
        if stream.status_code != 200:
            return [str(stream.status_code)]
        return [line.removeprefix("event: ") for line in stream.iter_lines() if line.startswith("event: ")]


def asked(client, program: str) -> socket.socket:
    """A connection that has asked for a query that runs for minutes."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port))
    path, body = "/sql", json.dumps({"query": SLOW_SQL})
    if program == PUSH:
        path, body = f"/sql/changes?query={quote(SLOW_PUSH)}", ""
    method = "POST" if body else "GET"
    headers = f"Host: localhost\r\nAuthorization: {client.headers['authorization']}\r\nContent-Length: {len(body)}"
    connection.sendall(f"{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n{body}".encode())
    return connection


@pytest.mark.slow
@pytest.mark.parametrize("program", [PUSH, SQL])
def test_forty_slow_queries_of_a_token_hold_up_no_other_one(tables, program):
    with clients(tables, patient()) as (greedy, modest, third), ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(asked(greedy, program))
        until(lambda: len(worker_processes(program)) == 2)
        for client in (modest, third):
            if program == PUSH:
                assert kinds(client, "SELECT value FROM n EMIT CHANGES LIMIT 1") == ["snapshot", "end"]
            else:
                assert client.post("/sql", json={"query": "select value from n"}).json()["rows"] == [[1]]
        assert len(worker_processes(program)) == 3
    until(lambda: not worker_processes(program))


@pytest.mark.slow
def test_queries_beyond_the_share_of_a_token_are_refused(tables):
    with clients(tables, patient(wait_seconds=0.1)) as (greedy, modest, _), ThreadPoolExecutor(20) as threads:
        results = [threads.submit(greedy.post, "/sql", json={"query": SLOW_SQL}) for _ in range(20)]
        until(lambda: sum(each.done() for each in results) == 18)
        refused = [each.result() for each in results if each.done()]
        assert {(each.status_code, each.headers["retry-after"]) for each in refused} == {(429, "1")}
        assert "a token may have 2 at a time now" in refused[0].json()["error"]["message"]
        assert modest.post("/sql", json={"query": "select 1 as one"}).json()["rows"] == [[1]]
        # The two others run until their processes end.
        for worker in worker_processes(SQL):
            worker.kill()
        assert sorted({each.result().status_code for each in results}) == [400, 429]


def test_streams_of_a_token_leave_some_for_the_others(tables):
    with clients(tables, patient(streams=8)) as (greedy, modest, third), ExitStack() as stack:
        streams: list[Iterator[str]] = []

        def opened(client) -> int:
            stream = stack.enter_context(client.stream("GET", "/tables/n/changes"))
            if stream.status_code == 200:
                # A generator that is dropped closes its stream.
                streams.append(stream.iter_lines())
                assert next(streams[-1])
            return stream.status_code

        assert [opened(greedy) for _ in range(9)] == [200] * 7 + [503] * 2
        assert [opened(modest) for _ in range(2)] == [200, 503]
        assert opened(third) == 503


@pytest.mark.slow
def test_rows_that_wait_too_long_for_a_process_end_their_stream_with_an_error(tmp_path, monkeypatch):
    with followed(Number(), tmp_path) as (harness, tables), ExitStack() as stack:
        harness.process(("a", 1))
        tables.start(every=0.05)
        address = stack.enter_context(serving(tables, port=0, limits=patient()))
        client = stack.enter_context(httpx.Client(base_url=address, timeout=300))
        query = {"query": f"SELECT LEVENSHTEIN({TEXTS.format(6_000)}) AS x FROM n EMIT CHANGES"}
        streams = [
            stack.enter_context(client.stream("GET", "/sql/changes", params=query)).iter_lines() for _ in range(3)
        ]
        for lines in streams:
            assert "event: snapshot" in lines
        monkeypatch.setattr("keyed.tables.server.sql_process._PART_SECONDS", 0.1)
        # Now the rows of each stream take minutes, and there are two processes.
        harness.process(("a", 100))
        errors: queue.Queue[str] = queue.Queue()

        def read(lines: Iterator[str]) -> None:
            # The two others are closed at the end of the test.
            with suppress(httpx.HTTPError):
                errors.put("".join(lines))

        for lines in streams:
            threading.Thread(target=read, args=[lines], daemon=True).start()
        error = errors.get(timeout=300)
        assert "event: error" in error
        assert '"type":"Busy"' in error
        for each in worker_processes(PUSH):
            each.kill()


def test_without_tokens_all_slots_are_for_everyone():
    slots = Slots(8, 0)
    slots.ask(0)
    for _ in range(8):
        assert slots.is_free(0)
        slots.used[0] += 1
    assert not slots.is_free(0)


@pytest.mark.parametrize("most", [1, 2, 3, 8, 2_000])
def test_a_token_alone_leaves_a_slot_for_the_first_request_of_another(most):
    slots = Slots(most, 2)
    slots.ask(0)
    while slots.is_free(0):
        slots.used[0] += 1
    assert slots.used[0] == max(1, most - max(1, most // 8))
    slots.ask(1)
    assert slots.is_free(1) == (most > 1)


@types.coroutine
def turn():
    """Let the other tasks of the event loop run."""
    yield


#: What a program does next: a token asks, the oldest or newest running request ends, or a waiting one is cancelled.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["end", "cancel", "cancel at its turn"]), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 5), st.integers(1, 4))
def test_no_token_has_more_than_its_share_while_others_wait_and_no_slot_is_lost(steps, most, tokens):
    async def run() -> None:
        limit = ConcurrencyLimit(most, 300.0, 503, "requests", tokens)
        running: list[tuple[int, asyncio.Event]] = []
        tasks: dict[asyncio.Task[None], int] = {}
        waiting: Counter[int] = Counter()

        async def work(token: int) -> None:
            ASKING.set(token)
            waiting[token] += 1
            end = asyncio.Event()
            try:
                async with limit.acquired():
                    waiting[token] -= 1
                    had = Counter(each for each, _ in running)
                    # A token that waits and has less is first.
                    poorest = min((had[each] for each, count in waiting.items() if count), default=had[token])
                    assert had[token] <= poorest
                    running.append((token, end))
                    assert len(running) <= most
                    await end.wait()
            finally:
                if (token, end) in running:
                    running.remove((token, end))
                else:
                    waiting[token] -= 1

        async def settled() -> None:
            for _ in range(10):
                await turn()

        for step, number in steps:
            if step == "ask":
                task = asyncio.create_task(work(number % tokens))
                tasks[task] = number
            elif step == "end" and running:
                running[number % len(running)][1].set()
            elif step.startswith("cancel") and tasks:
                if step != "cancel" and running:
                    running[0][1].set()
                    await turn()
                list(tasks)[number % len(tasks)].cancel()
            await settled()
            had = Counter(token for token, _ in running)
            assert limit._slots.used == had
            if waiting.total():
                # There is no slot for any of those that wait.
                assert not any(limit._slots.is_free(token) for token, count in waiting.items() if count)
        while running:
            running[0][1].set()
            await settled()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            assert task.cancelled() or task.exception() is None
        assert not limit._slots.used
        assert not waiting.total()

    asyncio.run(run())


def test_a_request_is_refused_after_its_wait_and_leaves_nothing():
    async def run() -> None:
        limit = ConcurrencyLimit(1, 0.01, 429, "queries")
        async with limit.acquired():
            for _ in range(3):
                with pytest.raises(Refused, match="a token may have 1 at a time now") as refused:
                    async with limit.acquired():
                        pass
                assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "1"})
        async with limit.acquired():
            pass
        assert not limit._slots.used

    asyncio.run(run())


def test_a_token_that_has_left_frees_its_share(monkeypatch):
    slots = Slots(8, 3)
    for token in range(3):
        slots.ask(token)
    assert slots.share() == 3
    monkeypatch.setattr(module, "_ACTIVE_SECONDS", 0.0)
    slots.ask(0)
    assert slots.share() == 7
