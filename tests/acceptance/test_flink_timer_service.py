"""Flink's InternalTimerServiceImplTest: timers of the timer service, through the harness.

Flink's timers of a namespace are named timers here: ``set_timer(namespace, t)``. The difference is stated: a name has
one timer at a time, as in Beam, so cases that register a namespace at several times use unnamed timers.
"""

from __future__ import annotations

import pytest

from keyed.errors import DefinitionError
from tests.acceptance.steps import Case, with_domains
from tests.acceptance.support import EVENT, PROCESSING, Harness, advance, both_stores, pending, register
from tests.support.data_files import read_data


@both_stores
def test_timer_assignment_to_key_groups(store):
    """InternalTimerServiceImplTest.testTimerAssignmentToKeyGroups: a hundred keys over ten groups, in both domains."""
    harness = Harness(store=store, parallelism=10)
    with harness.batch():
        for at in range(10, 110):
            harness.set_timers(lambda t, at=at: [register(t, each, at) for each in (EVENT, PROCESSING)], key=at - 10)
    for domain in (EVENT, PROCESSING):
        found = {(t.key, t.timestamp) for t in harness.pending_timers() if t.domain is domain}
        assert found == {(key, 10 + key) for key in range(100)}
    for domain in (EVENT, PROCESSING):
        advance(harness, domain, 59)
        assert sorted(value[0] for value in harness.values()) == list(range(10, 60))
        assert sum(timer.domain is domain for timer in harness.pending_timers()) == 50


@both_stores
@pytest.mark.parametrize(("case", "domain"), with_domains(read_data("acceptance/flink_timer_service.json")))
def test_a_case_holds(store, case, domain):
    Case(case, store=store, domain=domain).run()


@pytest.mark.parametrize("timestamp", [None, 1.0, "1", True, 2**63, -(2**63) - 1, type("Big", (int,), {})(2**63)])
def test_timestamps_that_are_none(timestamp):
    """A long in Flink; here what is not an int of 64 bits is refused, and nothing is registered."""
    harness = Harness()
    domains = ("event", "processing")
    for call in (f"{verb}_{domain}_time_timer" for verb in ("register", "delete") for domain in domains):
        with pytest.raises(DefinitionError, match="timer timestamp"):
            harness.timers(lambda t, call=call: getattr(t, call)(timestamp))
    with pytest.raises(DefinitionError, match="timer timestamp"):
        harness.timers(lambda t: t.set_timer("n", timestamp))
    assert pending(harness) == []
