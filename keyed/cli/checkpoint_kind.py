"""Checkpoints on the command line: of the local runtime or, told by what is in them, of Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keyed


def session_for(checkpoint: str) -> Any:
    """A Spark session to read a checkpoint of Spark with, ``None`` for one of the local runtime.

    Other file systems than this machine's are Spark's. The session is local, unless ``MASTER`` or ``spark-submit`` say
    otherwise.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", checkpoint) or Path(checkpoint, "offsets").is_dir():
        return keyed.spark_session("keyed")
    return None
