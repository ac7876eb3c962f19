"""Faults that the ready properties find at every seed, and right functions like these, which pass at every seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keyed import bounded_out_of_orderness
from keyed.testing import Falsified, assert_deterministic, assert_matches, strategies
from keyed.testing.scripts import ProcessingTime
from tests.keyed.testing import test_right_functions as right
from tests.keyed.testing import wrong_functions as wrong

ROOT = Path(__file__).parents[3]
SEEDS = range(20)
ROW = strategies.rows("user string, amount bigint", user=strategies.skewed("ann", "bob"))
IN_ORDER = strategies.streams(ROW, gap=60_000)
DISORDER = strategies.streams(ROW, gap=60_000, delay=5_000)
DELAY = bounded_out_of_orderness(5_000)
#: Calls of a property with a function.
Prove = Callable[..., str]


class Idle(wrong.Idle):
    """The one of the documentation."""

    def on_timer(self, timestamp, ctx):
        if self.waits_until.value() == timestamp:
            yield ctx.get_current_key(), timestamp
            self.waits_until.clear()


def idle(happened):
    now = 0
    waits: dict[str, int] = {}
    for each in happened:
        if isinstance(each, ProcessingTime):
            now = each.to
            yield from [(user, waits.pop(user)) for user in list(waits) if waits[user] <= now]
        else:
            waits[each.value["user"]] = now + 1_000
    yield from waits.items()


deterministic = partial(assert_deterministic, rows=IN_ORDER, key="user")
deterministic_in_disorder = partial(assert_deterministic, rows=DISORDER, key="user", watermark=DELAY)
deterministic_by_watermark = partial(deterministic_in_disorder, order="watermark")
idle_as_its_model = partial(assert_matches, model=idle, rows=DISORDER, clocks=True, key="user", watermark=DELAY)


#: By kind: the property, the wrong functions, and the right ones.
KINDS: dict[str, tuple[Prove, list[Any], list[Any]]] = {
    "hash": (deterministic, [wrong.SampledByHash()], [right.Hashed()]),
    "clock": (deterministic, [wrong.Aged()], [right.Logged(), right.Timed()]),
    "later rows": (
        deterministic_in_disorder,
        [wrong.CountOfMinute(), wrong.Silent(), wrong.ReadsLater()],
        [right.Minutes(), right.RunningTotal()],
    ),
    "rows in order": (deterministic, [], [wrong.CountOfMinute(), wrong.Silent()]),
    "rows by the watermark": (deterministic_by_watermark, [], [wrong.CountOfMinute(), wrong.Silent()]),
    "processing time": (idle_as_its_model, [wrong.Idle(), wrong.IdleByClock(), wrong.IdleByAMillisecond()], [Idle()]),
}


@pytest.fixture(autouse=True)
def shrinks_hardly(monkeypatch):
    """The smallest example takes most of the time."""
    monkeypatch.setattr("keyed.testing.properties._SHRINKING", 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])])
def test_with_each_seed_wrong_functions_are_found_and_right_ones_pass(kind, seed):
    prove, faults, others = KINDS[kind]
    for function in faults:
        with pytest.raises(Falsified):
            prove(function, examples=100, seed=seed)
    for function in others:
        assert prove(function, examples=20, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[1:])])
def test_with_each_hash_seed_a_sample_by_the_hash_of_a_text_is_found_and_a_table_by_hash_passes(hash_seed):
    program = """
from keyed.testing import Falsified
from tests.keyed.testing.test_every_seed import deterministic, right, wrong
assert deterministic(right.Hashed(), examples=10, seed=1)
try:
    deterministic(wrong.SampledByHash(), examples=10, seed=1)
except Falsified:
    print("found")
"""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, cwd=ROOT, env=environment, text=True).endswith("found\n")
