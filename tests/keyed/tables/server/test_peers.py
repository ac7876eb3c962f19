"""Servers with shares of the key groups answer for each other as one server with all of them does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import uvicorn

import keyed
from keyed import DirectoryChangelog
from keyed.codec.key_hash import group_of, key_hash
from keyed.errors import DefinitionError
from keyed.tables import StateTables, open_tables
from keyed.tables.operator_view import Operator
from keyed.tables.server import Access, Limits, Peers
from keyed.tables.server import peers as peers_module
from keyed.tables.server.app import make_app
from keyed.tables.server.peers import PeerShares, PeerUnavailable
from tests.keyed.tables.shares import GROUPS, SHARES, open_shares, run, share_of
from tests.support.data_files import read_data
from tests.support.limits import patient
from tests.support.tables import read_pages
from tests.support.waiting import until

ALL, SOME = "token-of-all-tables-0001", "token-of-count-only-0002"


@contextmanager
def served(all_tables: Sequence[StateTables], **options: Any) -> Iterator[list[httpx.Client]]:
    """Clients of servers, which are peers of each other."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in all_tables]
        addresses = [f"http://127.0.0.1:{listening.getsockname()[1]}" for listening in sockets]
        peers = Peers(addresses, token=options.pop("token", None), timeout=300)
        for tables, listening in zip(all_tables, sockets, strict=True):
            app = make_app(tables, peers=peers, limits=patient(), **options)
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
            thread.start()
            stack.callback(thread.join, 300)
            stack.callback(setattr, server, "should_exit", True)
        yield [stack.enter_context(httpx.Client(base_url=address, timeout=300)) for address in addresses]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a loaded machine a peer in this process may need more than a second for its status."""
    monkeypatch.setattr(peers_module, "_STATUS_SECONDS", 300.0)


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Tables of a changelog with 8 key groups: whole, and in three shares."""
    with open_shares(tmp_path_factory.mktemp("peers")) as opened:
        for each in (opened[1], *opened[2]):
            each.start()
        yield opened


@pytest.fixture(scope="module")
def servers(followed):
    """Clients of the server with all key groups, and of those with shares."""
    with served([followed[1]]) as whole, served(followed[2]) as shares:
        yield whole[0], shares


REQUESTS = read_data("keyed/tables/server/requests.json")
READS = REQUESTS["reads of a key"]


def test_no_state_is_read_in_the_event_loop(servers, followed, monkeypatch):
    """Reading waits for disks, and a search in the history for many records; other requests would wait, too."""
    places = []
    for name in ("view", "commit_at"):
        original = getattr(Operator, name)

        def read(operator, *arguments, original=original):
            with suppress(RuntimeError):
                places.append(asyncio.get_running_loop())
            return original(operator, *arguments)

        monkeypatch.setattr(Operator, name, read)
    now = quote(datetime.now(UTC).isoformat())
    paths = [path.format(13) for path in READS]
    paths += ["/metrics", "/status", "/tables", "/ready", "/tables/count/changes?key=13"]
    paths += [f"/tables/count?as_of={now}", f"/tables/items?limit=2&as_of={now}", f"/timers?as_of={now}"]
    whole, shares = servers
    for client in (whole, *shares):
        for path in paths:
            with client.stream("GET", path) as answer:
                assert answer.status_code in (200, 307)
        query = {"query": "select count(*) from count", "as_of": datetime.now(UTC).isoformat()}
        assert client.post("/sql", json=query).json()["rows"] == [[20]]
    assert places == []


def without_totals(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without the figures that are of a share."""
    position = answer.get("position")
    if position is None:
        return answer
    return answer | {"position": {name: position[name] for name in ("operator", "batch", "watermark", "log_id")}}


def test_every_server_answers_for_every_key_as_whole_tables_do(servers):
    whole, shares = servers
    for key in (0, 7, 13, 19, 500):
        for path in READS:
            expected = whole.get(path.format(key))
            assert expected.status_code == 200
            for client in shares:
                answer = client.get(path.format(key))
                assert answer.status_code == 200, answer.text
                assert without_totals(answer.json()) == without_totals(expected.json()), (path, key)


@pytest.mark.parametrize("path", REQUESTS["scans"])
def test_scans_over_all_shares_equal_those_of_whole_tables(servers, path):
    whole, shares = servers
    expected = whole.get(path).json()
    for client in shares:
        assert without_totals(client.get(path).json()) == without_totals(expected)


def test_pages_of_a_scan_continue_on_any_server(servers):
    whole, shares = servers
    for order in ("asc", "desc"):
        expected = whole.get("/tables/items", params={"order": order}).json()["entries"]
        pages = read_pages(shares, "/tables/items", "entries", order=order, limit=7)
        assert [entry for page in pages for entry in page] == expected


@pytest.mark.slow
def test_sql_covers_all_shares(servers):
    whole, shares = servers
    for query in REQUESTS["queries"]:
        expected = whole.post("/sql", json={"query": query}).json()
        for client in shares:
            answer = client.post("/sql", json={"query": query}).json()
            assert (answer["columns"], answer["rows"]) == (expected["columns"], expected["rows"]), query
    past = {"query": "select sum(value) from count", "as_of": 0}
    assert [client.post("/sql", json=past).json()["rows"] for client in shares] == [[["20"]]] * 3
    assert sum(int(client.post("/sql?share=true", json=past).json()["rows"][0][0]) for client in shares) == 20
    assert shares[0].post("/sql", json={"query": "select * from nothing"}).json()["error"]["type"] == "DefinitionError"


def test_status_lists_the_peers_with_their_key_groups(servers):
    for number, client in enumerate(servers[1]):
        peers = client.get("/status").json()["peers"]
        assert [(peer["groups"], peer["error"]) for peer in peers] == [
            ({"Count": f"{groups[0]}-{groups[-1]}"}, None) for other, groups in enumerate(SHARES) if other != number
        ]
        assert {peer["batch"] for peer in peers} == {2}
        assert "peers" not in client.get("/status?share=true").json()


def test_a_request_for_the_share_is_not_forwarded(servers):
    whole, shares = servers
    parts = [client.get("/tables/count", params={"share": "true"}).json()["entries"] for client in shares]
    assert sorted((entry["key"] for part in parts for entry in part), key=int) == list(range(20))
    for key in range(20):
        statuses = [client.get(f"/tables/count/keys/{key}?share=true").status_code for client in shares]
        assert sorted(statuses) == [200, 503, 503]
    assert whole.get("/tables/count?share=maybe").status_code == 400


def test_changes_of_a_key_elsewhere_are_redirected_to_its_server(servers):
    _, shares = servers
    owner = share_of(13)
    for number, client in enumerate(shares):
        with client.stream("GET", "/tables/count/changes?key=13") as answer:
            assert answer.status_code == (200 if number == owner else 307)
            if number != owner:
                location = answer.headers["location"]
                assert location.startswith(str(shares[owner].base_url).rstrip("/"))
        with client.stream("GET", "/tables/count/changes?key=13", follow_redirects=True) as answer:
            assert next(line for line in answer.iter_lines() if line.startswith("data:")).find('"new":3') > 0
        refused = client.get("/tables/count/changes")
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "GroupUnavailable")


def test_peers_get_their_own_token_and_users_only_their_tables(followed):
    access = Access(tokens={ALL: ["*"], SOME: ["count"]})
    with served(followed[2], access=access, token=ALL) as shares:
        for client in shares:
            client.headers["authorization"] = f"Bearer {SOME}"
            for key in range(0, 20, 4):
                answer = client.get(f"/tables/count/keys/{key}").json()
                assert answer["value"] == 3
                assert not {"entries", "hash"} & answer["position"].keys()
                assert client.get(f"/tables/items/keys/{key}").status_code == 403
            answer = client.get("/tables/count").json()
            assert len(answer["entries"]) == 20
            assert not {"entries", "hash"} & answer["position"].keys()
    for token, reason in ((None, "refuses the token"), (SOME, "is not for all tables")):
        with served(followed[2], access=access, token=token) as shares:
            refused = shares[0].get("/tables/count", headers={"authorization": f"Bearer {ALL}"})
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "GroupUnavailable")
            assert reason in refused.json()["error"]["message"]


@pytest.mark.slow
def test_overlapping_shares_answer_and_missing_ones_are_named(followed, tmp_path):
    log, whole, shares = followed
    with ExitStack() as stack:
        wide = stack.enter_context(open_tables(log, tmp_path / "wide", groups=range(1, 8)))
        wide.start()
        expected = [(entry.key, entry.value) for entry in whole["count"]]
        for all_tables in ([shares[0], wide], [shares[0], wide, shares[2]], [shares[1], whole]):
            with served(all_tables) as clients:
                found = clients[0].get("/tables/count").json()["entries"]
                total = clients[0].post("/sql", json={"query": "select count(*), max(value) from count"}).json()["rows"]
                assert total == [[20, 3]]
                assert [(entry["key"], entry["value"]) for entry in found] == expected
        with served([shares[0], shares[2]]) as clients:
            lost = next(key for key in range(20) if share_of(key) == 1)
            for path in ("/tables/count", f"/tables/count/keys/{lost}", "/timers"):
                refused = clients[0].get(path)
                assert (refused.status_code, refused.json()["error"]["type"]) == (503, "GroupUnavailable")
                assert "no known server has" in refused.json()["error"]["message"]
            refused = clients[0].post("/sql", json={"query": "select * from count"})
            assert (refused.status_code, refused.json()["error"]["type"]) == (503, "GroupUnavailable")


def test_a_server_of_another_changelog_is_not_asked(followed, tmp_path):
    other = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(other, 20)
    with (
        open_tables(other, tmp_path / "tables", groups=range(3, 8)) as tables,
        served([followed[2][0], tables.start()]) as clients,
    ):
        refused = clients[0].get("/tables/count")
        assert refused.status_code == 503
        assert "has 3-7 of another changelog" in refused.json()["error"]["message"]


def test_a_peer_that_is_behind_determines_the_batch_of_a_scan(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(log, 20)
    with ExitStack() as stack:
        tables = [
            stack.enter_context(open_tables(log, tmp_path / f"{groups[0]}", groups=groups))
            for groups in (range(4), range(4, 8))
        ]
        tables[1].poll()
        run(log, 40)
        tables[0].poll()
        with served(tables) as clients:
            for client in clients:
                answer = client.get("/tables/count").json()
                assert answer["position"]["batch"] == 0
                assert {entry["value"] for entry in answer["entries"]} == {1}
                assert client.get("/tables/count?as_of=1").json()["error"]["type"] == "ChangelogError"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "ftp://host", "http://host/path", "http://u@host", "http://h:x", "", "http://a..b", "http://h i"],
)
def test_wrong_addresses_of_peers_are_refused(address):
    with pytest.raises(DefinitionError, match="is not the address of a server"):
        Peers([address])


@pytest.mark.slow
def test_three_processes_answer_for_each_other_until_one_is_killed(tmp_path):
    log = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    run(log, 60)
    (tmp_path / "tokens").write_text(f"{ALL} *\n")
    (tmp_path / "peer").write_text(f"{ALL}\n")
    for name in ("tokens", "peer"):
        (tmp_path / name).chmod(0o600)
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in SHARES]
        ports = [listening.getsockname()[1] for listening in sockets]
        for listening in sockets:
            listening.close()
        addresses = [f"http://127.0.0.1:{port}" for port in ports]

        def start(number: int) -> subprocess.Popen[bytes]:
            groups = SHARES[number]
            options = {
                "tables": tmp_path / f"tables-{number}",
                "groups": f"{groups[0]}-{groups[-1]}",
                "port": ports[number],
                "every": 0.1,
                "peers": ",".join(addresses),
                "token-file": tmp_path / "tokens",
                "peer-token-file": tmp_path / "peer",
            }
            process = subprocess.Popen(
                [sys.executable, "-m", "keyed.cli", "serve", log.path, *(f"--{n}={v}" for n, v in options.items())],
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": str(Path(keyed.__file__).parents[1])},
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout is not None
            stack.enter_context(process.stdout)
            assert process.stdout.readline()
            return process

        processes = [*map(start, range(3))]
        headers = {"authorization": f"Bearer {ALL}"}
        clients = [stack.enter_context(httpx.Client(base_url=each, headers=headers, timeout=300)) for each in addresses]

        def has_value(client: httpx.Client, key: int) -> bool:
            """A peer may be busy for longer than a second; then it is asked again."""
            return client.get(f"/tables/count/keys/{key}").json().get("value") == 3

        def values(client: httpx.Client) -> list[Any]:
            return [entry["value"] for entry in client.get("/tables/count").json().get("entries", ())]

        for client in clients:
            until(partial(lambda one: values(one) == [3] * 20, client))
            for key in range(20):
                until(partial(has_value, client, key))
        processes[1].send_signal(signal.SIGKILL)
        processes[1].wait()
        for client in (clients[0], clients[2]):
            for key in range(20):
                if share_of(key) != 1:
                    until(partial(has_value, client, key))
                    continue
                answer, group = client.get(f"/tables/count/keys/{key}"), group_of(key_hash(key), GROUPS)
                assert (answer.status_code, answer.json()["error"]["type"]) == (503, "GroupUnavailable")
                assert f"for key groups {group}: {addresses[1]} had {group}, but it does not answer" in answer.text
            refused = client.get("/tables/count").json()["error"]
            assert f"{addresses[1]} had 3-5, but it does not answer" in refused["message"]
            (down,) = (peer for peer in client.get("/status").json()["peers"] if peer["error"])
            assert (down["address"], down["groups"]) == (addresses[1], {"Count": "3-5"})
        start(1)
        for client in clients:
            until(partial(lambda one: values(one) == [3] * 20, client))


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_peer_that_sends_a_byte_now_and_then_takes_no_longer_than_the_time_limit(begin):
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def dribble():
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.sendall(begin)
                for _ in range(3_000):
                    connection.sendall(b".")
                    if ended.wait(0.01):
                        break

        thread = threading.Thread(target=dribble, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        shares = PeerShares(Peers([address]), Limits(), 1)
        try:
            with pytest.raises(PeerUnavailable, match=r"its answer took longer than 0.1 s"):
                asyncio.run(shares._request(address, "/status", {}, 0.1, None))
        finally:
            ended.set()
            thread.join(300)
