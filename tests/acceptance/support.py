"""Shared by the transcribed cases: a function that each element controls, and a wrapper of the harness.

The upstream suites drive a state store or a timer service by hand. Here an element carries the call: `Harness.call`
runs ``do(function, context)`` for a key inside ``process_element`` and gives back what it returned, so that a case
reads as its original does, while everything goes through the public API, a commit and a real local store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keyed import KeyedProcessFunction, TimeDomain
from keyed.testing import KeyedTestHarness

STORES = ("memory", "rocksdb")
EVENT, PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME

both_stores = pytest.mark.parametrize("store", STORES)
both_domains = pytest.mark.parametrize("domain", [EVENT, PROCESSING], ids=["event", "processing"])


def register(service, domain, timestamp):
    """Register an unnamed timer."""
    name = "register_event_time_timer" if domain is EVENT else "register_processing_time_timer"
    getattr(service, name)(timestamp)


def delete(service, domain, timestamp):
    """Delete an unnamed timer."""
    name = "delete_event_time_timer" if domain is EVENT else "delete_processing_time_timer"
    getattr(service, name)(timestamp)


def advance(harness, domain, timestamp):
    """Move a clock."""
    (harness.advance_watermark if domain is EVENT else harness.advance_processing_time)(timestamp)


def pending(harness):
    """Return the pending timers as (key, name, timestamp)."""
    return [(timer.key, timer.name, timer.timestamp) for timer in harness.pending_timers()]


class Told(KeyedProcessFunction):
    """Elements are (key, what to do); timers report themselves, after doing what `timer` says."""

    def __init__(self, timer: Callable[[Any, Any, int], Any] | None = None) -> None:
        self.timer = timer

    def process_element(self, value, ctx):
        return value[1](self, ctx)

    def on_timer(self, timestamp, ctx):
        if self.timer is not None:
            result = self.timer(self, ctx, timestamp)
            if result is not None:
                yield from result
                return
        yield timestamp, ctx.get_current_key(), ctx.timer_name()


def key_of(element):
    return element[0]


class Harness(KeyedTestHarness):
    """A harness for a `Told` function."""

    def __init__(self, function=None, *, key=key_of, **options):
        super().__init__(function or Told(), key=key, **options)

    def call(self, do, *, key="k", timestamp=None):
        """Run ``do(function, context)`` for a key as a commit of its own, and give back what it returned."""
        returned = []
        self.process((key, lambda function, ctx: returned.append(do(function, ctx))), timestamp)
        return returned[0]

    def timers(self, do, *, key="k", timestamp=None):
        """Run ``do(timer service)`` for a key."""
        return self.call(lambda _, ctx: do(ctx.timer_service()), key=key, timestamp=timestamp)

    def set_timers(self, do, *, key="k"):
        """As `timers`, also within a batch: what it returned is not known before its end."""
        self.process((key, lambda _, ctx: (do(ctx.timer_service()), None)[1]))

    def values(self):
        """The values of the main output since the last look."""
        return [record.value for record in self.take_output()]

    def again(self, function, *, store="memory", parallelism=1):
        """A harness restored from a snapshot of this one."""
        return type(self).restore(function, self.snapshot(), key=key_of, store=store, parallelism=parallelism)
