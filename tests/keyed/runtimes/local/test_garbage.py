"""Memory and the garbage collector's setting over a run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import ClassVar

import pytest

import keyed
from keyed import KeyedProcessFunction
from keyed.runtimes import garbage
from keyed.stores.growth import resident_bytes

SIZE = 100_000


class Node:
    """One of a cycle; its memory is seen by how many there are."""

    alive: ClassVar[weakref.WeakSet[Node]] = weakref.WeakSet()

    def __init__(self, size=0):
        self.me = self
        self.data = b"x" * size
        Node.alive.add(self)


class Replacing(KeyedProcessFunction):
    """Holds a cycle, and replaces it with each row."""

    def open(self, context):
        self.node = Node()

    def process_element(self, value, ctx):
        self.node = Node(value["size"])
        yield len(Node.alive)


def most_alive(rows, size, rows_per_batch):
    Node.alive.clear()
    source = [{"k": "a", "size": size}] * rows
    seen = keyed.stream(source).key_by("k").process(Replacing()).run(rows_per_batch=rows_per_batch).values
    assert len(seen) == rows
    return max(seen)


@pytest.mark.parametrize("rows_per_batch", [pytest.param(1, marks=pytest.mark.slow), 100, 100_000])
def test_few_cycles_of_small_objects_are_alive_at_a_time_whatever_the_batches(monkeypatch, rows_per_batch):
    monkeypatch.setattr(garbage, "_YOUNG", 1000)
    # Each row makes a node, its dictionary and a few objects that live no longer than the call.
    assert most_alive(20_000, 0, rows_per_batch) < 10_000


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_batch", [1, 100, 100_000])
def test_few_bytes_of_cycles_are_alive_at_a_time_whatever_the_batches(rows_per_batch):
    """Three thousand objects are few for Python's collector, and 300 MB."""
    limit = 64 * 1024 * 1024 + resident_bytes() // 4
    assert most_alive(3000, SIZE, rows_per_batch) * SIZE < limit + 1200 * SIZE


TREES = """
import sys, keyed

class Part:
    __slots__ = ("above", "below", "text")
    def __init__(self, above):
        self.above, self.below = above, []

def parsed(number):
    root = here = Part(None)
    for at in range(2000):
        part = Part(here if at % 10 else root)
        part.text = f"{number}-{at}"
        part.above.below.append(part)
        here = part
    return root

class Parse(keyed.KeyedProcessFunction):
    def open(self, context):
        self.cache = {}
    def process_element(self, value, ctx):
        if len(self.cache) == 10:
            del self.cache[min(self.cache)]
        self.cache[value["n"]] = parsed(value["n"])

source = [{"k": n % 10, "n": n} for n in range(1000)]
keyed.stream(source).key_by("k").process(Parse()).run(rows_per_batch=int(sys.argv[1]))
# The peak that getrusage reports begins with that of the program which started this one.
(peak,) = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak) // 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("rows_per_batch", [10, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_cache_of_parsed_trees_is_as_large_after_many_rows_as_after_few(rows_per_batch):
    """A tree is half a megabyte, and refers to itself."""
    ran = subprocess.run(
        [sys.executable, "-c", TREES, str(rows_per_batch)], capture_output=True, text=True, check=True, timeout=300
    )
    # Without a collection within batches 500 and more; Python with nothing else holds 40.
    assert int(ran.stdout) < 160


def test_a_short_run_does_not_look_at_what_the_program_holds():
    generations = []

    def note(phase, info):
        if phase == "start":
            generations.append(info["generation"])

    stream = keyed.stream([{"k": "a", "size": 0}] * 3).key_by("k").process(Replacing())
    # An older generation is collected after ten collections of the younger one: none of earlier tests count.
    gc.collect()
    gc.callbacks.append(note)
    try:
        stream.run(rows_per_batch=1)
    finally:
        gc.callbacks.remove(note)
    assert 1 not in generations
    assert 2 not in generations


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_left_as_it_was(on):
    before = gc.get_threshold()
    try:
        (gc.enable if on else gc.disable)()
        during = []

        class Looking(Replacing):
            def process_element(self, value, ctx):
                during.append((gc.isenabled(), gc.get_threshold()[0]))
                if value["k"] == "b":
                    raise LookupError
                return ()

        keyed.stream([{"k": "a"}]).key_by("k").process(Looking()).run()
        with pytest.raises(keyed.errors.UserFunctionError):
            keyed.stream([{"k": "b"}]).key_by("k").process(Looking()).run()
        assert during == [(on, garbage._YOUNG)] * 2
        assert gc.isenabled() is on
        assert gc.get_threshold() == before
    finally:
        gc.enable()


def test_queries_that_overlap_leave_the_collector_as_it_was():
    before = gc.get_threshold()
    reached, goes_on = threading.Event(), threading.Event()

    def source():
        reached.set()
        yield {"k": "a", "size": 0}
        goes_on.wait(300)

    first = keyed.stream(source()).key_by("k").process(Replacing()).start(lambda batch, number: None)
    assert reached.wait(300)
    with garbage.Collector():
        goes_on.set()
        assert first.await_termination(300)
        assert gc.get_threshold()[0] == garbage._YOUNG
    assert gc.get_threshold() == before


def test_a_forked_process_has_the_thresholds_of_the_program():
    before = gc.get_threshold()
    with garbage.Collector():
        assert gc.get_threshold() != before
        read, write = os.pipe()
        child = os.fork()
        if not child:
            # The query runs in the parent; a child that goes on with it changes nothing.
            found = [gc.get_threshold()]
            garbage._THRESHOLDS.restore()
            found.append(gc.get_threshold())
            os.write(write, repr(found).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            assert answer.read() == repr([before, before])
        os.waitpid(child, 0)
        assert gc.get_threshold()[0] == garbage._YOUNG
    assert gc.get_threshold() == before
