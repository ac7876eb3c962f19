"""Memory and the garbage collector's setting over a run."""

from __future__ import annotations

import gc
import weakref
from typing import ClassVar

import pytest

import keyed
from keyed import KeyedProcessFunction
from keyed.runtimes.local import process


class Node:
    """One of a cycle; its memory is seen by how many there are."""

    alive: ClassVar[weakref.WeakSet[Node]] = weakref.WeakSet()

    def __init__(self):
        self.me = self
        self.data = bytearray(100_000)
        Node.alive.add(self)


class Replacing(KeyedProcessFunction):
    """Holds a cycle, and replaces it with each row."""

    def open(self, context):
        self.most = 0
        self.node = Node()

    def process_element(self, value, ctx):
        self.node = Node()
        yield len(Node.alive)


@pytest.fixture
def collecting(monkeypatch):
    """All objects are collected from the first batch on, and nothing is frozen, as in a program of a user."""
    monkeypatch.setattr(process, "_FIRST", 0)
    gc.collect()
    gc.unfreeze()
    yield
    gc.freeze()


def test_cycles_that_live_over_a_batch_are_freed(collecting, monkeypatch):
    monkeypatch.setattr(process, "_TIMES", 0)
    Node.alive.clear()
    source = [{"k": "a"}] * 100
    seen = keyed.stream(source).key_by("k").process(Replacing()).run(rows_per_batch=1).values
    assert len(seen) == 100
    # Without collections all of them live.
    assert max(seen) < 10


def test_a_short_run_does_not_look_at_what_the_program_holds():
    generations = []

    def note(phase, info):
        if phase == "start":
            generations.append(info["generation"])

    stream = keyed.stream([{"k": "a"}] * 3).key_by("k").process(Replacing())
    gc.callbacks.append(note)
    try:
        stream.run(rows_per_batch=1)
    finally:
        gc.callbacks.remove(note)
    assert set(generations) == {0}


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_left_as_it_was(collecting, on):
    frozen = gc.get_freeze_count()
    try:
        (gc.enable if on else gc.disable)()
        during = []

        class Looking(Replacing):
            def process_element(self, value, ctx):
                during.append(gc.isenabled())
                if value["k"] == "b":
                    raise LookupError
                return ()

        keyed.stream([{"k": "a"}]).key_by("k").process(Looking()).run()
        with pytest.raises(keyed.UserFunctionError):
            keyed.stream([{"k": "b"}]).key_by("k").process(Looking()).run()
        assert during == [False, False]
        assert gc.isenabled() is on
        assert gc.get_freeze_count() == frozen
    finally:
        gc.enable()
