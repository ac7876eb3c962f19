"""Type checkers know the element types of declared state."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PROGRAM = """
from collections.abc import Iterator
from typing import Any, assert_type

from keyed import AggregatingState, Context, KeyedProcessFunction, ListState, MapState, OpenContext, ReducingState
from keyed import ValueState


class Mean:
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Typed(KeyedProcessFunction):
    seen = ValueState(int, default=0)
    last = ValueState(str)
    recent = ListState(float)
    counts = MapState(str, int)
    most = ReducingState(max, int)
    mean = AggregatingState(Mean(), tuple[int, int])

    def process_element(self, value: Any, ctx: Context) -> Iterator[int]:
        assert_type(self.seen.value(), int)
        assert_type(self.seen.namespace((1, 2)).value(), int)
        assert_type(self.last.value(), str | None)
        assert_type(self.recent.get(), list[float])
        assert_type(self.counts.get("a"), int | None)
        assert_type(self.counts.get("a", 0), int)
        assert_type(list(self.counts.items()), list[tuple[str, int]])
        assert_type(self.most.get(), int | None)
        assert_type(self.mean.get(), float | None)
        yield self.seen.value()
"""


def check(tmp_path, program):
    file = tmp_path / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_types_of_state_are_known_and_wrong_ones_found(tmp_path):
    done = check(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stdout
    # In one test: this run has what the first has learned of the library.
    done = check(tmp_path, PROGRAM + '        self.seen.update("no")\n        self.recent.add("no")\n')
    assert done.stdout.count("[arg-type]") == 2, done.stdout
