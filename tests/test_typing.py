"""Type checkers know what declarations say, and have nothing against the code of the README and the tutorial."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import PROGRAMS

ROOT = Path(__file__).resolve().parent.parent

# One worker runs them all, so that mypy looks at the library once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("typing")]

PROGRAM = """
from collections.abc import Iterator
from typing import Any, assert_type

from keyed import AggregatingState, Context, KeyedProcessFunction, ListState, MapState, ReducingState
from keyed import ValueState, VersionedState, run
from keyed.job.state import VersionedRecord
from keyed.windows import Aggregate, aggregate_of


class Mean:
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Longest(Aggregate[str, int, str]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: str, accumulator: int) -> int:
        return max(accumulator, len(value))

    def merge(self, a: int, b: int) -> int:
        return max(a, b)

    def get_result(self, accumulator: int) -> str:
        return accumulator * "x"


class Typed(KeyedProcessFunction):
    seen = ValueState(int, default=0)
    last = ValueState(str)
    recent = ListState(float)
    counts = MapState(str, int)
    most = ReducingState(max, int)
    mean = AggregatingState(Mean(), tuple[int, int])
    longest = AggregatingState(Longest())
    total = AggregatingState(aggregate_of(int, lambda value, total: total + 1, lambda a, b: a + b, str))
    price = VersionedState(float, history=1000)

    def process_element(self, value: Any, ctx: Context) -> Iterator[int]:
        assert_type(self.seen.value(), int)
        assert_type(self.seen.namespace((1, 2)).value(), int)
        assert_type(self.last.value(), str | None)
        assert_type(self.recent.get(), list[float])
        assert_type(self.counts.get("a"), int | None)
        assert_type(self.counts.get("a", 0), int)
        assert_type(list(self.counts.items()), list[tuple[str, int]])
        assert_type(self.counts.pop("a"), int)
        assert_type(self.counts.pop("a", None), int | None)
        assert_type(self.counts.setdefault("a", 0), int)
        assert_type(self.recent[0], float)
        assert_type(self.recent[1:], list[float])
        self.counts.update({"a": 1}, b=2)
        self.counts.update([("c", 3)])
        self.recent.append(1.0)
        print(len(self.recent), not self.recent, len(self.counts), list(reversed(self.recent)))
        assert_type(self.most.get(), int | None)
        assert_type(self.mean.get(), float | None)
        assert_type(self.longest.get(), str | None)
        assert_type(self.total.get(), str | None)
        assert_type(self.price.get(7), VersionedRecord[float] | None)
        assert_type(self.price.get_range(1, 7), list[VersionedRecord[float]])
        yield self.seen.value()
        run(checkpoint="state", rows_per_batch=5)
"""


def mypy(folder: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    """Return mypy's report on files in strict mode."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ""]
    command += ["--cache-dir", str(folder.parent / "mypy"), *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def pyright(folder: Path, *files: Path, **rules: bool) -> subprocess.CompletedProcess[str]:
    """Return pyright's report on files in strict mode."""
    include = [os.path.relpath(file, folder) for file in files]
    settings = {"typeCheckingMode": "strict", "include": include, "extraPaths": [str(ROOT)], **rules}
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--project", str(project), "--pythonpath", sys.executable]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def wrong_lines(program: str, said: str) -> list[str]:
    """The lines of a program that a checker complains of."""
    lines = program.splitlines()
    return [lines[int(line) - 1].strip() for line in re.findall(r"program\.py:(\d+):.*error", said)]


def test_types_of_state_are_known_and_wrong_ones_found(tmp_path):
    wrong = ['self.seen.update("no")', 'self.recent.add("no")', "self.longest.add(1)"]
    wrong += ['self.recent.append("no")', 'self.counts.update(a="no")']
    wrong += ["run(checkpoint=3)", "run(no_option=True)", 'run(trigger="1 second")']
    program = PROGRAM + "".join(f"        {line}\n" for line in wrong)
    file = tmp_path / "program.py"
    file.write_text(program)
    for checker in (mypy, pyright):
        done = checker(tmp_path, file)
        assert wrong_lines(program, done.stdout) == wrong, done.stdout


@pytest.fixture
def code_of_the_docs(tmp_path):
    """The code of the README and of the tutorial, as programs."""
    files = [tmp_path / "readme.py", tmp_path / "tutorial.py"]
    for file, name in zip(files, ("README", "docs/tutorial"), strict=True):
        file.write_text("\n".join(block.text for block in PROGRAMS[name] if block.info.startswith("python")))
    return files


def test_the_code_of_readme_and_tutorial_is_typed(tmp_path, code_of_the_docs):
    done = mypy(tmp_path, *code_of_the_docs)
    assert done.returncode == 0, done.stdout
    # What pyarrow says of its own functions is incomplete. Chapters import what they need.
    rules = {"reportUnknownMemberType": False, "reportDuplicateImport": False}
    done = pyright(tmp_path, *code_of_the_docs, **rules)
    assert done.returncode == 0, done.stdout


def test_the_examples_are_typed(tmp_path):
    # As above; that mypy has nothing against them `make types` says.
    unknown = [f"reportUnknown{what}Type" for what in ("Member", "Argument", "Variable", "Lambda")]
    done = pyright(tmp_path, ROOT / "examples", **dict.fromkeys(unknown, False))
    assert done.returncode == 0, done.stdout
