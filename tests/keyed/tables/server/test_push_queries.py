"""Push queries over HTTP: rows as server-sent events, resumed by id, within the limits of other queries."""

from __future__ import annotations

import json
import shutil

import attrs
import pytest

import keyed
from keyed import windows as w
from keyed.tables.server import Access, Limits
from tests.support import tables as tables_support
from tests.support.data_files import read_data
from tests.support.tables import followed, read_events
from tests.support.waiting import until

REQUESTS = read_data("keyed/tables/server/requests.json")
TOKEN, OTHER = "token-of-all-tables-0001", "token-of-sold-only-00002"
SELECT = "SELECT key, UCASE(note) AS note, n * 2 AS double FROM sold WHERE n > ? EMIT CHANGES"


@attrs.frozen
class Sold:
    n: int
    note: str


class Sales(keyed.KeyedProcessFunction):
    sold = keyed.ValueState(Sold)
    secret = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        self.sold.update(Sold(value[1], "a'b"))
        self.secret.put("pin", value[1])
        if value[1] < 0:
            self.sold.clear()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pushed")
    with followed(Sales(), folder, parallelism=2) as (harness, tables):
        # No test removes this row, because any of them may be the only one of its worker.
        harness.process(("Kept", 0))
        harness.process(("Aliens", 3))
        tables.start(every=0.02)
        yield harness, tables


def client_of(tables, token=None, access=None, **limits):
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return tables_support.client_of(tables, headers, access=access, limits=Limits(**limits))


@pytest.fixture(scope="module")
def ask(job):
    with client_of(job[1], sql_seconds=60) as client:
        yield client


def events(response):
    """The (id, event, data) of a stream; an id alone has no event."""
    assert response.status_code == 200, response.read()
    return read_events(response.iter_lines())


def pushed(client, query, *parameters, **more):
    given = {"query": query, "parameters": json.dumps(parameters)} if parameters else {"query": query}
    headers = more.pop("headers", None)
    return client.stream("GET", "/sql/changes", params=given | more, headers=headers)


def test_rows_are_pushed_and_resumed_after_the_last_event(job, ask):
    harness, _ = job
    with pushed(ask, SELECT, 2) as stream:
        came = events(stream)
        _, kind, data = next(came)
        row = {"key": "Aliens", "note": "A'B", "double": 6}
        assert (kind, data) == ("snapshot", {"kind": "snapshot", "batch": 1, "row": row, "old": None})
        harness.process(("Aliens", 5))
        assert next(came)[1] is None
        last, kind, data = next(came)
        assert (kind, data["row"]["double"], data["old"]["double"]) == ("change", 10, 6)
        # A row that no longer fits.
        harness.process(("Aliens", 1))
        next(came)
        _, kind, data = next(came)
        assert (kind, data["row"], data["old"]["double"]) == ("change", None, 10)
    harness.process(("Aliens", 7))
    harness.process(("Aliens", -1))
    for resumed in ({"after": last}, {"headers": {"Last-Event-ID": last}}):
        with pushed(ask, SELECT, 2, **resumed) as stream:
            came = events(stream)
            found = [data for data in (next(came)[2] for _ in range(5)) if data]
        doubles = [[row and row["double"] for row in (data["row"], data["old"])] for data in found]
        assert doubles == [[None, 10], [14, None], [None, 14]]


def test_a_limit_ends_the_stream(job, ask):
    harness, tables = job
    harness.process(("Big", 3))
    until(lambda: "Big" in tables["sold"])
    with pushed(ask, "SELECT n FROM sold WHERE key = $k EMIT CHANGES LIMIT 1", after="beginning") as refused:
        assert refused.status_code == 400
    query = {"query": "SELECT n FROM sold WHERE key = $k EMIT CHANGES LIMIT 1", "parameters": json.dumps({"k": "Big"})}
    with ask.stream("GET", "/sql/changes", params=query) as stream:
        found = list(events(stream))
    assert [(kind, data.get("row")) for _, kind, data in found] == [("snapshot", {"n": 3}), ("end", None)]
    checked = ask.get("/sql/changes", params=query | {"check": "true"}).json()
    assert checked == {"table": "sold", "columns": ["n"], "limit": 1}


def test_rows_in_which_an_expression_fails_are_counted_in_an_event(ask):
    with pushed(ask, "SELECT 6 // n AS x FROM sold WHERE key = 'Kept' EMIT CHANGES") as stream:
        _, kind, data = next(events(stream))
    assert (kind, data["rows"]) == ("bad", 1)
    assert "zero" in data["reason"]


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_a_limit_of_any_size_ends_the_stream_with_an_event(job, ask, limit):
    harness, tables = job
    harness.process(("Second", 3))
    until(lambda: "Second" in tables["sold"])
    with pushed(ask, f"SELECT n FROM sold EMIT CHANGES LIMIT {limit}") as stream:
        found = [kind for _, kind, _ in events(stream) if kind]
    assert found == ["snapshot"] * limit + ["end"]


@pytest.mark.parametrize(
    ("query", "parameters", "column", "message"),
    [*REQUESTS["push queries"], ("SELECT " + "(" * 9_000, None, 508, "500 brackets are inside each other")],
    ids=lambda value: str(value)[:60],
)
def test_queries_that_are_not_valid_are_refused_with_their_place(ask, query, parameters, column, message):
    answer = ask.get("/sql/changes", params={"query": query, "parameters": json.dumps(parameters)})
    error = answer.json()["error"]
    assert (answer.status_code, error.get("column"), error.get("line")) == (400, column, column and 1), answer.text
    assert message in error["message"]
    if column is not None and column < 60:
        assert error["message"].endswith("\n  " + " " * (column - 1) + "^")


@pytest.mark.parametrize("params", REQUESTS["parameters of push queries"])
def test_requests_that_are_not_valid_are_refused(ask, params):
    answer = ask.get("/sql/changes", params=params)
    assert (answer.status_code, "type" in answer.json()["error"]) == (400, True), answer.text


def test_a_query_with_changes_is_not_one_of_a_batch(ask):
    answer = ask.post("/sql", json={"query": "select n from sold emit changes limit 3;"})
    assert (answer.status_code, "GET /sql/changes" in answer.json()["error"]["message"]) == (400, True)


def test_a_token_for_a_table_sees_nothing_of_others(job):
    access = Access(tokens={TOKEN: ["*"], OTHER: ["sold"]})
    with client_of(job[1], OTHER, access) as client:
        for query in ("SELECT * FROM secret EMIT CHANGES", "SELECT * FROM nothing EMIT CHANGES"):
            answer = client.get("/sql/changes", params={"query": query})
            message = answer.json()["error"]["message"]
            assert answer.status_code == 400
            assert "known are sold" in message
            assert "secret" not in message.replace("FROM secret", "").lower().replace("unknown table secret", "")
        with pushed(client, "SELECT n FROM sold EMIT CHANGES LIMIT 1") as stream:
            assert next(events(stream))[1] == "snapshot"
        client.headers["authorization"] = f"Bearer {TOKEN}"
        with pushed(client, "SELECT entry, value FROM secret EMIT CHANGES LIMIT 1") as stream:
            assert next(events(stream))[2]["row"]["entry"] == "pin"
        client.headers.pop("authorization")
        assert client.get("/sql/changes", params={"query": SELECT}).status_code == 401


def test_push_queries_are_limited_as_other_queries(job):
    with client_of(job[1], streams=1, body=200) as client, pushed(client, "SELECT n FROM sold EMIT CHANGES") as stream:
        came = events(stream)
        next(came)
        with pushed(client, SELECT, 1) as refused:
            assert refused.status_code == 503
        with pushed(client, SELECT + " " * 200) as refused:
            assert refused.status_code == 413


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("LEVENSHTEIN(LPAD('', 90000, 'ab'), LPAD('', 90000, 'ba'))", "took longer than 3 s"),
        ("LPAD('', 1000000, 'a') || LPAD('', 1000000, 'a')", "the rows have more than 1000000 bytes"),
    ],
)
def test_expressions_without_end_end_the_stream_alone(job, expression, message):
    with client_of(job[1], sql_seconds=3, sql_megabytes=450, answer=1_000_000) as client:
        with pushed(client, f"SELECT {expression} AS x FROM sold EMIT CHANGES") as stream:
            ((_, kind, error),) = events(stream)
        assert (kind, error["type"]) == ("error", "QueryFailed")
        assert message in error["message"]
        # The memory of a process is limited as well: a row that needs more is left out, as other bad ones.
        times = "CASE key WHEN 'Kept' THEN 600000000 ELSE 1 END"
        with pushed(client, f"SELECT key, LEN(REPEAT(note, {times})) AS x FROM sold EMIT CHANGES LIMIT 1") as stream:
            row = next(events(stream))[2]["row"]
        assert (row["key"] != "Kept", row["x"]) == (True, 3)


def test_the_end_of_following_is_an_event(tmp_path):
    with followed(Sales(), tmp_path) as (harness, tables):
        harness.process(("Aliens", 3))
        tables.start(every=0.02)
        with client_of(tables) as client:
            with pushed(client, "SELECT n FROM sold EMIT CHANGES") as stream:
                came = events(stream)
                next(came)
                shutil.rmtree(tmp_path / "tables")
                assert [(kind, data["type"]) for _, kind, data in came if kind] == [("error", "LocalStoreError")]
            assert client.get("/sql/changes", params={"query": SELECT}).status_code == 503


def test_windows_are_rows_with_times(tmp_path):
    rows = [{"k": "ann", "t": time, "n": time} for time in range(0, 9000, 1000)]
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=9000)).key_by("k")
    output = stream.window(w.TumblingEventTimeWindows.of(5000)).aggregate({"n": w.Count()}, name="x")
    query = "SELECT *, UNIX_TIMESTAMP(window_end) AS ms FROM x WHERE window_start >= ? EMIT CHANGES LIMIT 1"
    with (
        output.run(tables=tmp_path / "tables", drain=False).tables as tables,
        client_of(tables) as client,
        pushed(client, query, "1970-01-01T00:00:05Z") as stream,
    ):
        found = next(events(stream))[2]["row"]
    assert found == {
        "k": "ann",
        "window_start": "1970-01-01T00:00:05Z",
        "window_end": "1970-01-01T00:00:10Z",
        "n": 4,
        "ms": 10_000,
    }
