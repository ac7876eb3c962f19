"""What is stored does not depend on the Python: these bytes, in each process and on each version.

``KEYED_OTHER_PYTHONS`` names further interpreters with the packages of the core and of the tests, separated by ``:``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from tests.upgrade.golden import TEXTS, encodings, run, source

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
PYTHONS = [sys.executable, *filter(None, os.environ.get("KEYED_OTHER_PYTHONS", "").split(":"))]


@pytest.mark.parametrize("kind", sorted(GOLDEN))
def test_the_bytes_are_those_of_every_python(kind):
    found = json.loads(json.dumps(encodings()[kind]))
    assert found == GOLDEN[kind]


def by(python: str, *arguments: object) -> Any:
    """Return what another process prints, whose texts have other hashes."""
    command = [python, "-m", "tests.upgrade.golden", *map(str, arguments)]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_bytes_of_another_process_are_the_same(python):
    assert by(python) == GOLDEN


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), list(permutations(PYTHONS, 2)) or [PYTHONS * 2])
def test_another_python_goes_on_from_a_checkpoint(first, second, tmp_path):
    half, count = len(TEXTS) * 3 + 2, len(source())
    begun = by(first, tmp_path / "both", half)
    rest = by(second, tmp_path / "both", count)
    whole = run(tmp_path / "alone", half), run(tmp_path / "alone", count)
    assert json.loads(json.dumps(whole)) == [begun, rest]
    assert {entry[0]: entry[1] for entry in rest[0]} == dict.fromkeys(TEXTS, count // len(TEXTS))
