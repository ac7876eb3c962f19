# ruff: noqa: E501 - statements stand on one line
"""``FROM TUMBLE(...)``, ``HOP`` and ``SESSION``, as in Flink SQL, over the rows of its documentation."""

import pytest

from keyed import sql

BIDS = (
    "CREATE STREAM bid (item STRING, price INT, bidtime TIMESTAMP) "
    "WITH (FORMAT = 'JSON', TIMESTAMP = 'bidtime'); CREATE TABLE o AS "
)
#: Items, prices and minutes after eight.
ROWS = [*zip("CADBEF", (4, 2, 5, 3, 1, 6), (5, 7, 9, 11, 13, 17), strict=True)]


def results(query):
    """Value and window of each result; windows are minutes after eight."""
    rows = [{"item": item, "price": price, "bidtime": f"2020-04-15T08:{at:02}:00"} for item, price, at in ROWS]
    # A later row closes the windows.
    rows.append({"item": "z", "price": 0, "bidtime": "2020-04-16T08:00:00"})
    found = sql.script(BIDS + query + ";", {"bid": rows})["o"]
    return [(each.value, tuple((time - 1_586_937_600_000) // 60_000 for time in each.window or ())) for each in found]


@pytest.mark.parametrize(
    "source",
    [
        "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(bidtime), INTERVAL '10' MINUTES))",
        "TUMBLE(bid, bidtime, INTERVAL '10 minutes') AS w",
        "TUMBLE(bid, ROWTIME, 10 MINUTES)",
    ],
)
def test_tumbling_windows_are_emitted_once_when_they_have_ended(source):
    query = f"SELECT 1 AS one, SUM(price) AS total, window_start, window_end FROM {source} GROUP BY window_start, window_end, 1"
    first = {"total": 11, "window_start": 1_586_937_600_000, "window_end": 1_586_938_200_000}
    second = {"total": 10, "window_start": 1_586_938_200_000, "window_end": 1_586_938_800_000}
    assert results(query) == [(first, (0, 10)), (second, (10, 20))]


def test_hop_has_the_slide_before_the_size():
    query = (
        "SELECT 1 AS one, SUM(w.price) AS total FROM HOP(bid, bidtime, INTERVAL '5' MINUTES, INTERVAL '10' MINUTES) w "
    )
    found = results(query + "GROUP BY w.window_start, w.window_end, 1")
    windows = [(value["total"], window) for value, window in found]
    assert windows == [(11, (0, 10)), (15, (5, 15)), (10, (10, 20)), (6, (15, 25))]


def test_a_session_ends_a_gap_after_its_last_row_and_changes_may_be_asked_for():
    query = (
        "SELECT 1 AS one, COUNT(*) AS n, epoch_ms(window_time) AS t FROM SESSION(bid, bidtime, INTERVAL '4' MINUTES) "
    )
    (*_, last) = results(query + "GROUP BY window_start, window_end, 1 EMIT CHANGES")
    assert last[0] == {"n": 1, "t": 1_587_024_000_000 + 240_000 - 1}
