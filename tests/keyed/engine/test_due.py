"""When a key group has something to do without rows: the least of its processing-time timers."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from keyed import TimeDomain
from keyed.base.arguments import MAX_TIMESTAMP
from keyed.content.addresses import TIMER_PROCESSING
from keyed.engine.batch import Batch
from keyed.vectorized import TableState, VectorizedFunction
from tests.keyed.engine.groups import Group

TIME = st.integers(0, 40)
KEY = st.sampled_from("ab")
ELEMENT = st.one_of(
    st.tuples(KEY, st.sampled_from(["register_processing_time_timer", "delete_processing_time_timer"]), TIME),
    st.tuples(KEY, st.just("set_timer"), st.integers(0, 1), TIME, st.just(TimeDomain.PROCESSING_TIME)),
    st.tuples(KEY, st.just("cancel_timer"), st.integers(0, 1), st.just(TimeDomain.PROCESSING_TIME)),
)


def pending(group):
    return [time for time, _, _ in group.group.committed()[1].due(TIMER_PROCESSING, MAX_TIMESTAMP)]


@given(st.lists(st.tuples(st.lists(ELEMENT, max_size=4), st.integers(0, 9)), max_size=12))
def test_a_batch_says_when_the_earliest_timer_is_due(batches):
    group, now = Group(), 0
    for elements, passed in batches:
        now += passed
        result = group.run(*elements, processing_time=now)
        assert result.due == min(pending(group), default=None)


def test_where_many_timers_fired_it_may_say_so_too_early_once():
    group = Group()
    timers = [("a", "register_processing_time_timer", time) for time in range(1, 101)]
    assert group.run(*timers, processing_time=0).due == 1
    assert group.run(processing_time=99).due in range(101)
    assert group.run(processing_time=99).due == 100
    assert group.run(processing_time=100).due is None


def test_only_a_batch_that_changes_entries_says_so():
    group = Group()
    assert group.run(("a", "value", b"x")).changed
    assert not group.run(("a", "value", b"x")).changed
    assert not group.run().changed
    assert group.run(("a", "register_event_time_timer", 1)).changed
    assert group.run(end_of_input=True).changed


class Held(VectorizedFunction):
    """Keeps a row until a second of processing time has passed."""

    held = TableState("k string, t bigint", key=("k",))

    def process_batch(self, table, ctx):
        self.held.upsert(pa.table({"k": table["k"], "t": [ctx.current_processing_time()] * table.num_rows}))

    def on_watermark(self, watermark, ctx):
        self.held.take(("t", "<=", ctx.current_processing_time() - 1000))


def test_a_vectorized_function_that_goes_by_the_clock_is_due_while_it_has_state():
    group = Group(Held())

    def run(now, rows):
        batch = Batch(table=lambda: pa.table({"k": pa.array(rows, pa.string())}), processing_time=now)
        result = group.group.run(batch)
        group.commits.commit()
        return result.due

    assert run(0, []) is None
    assert run(10, ["a"]) == 10
    assert run(20, []) == 20
    assert run(1010, []) is None
