"""The last changes of a state table, of a batch and those before it."""

from __future__ import annotations

import pytest

import keyed
from keyed.tables.server import Access
from tests.support.tables import client_of, followed


class Counts(keyed.KeyedProcessFunction):
    count = keyed.ValueState(int)
    other = keyed.ValueState(int)

    def process_element(self, value, ctx):
        _, number = value
        if number:
            self.count.update(number)
        else:
            self.count.clear()
        self.other.update(1)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("changes")
    with followed(Counts(), folder) as (harness, opened):
        for batch in ([("a", 1)], [("b", 2), ("a", 3)], [("c", 4)], [("a", 0)]):
            with harness.batch():
                for value in batch:
                    harness.process(value)
            opened.poll()
        yield opened


def found(changes):
    return [(each.batch, each.key, each.old, each.new) for each in changes]


def test_the_last_changes_are_those_of_the_newest_batch_first(tables):
    table = tables["count"]
    everything = [(3, "a", 3, None), (2, "c", None, 4), (1, "a", 1, 3), (1, "b", None, 2)]
    assert found(table.last_changes()) == everything
    assert table.last_changes()[0].removed
    assert found(table.last_changes(2)) == everything[:2]
    assert found(table.last_changes(3)) == everything[:3]
    assert found(table.last_changes(as_of=1)) == everything[2:]
    assert table.last_changes(timeout=0.0) == []
    # The changes of the oldest batch are its state.
    assert (table.oldest_batch, table.last_changes(as_of=0)) == (0, [])
    # A subscription resumes after one of them.
    assert found(table.subscribe(after=table.last_changes()[2].token).take(10)) == [(1, "b", None, 2)]


def test_they_are_answered_over_http_to_tokens_of_the_table(tables):
    access = Access(tokens={"token-of-all-tables-0001": ["*"], "token-of-other-only-0002": ["other"]})
    with client_of(tables, access=access) as client:
        client.headers["authorization"] = "Bearer token-of-all-tables-0001"
        answer = client.get("/tables/count/last-changes", params={"limit": 1, "as_of": 2}).json()
        assert [(each["batch"], each["key"], each["new"]) for each in answer["changes"]] == [(2, "c", 4)]
        assert (answer["oldest"], answer["position"]["batch"]) == (0, 3)
        for params in ({"limit": "0"}, {"as_of": "x"}, {"key": "a"}):
            assert client.get("/tables/count/last-changes", params=params).status_code == 400
        client.headers["authorization"] = "Bearer token-of-other-only-0002"
        assert client.get("/tables/count/last-changes").status_code == 403
        assert client.get("/tables/other/last-changes").status_code == 200
