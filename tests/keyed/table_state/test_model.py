"""Random programs: a table state over both local stores is what a dictionary is, through crashes and replays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyed.content import row_hash as hashing
from keyed.errors import UserFunctionError
from keyed.table_state import chunks, overlay
from keyed.testing import KeyedTestHarness
from tests.keyed.table_state.model import EPOCH, Model, Program, normal, row

KEYS = st.tuples(st.sampled_from(["a", "b", "c", "", None]), st.sampled_from([None, -1, 0, 1, 2, 3, 4, 5]))
NUMBERS = st.none() | st.integers(-20, 20)
ROWS = st.lists(st.tuples(KEYS, NUMBERS).map(lambda drawn: row(*drawn[0], drawn[1])), max_size=12)
COMPARISON = st.one_of(
    st.tuples(st.just("w"), st.sampled_from(["<", "<=", "==", ">=", ">"]), st.integers(-2, 6)),
    st.tuples(st.just("low"), st.sampled_from(["<", "<=", "==", ">=", ">"]), st.integers(-1, 5)),
    st.tuples(st.just("at"), st.sampled_from(["<", "<=", ">=", ">"]), st.just(EPOCH)),
    st.tuples(st.just("high"), st.sampled_from(["<=", ">"]), st.sampled_from(["", "b", "cc"])),
)
PREDICATE = st.one_of(st.just(("w", "<=", 2)), COMPARISON, st.lists(COMPARISON, min_size=1, max_size=2))
CALL = st.one_of(
    st.tuples(st.just("merge"), ROWS),
    st.tuples(st.just("merge"), ROWS),
    st.tuples(st.just("upsert"), ROWS),
    st.tuples(st.sampled_from(["delete", "lookup"]), st.lists(KEYS, max_size=6)),
    st.tuples(st.just("take"), PREDICATE, st.booleans()),
    st.tuples(st.just("scan"), PREDICATE | st.none(), st.booleans()),
    st.sampled_from([("num_rows",), ("num_rows",), ("clear",)]),
)
STEP = st.tuples(st.lists(CALL, max_size=5), st.sampled_from(["", "", "", "fails", "crashes", "crashes"]))


def run(store: Any, steps: list[tuple[list[tuple[Any, ...]], str]]) -> None:
    function, model = Program(), Model()
    with KeyedTestHarness(function, key="k", store=store) as harness:
        rows = pa.table({"k": ["any"]})
        for calls, then in [*steps, ([("scan", None, False), ("num_rows",)], "")]:
            function.script[:] = [*calls, ("fail",)] if then == "fails" else calls
            before = dict(model.rows)
            if then == "fails":
                with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
                    harness.process_batch(rows)
                continue
            harness.process_batch(rows)
            for call, result in zip(calls, function.results, strict=True):
                ordered = call[0] == "lookup"
                arguments = call[1:2]
                assert normal(result, ordered=ordered) == normal(model.call(call[0], *arguments), ordered=ordered), call
            assert harness.metrics()["live_entries"] == harness.state_entries() == len(model.rows), (before, calls)
            if then == "crashes":
                harness.crash_and_recover()
        if not model.rows:
            assert harness.metrics()["live_bytes"] == 0


@pytest.fixture(params=["as it is", "small chunks", "few hashes"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small tables take the ways of large ones."""
    if request.param != "as it is":
        monkeypatch.setattr(chunks, "CHUNK_ROWS", 3)
        monkeypatch.setattr(overlay, "_WHOLE", 0)
    if request.param == "few hashes":
        hashes = hashing.row_hashes
        for module in (chunks, overlay):
            monkeypatch.setattr(module, "row_hashes", lambda *arguments: hashes(*arguments) % 5)


@pytest.mark.usefixtures("size")
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_a_table_is_a_dictionary(store: str) -> None:
    @settings(max_examples=settings().max_examples // 2)
    @given(st.lists(STEP, max_size=12))
    def check(steps: list[Any]) -> None:
        run(store, steps)

    check()
