"""Run cases that are data: calls of states and timers by key, clocks, snapshots, and what each of them gives.

A case has the upstream test that it is ``of`` and its ``steps``, which are lists:

- ``[key, "value.update", "a"]`` calls a method of a state in a commit of its own, ``[key, "set", "name", 10]`` one of
  the timer service; ``"value@name.update"`` is for the namespace of that name. ``[key, [call], [call]]`` makes several
  calls in one commit. The element of ``"key@10"`` has this timestamp.
- ``"->", result`` at the end is the result of the last call, ``"raises", text`` its error, after which nothing of the
  commit is left.
- ``["clock", 10, "->", [[10, "k", null]]]`` moves the clock of the case's time domain; the result has the timers that
  fired, as (timestamp, key, name), sorted where there are several key groups. ``["clocks"]`` gives both clocks.
- ``["pending"]`` gives the pending timers as (key, name, timestamp), ``["fired"]`` those that have fired since the last
  look, ``["entries"]`` the number of state entries (``["some_entries"]``: any), ``["metrics", name, ...]`` metrics.
- ``["snapshot"]``, ``["restore"]``, ``["again", 3]`` (at that parallelism) and ``["crash"]`` go on from a snapshot;
  ``["copies", step, ...]`` runs steps before a snapshot, from one, and after a crash.

Timers and clocks are of the case's time domain, unless a step names another one: ``set_event``, ``clock_processing``,
``pending_other``. Calls under ``on_timer`` are made by the timer of that name or timestamp; ``["results"]`` gives what
they returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from keyed.errors import KeyedError
from tests.acceptance.support import EVENT, PROCESSING, Harness, Told, advance, delete, key_of, register

TIMER_CALLS: dict[str, Callable[..., Any]] = {
    "register": register,
    "delete": delete,
    "set": lambda service, domain, name, at: service.set_timer(name, at, domain),
    "cancel": lambda service, domain, name: service.cancel_timer(name, domain),
    "timers": lambda service, _: [(t.timestamp, t.domain.value, t.name, t.key) for t in service.timers()],
}


def with_domains(cases: list[dict[str, Any]]) -> list[Any]:
    """Return cases with each time domain that they name, event time where they name none."""
    domains = {"event": EVENT, "processing": PROCESSING}
    return [
        pytest.param(case, domains[name], id=f"{case['name']}-{name}")
        for case in cases
        for name in case.get("domains", ["event"])
    ]


def as_data(result: Any) -> Any:
    """Return a result as JSON would hold it."""
    if isinstance(result, Mapping):
        return as_data(result.items())
    if isinstance(result, Iterable) and not isinstance(result, str):
        return [as_data(part) for part in result]
    return result


class Case:
    """A case on a harness of a `Told` function, a class with the states that the case calls."""

    def __init__(self, case, function=Told, *, store="memory", domain=EVENT):
        self.case, self.function, self.store, self.parallelism = case, function, store, case.get("parallelism", 1)
        other = PROCESSING if domain is EVENT else EVENT
        self.domains = {"": domain, "other": other, "event": EVENT, "processing": PROCESSING}
        self.harness = Harness(function(self.fire), store=store, parallelism=self.parallelism)

    def fire(self, function, ctx, timestamp):
        """Make the calls of the timer that fires, which then reports itself."""
        calls = self.case.get("on_timer", {}).get(str(ctx.timer_name() or timestamp), ())
        self.results = [self.call(function, ctx, *call) for call in calls]

    def call(self, function, ctx, name, *arguments):
        """Call a method of a state or of the timer service."""
        state, _, method = name.partition(".")
        if method:
            name, _, namespace = state.partition("@")
            return as_data(getattr(getattr(function, name).namespace(namespace or None), method)(*arguments))
        verb, _, domain = name.partition("_")
        return as_data(TIMER_CALLS[verb](ctx.timer_service(), self.domains[domain], *arguments))

    def commit(self, key, *calls):
        """Make calls for a key in one commit, and return the result of the last one."""
        calls = calls if not calls or isinstance(calls[0], list) else (calls,)
        key, _, timestamp = key.partition("@") if isinstance(key, str) else (key, "", "")
        return self.harness.call(
            lambda f, ctx: [None, *(self.call(f, ctx, *call) for call in calls)][-1],
            key=key,
            timestamp=int(timestamp) if timestamp else None,
        )

    def run(self, steps=None):
        """Run steps, by default those of the case, and compare their results."""
        for step in self.case["steps"] if steps is None else steps:
            *parts, sign, expected = step if step[-2:-1] in (["->"], ["raises"]) else [*step, "", None]
            name, *arguments = parts
            verb, _, domain = str(name).partition("_")
            do = getattr(self, f"do_{verb}", None)
            if sign == "raises":
                with pytest.raises(KeyedError) as raised:
                    self.commit(*parts)
                assert re.search(expected, f"{raised.typename}: {raised.value}"), step
            else:
                options = {"domain": domain} if domain else {}
                result = do(*arguments, **options) if do else self.commit(*parts)
                assert not sign or result == self.expect(expected), f"{step} gives {result}"

    def expect(self, expected):
        """Return the result that a case expects."""
        return expected

    def do_clock(self, timestamp, domain=""):
        advance(self.harness, self.domains[domain], timestamp)
        return self.do_fired()

    def do_clocks(self):
        return [self.harness.current_watermark, self.harness.current_processing_time]

    def do_fired(self):
        fired = as_data(self.harness.values())
        return fired if self.parallelism == 1 else sorted(fired)

    def do_pending(self, key=None, domain=None):
        timers = self.harness.pending_timers(key)
        return [[t.key, t.name, t.timestamp] for t in timers if not domain or t.domain is self.domains[domain]]

    def do_results(self):
        return self.results

    def do_entries(self):
        assert self.harness.metrics()["live_entries"] == self.harness.state_entries()
        return self.harness.state_entries()

    def do_some(self, domain):
        assert domain == "entries"
        assert self.do_entries() > 0

    def do_metrics(self, *names):
        return [self.harness.metrics()[name] for name in names]

    def do_snapshot(self):
        self.snapshot = self.harness.snapshot()

    def do_restore(self, parallelism=1):
        self.parallelism = parallelism
        function = self.function(self.fire)
        self.harness = Harness.restore(function, self.snapshot, key=key_of, store=self.store, parallelism=parallelism)

    def do_again(self, parallelism):
        self.harness = self.harness.again(self.function(self.fire), store=self.store, parallelism=parallelism)

    def do_crash(self):
        self.harness.crash_and_recover()

    def do_copies(self, *steps):
        first = self.harness
        self.run(steps)
        with first.again(self.function(self.fire), store="rocksdb", parallelism=3) as self.harness:
            self.run(steps)
        self.harness = first
        self.do_crash()
        self.run(steps)
