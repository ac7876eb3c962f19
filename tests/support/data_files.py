"""Cases of tests as data: JSON files beside the tests that run them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parent.parent


def read_data(name: str) -> Any:
    """Read a JSON file, named from the folder of the tests: ``acceptance/beam_timers.json``."""
    return json.loads((_TESTS / name).read_text(encoding="utf-8"))
